//! What identifies a device in every process alike: all of it follows from the ordinal.

/// PCI bus of device 0.
const FIRST_BUS: u32 = 0x10;
/// Devices of a PCI domain: bus numbers have eight bits.
const DOMAIN_DEVICES: u32 = 128;

/// The 16 bytes of `cuDeviceGetUuid`.
pub fn uuid(ordinal: u32) -> [u8; 16] {
    let mut bytes = *b"softcuda\x40\0\x80\0\0\0\0\0";
    bytes[12..].copy_from_slice(&ordinal.to_be_bytes());
    bytes
}

/// The form of `nvidia-smi -L` and `CUDA_VISIBLE_DEVICES`.
pub fn uuid_text(ordinal: u32) -> String {
    let hex: String = uuid(ordinal).iter().map(|b| format!("{b:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Domain and bus number: each device has a bus of its own, slot 0.
pub fn pci_place(ordinal: u32) -> (u32, u32) {
    (ordinal / DOMAIN_DEVICES, FIRST_BUS + ordinal % DOMAIN_DEVICES)
}

/// `domain:bus:device.function`.
pub fn pci_text(ordinal: u32) -> String {
    let (domain, bus) = pci_place(ordinal);
    format!("{domain:04X}:{bus:02X}:00.0")
}

/// Domain, bus and device of `[domain:]bus:device[.function]`, all hexadecimal.
pub fn parse_pci(text: &str) -> Option<(u32, u32, u32)> {
    let text = text.split_once('.').map_or(text, |(head, _)| head);
    let mut parts = Vec::new();
    for part in text.split(':') {
        parts.push(u32::from_str_radix(part.trim(), 16).ok()?);
    }
    match parts[..] {
        [domain, bus, device] => Some((domain, bus, device)),
        [bus, device] => Some((0, bus, device)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        assert_eq!(pci_text(3), "0000:13:00.0");
        assert_eq!(parse_pci(&pci_text(3)), Some((0, 0x13, 0)));
        assert_eq!(parse_pci("13:0.0"), Some((0, 0x13, 0)));
        assert_eq!((pci_text(127), pci_text(255)), ("0000:8F:00.0".to_string(), "0001:8F:00.0".to_string()));
        assert_eq!(parse_pci("nonsense"), None);
        assert_eq!(uuid_text(1), "GPU-736f6674-6375-6461-4000-800000000001");
        assert_ne!(uuid(1), uuid(2));
    }
}
