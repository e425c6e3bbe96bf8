//! What a communicator takes from the environment, and what its ranks must agree on.

use std::sync::{Once, OnceLock};
use std::time::Duration;

use crate::bootstrap::{self, CommId, Family, InterfaceFilter, NetConfig, UniqueId};
use crate::device;
use crate::error::Error;
use crate::params::{self, Key, Snapshot};
use crate::plan::call::Func;
use crate::plan::layout::Proto;
use crate::transport::{self, PeerFacts};

use super::{Config, filter};

/// Channels on a software device: its kernels share the processors with the ranks themselves.
const CHANNELS_SOFTWARE: u32 = 1;
/// Channels on a GPU.
const CHANNELS_GPU: u32 = 8;
/// The most channels: a launch's argument has room for 15 work items.
const CHANNELS_MAX: u32 = 8;
/// Slot bytes by default: 256 KiB measured best on host memory (`NCCL_BUFFSIZE` is 8 slots).
const SLOT_BYTES: i64 = 256 << 10;
/// The smallest and the largest slot in bytes.
const SLOT_RANGE: (i64, i64) = (4 << 10, 64 << 20);
/// The least compute capability for LL128, major × 10 + minor.
const LL128_CAPABILITY: i32 = 70;
/// Settings on which ranks should agree: a difference is a warning that names rank and variable.
const AGREE: [Key; 7] = [
    params::ALGO,
    params::PROTO,
    params::BUFFSIZE,
    params::P2P_DISABLE,
    params::SHM_DISABLE,
    params::MIN_NCHANNELS,
    params::MAX_NCHANNELS,
];

/// The settings that creation uses.
pub(super) struct Settings {
    pub net: NetConfig,
    pub host_id: Option<String>,
    pub p2p_disabled: bool,
    pub shm_disabled: bool,
    pub multi_rank_device: bool,
    pub slot_bytes: u32,
    pub proto: Proto,
    pub agreement: Vec<(String, String)>,
    channels: Range,
}

/// Limits from `NCCL_MIN_NCHANNELS` and `NCCL_MAX_NCHANNELS`, or their old names.
struct Range {
    low: u32,
    high: u32,
}

/// What all ranks do alike, computed by each from the same facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The number of channels.
    pub channels: u32,
    /// The size of a slot in bytes.
    pub slot_bytes: u32,
    /// How slots carry data: one protocol for all of a communicator's links.
    pub proto: Proto,
}

impl Settings {
    /// Reads the settings as they hold now.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an address that cannot be understood, [`Error::InvalidUsage`] for an unknown
    /// word in `NCCL_PROTO`.
    pub(super) fn read() -> Result<Settings, Error> {
        let params = params::snapshot();
        let slot = match params.int(params::BUFFSIZE) {
            bytes if bytes > 0 => bytes / crate::plan::SLOTS as i64,
            _ => SLOT_BYTES,
        };
        Ok(Settings {
            net: net_config(&params)?,
            host_id: params.text(params::HOSTID).map(str::to_string),
            p2p_disabled: params.flag(params::P2P_DISABLE),
            shm_disabled: params.flag(params::SHM_DISABLE),
            multi_rank_device: params.flag(params::MULTI_RANK_GPU_ENABLE),
            proto: protocol(params.text(params::PROTO).unwrap_or(""))?,
            slot_bytes: (slot.clamp(SLOT_RANGE.0, SLOT_RANGE.1) as u32).next_multiple_of(4096),
            agreement: AGREE
                .iter()
                .map(|key| (key.param().name.to_string(), params.text(*key).unwrap_or("").to_string()))
                .collect(),
            channels: Range::read(&params),
        })
    }

    /// The number of channels that this rank would like.
    pub(super) fn channels(&self, config: &Config, software: bool) -> u32 {
        let preferred = if software { CHANNELS_SOFTWARE } else { CHANNELS_GPU };
        let low = self.channels.low.max(u32::try_from(config.min_ctas).unwrap_or(1));
        let high = self.channels.high.min(u32::try_from(config.max_ctas).unwrap_or(CHANNELS_MAX));
        preferred.max(low).min(high).clamp(1, CHANNELS_MAX)
    }
}

impl Range {
    fn read(params: &Snapshot) -> Range {
        let one = |new: Key, old: Key| params.set_int(new).or(params.set_int(old)).and_then(|number| u32::try_from(number).ok());
        Range {
            low: one(params::MIN_NCHANNELS, params::MIN_NRINGS).unwrap_or(1),
            high: one(params::MAX_NCHANNELS, params::MAX_NRINGS).unwrap_or(CHANNELS_MAX),
        }
    }
}

/// The protocol that `NCCL_PROTO` chooses. Where it leaves none: Simple, with a warning.
fn protocol(words: &str) -> Result<Proto, Error> {
    let chosen = filter::protocol(words, Func::AllReduce)
        .map_err(|text| Error::InvalidUsage(format!("NCCL_PROTO={words}: {text}; known are LL, LL128 and Simple")))?;
    Ok(chosen.unwrap_or_else(|| simple_instead("no protocol")))
}

/// Simple, in place of what `NCCL_PROTO` leaves; told once.
fn simple_instead(left: &str) -> Proto {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| log::warn!("NCCL_PROTO leaves {left}; using Simple"));
    Proto::Simple
}

/// The protocol that a rank asks for on its device. The software device has no LL128: a host's stores to a line of 128
/// bytes are several; and so are those of GPUs before compute capability 7.0.
pub(super) fn on_device(wanted: Proto, capability: i32, software: bool) -> Proto {
    match wanted {
        Proto::Ll128 if software => simple_instead("only LL128, which the software device does not have"),
        Proto::Ll128 if capability < LL128_CAPABILITY => {
            simple_instead("only LL128, which needs a GPU of compute capability 7.0 or later")
        }
        other => other,
    }
}

fn net_config(params: &Snapshot) -> Result<NetConfig, Error> {
    let (interfaces, warnings) = InterfaceFilter::parse(params.text(params::SOCKET_IFNAME).unwrap_or(""));
    for warning in warnings {
        log::warn!("NCCL_SOCKET_IFNAME: {warning}");
    }
    let seconds = |key: Key| u64::try_from(params.int(key)).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let defaults = NetConfig::default();
    Ok(NetConfig {
        interfaces,
        family: params.text(params::SOCKET_FAMILY).and_then(Family::parse),
        comm_id: params.text(params::COMM_ID).map(CommId::parse).transpose()?,
        magic: params.set_int(params::SOCKET_MAGIC).map(|magic| magic as u64),
        retry_count: u32::try_from(params.int(params::SOCKET_RETRY_CNT)).unwrap_or(defaults.retry_count),
        retry_sleep: Duration::from_millis(u64::try_from(params.int(params::SOCKET_RETRY_SLEEP_MSEC)).unwrap_or(100)),
        timeout: seconds(params::BOOTSTRAP_TIMEOUT),
        progress: seconds(params::BOOTSTRAP_PROGRESS).unwrap_or(defaults.progress),
        ..defaults
    })
}

/// Makes an id and starts the root that ranks will meet at (`ncclGetUniqueId`).
pub fn unique_id() -> Result<UniqueId, Error> {
    bootstrap::create_id(&net_config(&params::snapshot())?)
}

/// The devices 0 to `count` - 1, which stand for no list in `ncclCommInitAll`.
///
/// # Errors
/// [`Error::InvalidArgument`] for more devices than there are.
pub fn first_devices(count: i32) -> Result<Vec<i32>, Error> {
    let there = device::device_count()?;
    match (0..=there).contains(&count) {
        true => Ok((0..count).collect()),
        false => Err(Error::InvalidArgument(format!("Invalid device count requested : {count} (totalnDev={there})"))),
    }
}

/// Checks the devices of `ncclCommInitAll` (spec §3.2).
///
/// # Errors
/// [`Error::InvalidArgument`] for an ordinal that does not exist or an empty list,
/// [`Error::InvalidUsage`] for one that is named twice.
pub fn check_device_list(devices: &[i32]) -> Result<(), Error> {
    let count = device::device_count()?;
    if devices.is_empty() {
        return Err(Error::InvalidArgument("Invalid device count requested : 0".to_string()));
    }
    let twice_allowed = params::snapshot().flag(params::MULTI_RANK_GPU_ENABLE);
    for (place, device) in devices.iter().enumerate() {
        if !(0..count).contains(device) {
            return Err(Error::InvalidArgument(format!("Invalid device {device} (totalnDev={count})")));
        }
        if !twice_allowed && devices[..place].contains(device) {
            return Err(Error::InvalidUsage(format!(
                "ncclCommInitAll: device {device} is named twice; set NCCL_MULTI_RANK_GPU_ENABLE=1 to allow it"
            )));
        }
    }
    Ok(())
}

/// A random number of this process, by which ranks know that they are threads of one process.
pub(super) fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(rand::random)
}

/// Refuses two ranks on one device, as NCCL does, unless the user allows it.
pub(super) fn check_devices(peers: &[PeerFacts], me: u32, allowed: bool) -> Result<(), Error> {
    if allowed {
        return Ok(());
    }
    let mut seen = std::collections::HashMap::new();
    for peer in peers {
        let device = (&peer.host.name, &peer.host.boot_id, peer.uuid);
        if let Some(first) = seen.insert(device, peer.rank) {
            return Err(Error::InvalidUsage(format!(
                "Duplicate GPU detected : rank {first} and rank {} both on CUDA device {:x} of {} (seen by rank {me}); give each rank its own device, or set NCCL_MULTI_RANK_GPU_ENABLE=1",
                peer.rank, peer.bus_id, peer.host.name
            )));
        }
    }
    Ok(())
}

/// What all ranks will do: nobody gets more channels or larger slots than it asked for, and LL or LL128 is used where
/// all ask for it (a difference in `NCCL_PROTO` has been warned of), LL128 if it also works between all of them.
pub(super) fn agree(peers: &[PeerFacts]) -> Agreed {
    let asked = Proto::ALL.into_iter().find(|proto| peers.iter().all(|peer| peer.proto == *proto as u8));
    let whole = || peers.iter().enumerate().all(|(at, a)| peers[..at].iter().all(|b| transport::keeps_lines_whole(a, b)));
    Agreed {
        proto: match asked {
            Some(Proto::Ll128) if !whole() => without_whole_lines(Proto::Ll128),
            other => other.unwrap_or(Proto::Simple),
        },
        channels: peers.iter().map(|peer| peer.channels).min().unwrap_or(1),
        slot_bytes: peers.iter().map(|peer| peer.slot_bytes).min().unwrap_or(SLOT_BYTES as u32),
    }
}

/// The protocol where a link may be in other memory than a peer device's that is reached over NVLink.
pub(super) fn without_whole_lines(agreed: Proto) -> Proto {
    match agreed {
        Proto::Ll128 => simple_instead("only LL128, which needs NVLink between all devices"),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::HostFacts;

    /// Two processes of one host with a device each.
    fn peers(proto: Proto) -> Vec<PeerFacts> {
        let one = |rank: u32| PeerFacts {
            rank,
            host: HostFacts { name: "a".into(), boot_id: "b".into(), network_namespace: 1, pid_namespace: 2, pid: rank },
            process: u64::from(rank),
            device: rank as i32,
            uuid: [rank as u8; 16],
            bus_id: u64::from(rank),
            capability: 90,
            reachable: vec![[0; 16], [1; 16]],
            linked: vec![[0; 16], [1; 16]],
            post: [rank as u8; 16],
            p2p_disabled: false,
            shm_disabled: false,
            channels: 2 + rank,
            slot_bytes: 8192 >> rank,
            proto: proto as u8,
        };
        (0..2).map(one).collect()
    }

    #[test]
    fn a_protocol_is_used_where_all_ask_for_it() {
        for proto in Proto::ALL {
            assert_eq!(agree(&peers(proto)), Agreed { channels: 2, slot_bytes: 4096, proto });
            let mut mixed = peers(proto);
            mixed[1].proto = (proto as u8 + 1) % 3;
            assert_eq!(agree(&mixed).proto, Proto::Simple);
        }
    }

    #[test]
    fn ll128_needs_lines_that_arrive_whole() {
        let agreed = |change: fn(&mut PeerFacts)| {
            let mut all = peers(Proto::Ll128);
            change(&mut all[1]);
            agree(&all).proto
        };
        assert_eq!(agreed(|_| {}), Proto::Ll128);
        // Over PCIe, in shared memory, and on two hosts.
        assert_eq!(agreed(|peer| peer.linked = vec![peer.uuid]), Proto::Simple);
        assert_eq!(agreed(|peer| peer.p2p_disabled = true), Proto::Simple);
        assert_eq!(agreed(|peer| peer.host.boot_id = "c".into()), Proto::Simple);
        // Two ranks on one device.
        assert_eq!(agreed(|peer| (peer.uuid, peer.linked) = ([0; 16], vec![[0; 16]])), Proto::Ll128);
        assert_eq!(without_whole_lines(Proto::Ll128), Proto::Simple);
        assert_eq!(without_whole_lines(Proto::Ll), Proto::Ll);
    }

    #[test]
    fn ll128_is_for_gpus() {
        assert_eq!(on_device(Proto::Ll128, 70, false), Proto::Ll128);
        assert_eq!(on_device(Proto::Ll128, 61, false), Proto::Simple);
        assert_eq!(on_device(Proto::Ll128, 90, true), Proto::Simple);
        assert_eq!(on_device(Proto::Ll, 61, true), Proto::Ll);
    }
}
