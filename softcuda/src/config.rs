//! Settings from the environment, read once by `cuInit`.

mod links;

use crate::identity;
use crate::os;
pub use links::{Defect, Link, Links, Path};
use std::time::Duration;

/// Devices that `SOFTCUDA_DEVICES` may ask for: as many as ranks can share a machine for tests.
pub const MAX_DEVICES: usize = 256;
/// Most hardware queues of a device.
pub const MAX_CONNECTIONS: usize = 32;
/// Most SMs per device.
const MAX_SMS: u64 = 65_536;

/// What the environment says.
#[derive(Clone, Debug)]
pub struct Config {
    /// Ordinals of the devices that this process may see, in its own order (`CUDA_VISIBLE_DEVICES`).
    pub visible: Vec<u32>,
    /// Devices of the machine (`SOFTCUDA_DEVICES`).
    pub devices: u32,
    /// Bytes of memory per device (`SOFTCUDA_MEMORY`).
    pub memory: u64,
    /// Blocks that run at once on a device (`SOFTCUDA_SMS`).
    pub sms: u32,
    /// Hardware queues of a device, which its streams share; 0: one for each stream (`SOFTCUDA_CONNECTIONS`, else
    /// `CUDA_DEVICE_MAX_CONNECTIONS`).
    pub connections: usize,
    /// Delay before each stream operation (`SOFTCUDA_DELAY_US`).
    pub delay: Option<Duration>,
    /// Allocations wait for the device's work (`SOFTCUDA_ALLOC_WAITS`).
    pub alloc_waits: bool,
    /// IPC of memory as older drivers have it, and misuse is told (`SOFTCUDA_STRICT_IPC`).
    pub strict_ipc: bool,
    /// The driver shuts down when the process exits (`SOFTCUDA_UNLOAD`).
    pub unload: bool,
    /// What lies between devices (`SOFTCUDA_LINKS`).
    pub links: Links,
}

impl Config {
    /// Reads the process environment; what is out of range is clamped with a line on stderr.
    pub fn from_environment() -> Config {
        Config::read(&|name| std::env::var(name).ok())
    }

    fn read(get: &dyn Fn(&str) -> Option<String>) -> Config {
        let number = |name: &str, default: u64, low: u64, high: u64| match get(name) {
            None => default,
            Some(text) => clamp(name, &text, default, low, high),
        };
        let devices = number("SOFTCUDA_DEVICES", 8, 0, MAX_DEVICES as u64) as u32;
        let delay = number("SOFTCUDA_DELAY_US", 0, 0, 60_000_000);
        // As with NVIDIA's driver: 8 unless the variable says otherwise.
        let connections = number("CUDA_DEVICE_MAX_CONNECTIONS", 8, 1, MAX_CONNECTIONS as u64);
        Config {
            visible: visible(devices, get("CUDA_VISIBLE_DEVICES").as_deref()),
            devices,
            memory: number("SOFTCUDA_MEMORY", 16 << 30, 1 << 20, 1 << 46),
            sms: number("SOFTCUDA_SMS", 132, 1, MAX_SMS) as u32,
            connections: number("SOFTCUDA_CONNECTIONS", connections, 0, MAX_CONNECTIONS as u64) as usize,
            delay: (delay > 0).then(|| Duration::from_micros(delay)),
            alloc_waits: number("SOFTCUDA_ALLOC_WAITS", 0, 0, 1) == 1,
            strict_ipc: number("SOFTCUDA_STRICT_IPC", 0, 0, 1) == 1,
            unload: number("SOFTCUDA_UNLOAD", 0, 0, 1) == 1,
            links: Links::read(&get("SOFTCUDA_LINKS").unwrap_or_default()),
        }
    }
}

/// A number with an optional suffix K, M, G or T (powers of 1024).
fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let shift = match text.chars().last()?.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn clamp(name: &str, text: &str, default: u64, low: u64, high: u64) -> u64 {
    let Some(value) = parse(text) else {
        os::say(&format!("{name}={text} is not a number; using {default}"));
        return default;
    };
    let clamped = value.clamp(low, high);
    if clamped != value {
        os::say(&format!("{name}={text} is out of range {low}..={high}; using {clamped}"));
    }
    clamped
}

/// The rules of `CUDA_VISIBLE_DEVICES`: indices or UUIDs (prefixes allowed); the first invalid entry ends the list, a
/// device named twice makes all invisible.
fn visible(devices: u32, list: Option<&str>) -> Vec<u32> {
    let Some(list) = list else {
        return (0..devices).collect();
    };
    let mut found = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let Some(ordinal) = identify(devices, entry) else {
            break;
        };
        if found.contains(&ordinal) {
            return Vec::new();
        }
        found.push(ordinal);
    }
    found
}

fn identify(devices: u32, entry: &str) -> Option<u32> {
    if entry.starts_with("GPU-") {
        let mut matching =
            (0..devices).filter(|n| identity::uuid_text(*n).starts_with(&entry.to_lowercase().replace("gpu-", "GPU-")));
        let first = matching.next()?;
        return matching.next().is_none().then_some(first);
    }
    entry.parse().ok().filter(|n| *n < devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices() {
        assert_eq!(visible(3, None), [0, 1, 2]);
        assert_eq!(visible(3, Some("")), [0u32; 0]);
        assert_eq!(visible(3, Some("2,0")), [2, 0]);
        assert_eq!(visible(3, Some("1,7,0")), [1]);
        assert_eq!(visible(3, Some("-1")), [0u32; 0]);
        assert_eq!(visible(3, Some("1,1")), [0u32; 0]);
        assert_eq!(visible(3, Some(&identity::uuid_text(2))), [2]);
        assert_eq!(visible(3, Some("GPU-")), [0u32; 0]);
    }

    #[test]
    fn numbers() {
        let config = Config::read(&|name| match name {
            "SOFTCUDA_DEVICES" => Some("1000".into()),
            "SOFTCUDA_MEMORY" => Some("2G".into()),
            "SOFTCUDA_DELAY_US" => Some("2000".into()),
            _ => Some("x".into()).filter(|_| name == "SOFTCUDA_SMS"),
        });
        assert_eq!(config.visible.len(), 256);
        assert_eq!(config.memory, 2 << 30);
        assert_eq!((config.sms, config.connections), (132, 8));
        assert_eq!((config.delay, config.alloc_waits), (Some(Duration::from_millis(2)), false));
        assert!(Config::read(&|name| (name == "SOFTCUDA_ALLOC_WAITS").then(|| "1".into())).alloc_waits);
        let connections = |own: &str, nvidias: &str| {
            let get = |name: &str| match name {
                "SOFTCUDA_CONNECTIONS" => Some(own.to_owned()).filter(|text| !text.is_empty()),
                "CUDA_DEVICE_MAX_CONNECTIONS" => Some(nvidias.to_owned()),
                _ => None,
            };
            Config::read(&get).connections
        };
        assert_eq!(
            [connections("", "1"), connections("", "0"), connections("0", "4"), connections("99", "4")],
            [1, 1, 0, 32]
        );
        assert_eq!(parse("4K"), Some(4096));
        assert_eq!(parse(""), None);
    }
}
