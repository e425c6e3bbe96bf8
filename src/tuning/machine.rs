//! The constants of a machine that the cost model counts with.

use crate::plan::layout::Proto;

const PROTOCOLS: usize = Proto::ALL.len();

/// What the cost model knows of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineConstants {
    /// Microseconds of a launch.
    pub launch: f64,
    /// The links between ranks; where they differ, those of the slowest.
    pub link: LinkConstants,
    /// Ranks for each processor that runs their kernels, at least 1: they take turns then.
    pub oversubscription: f64,
}

/// What the cost model knows of the links between ranks, by protocol: `hop[Proto as usize]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConstants {
    /// Microseconds until data that one rank posts are seen by another.
    pub hop: [f64; PROTOCOLS],
    /// Bytes that one channel of a rank sends in a microsecond.
    pub speed: [f64; PROTOCOLS],
}

impl LinkConstants {
    /// Memory of the host that ranks on the software device share. Of the order that two cores of a virtual machine
    /// show; where choices change is not measured.
    pub const HOST_MEMORY: LinkConstants = LinkConstants::new([0.5; PROTOCOLS], 8000.0);
    /// NVLink. Not measured: what NCCL's own model assumes of it.
    pub const NVLINK: LinkConstants = LinkConstants::new([5.0, 1.5, 2.0], 20_000.0);

    /// Links with a speed in Simple. Half of a line of LL is data, and 15 of 16 bytes of one of LL128.
    pub const fn new(hop: [f64; PROTOCOLS], speed: f64) -> LinkConstants {
        let mut speeds = [speed; PROTOCOLS];
        speeds[Proto::Ll as usize] *= 0.5;
        speeds[Proto::Ll128 as usize] *= 120.0 / 128.0;
        LinkConstants { hop, speed: speeds }
    }
}

impl MachineConstants {
    /// A host whose software devices share its processors, with so many ranks for each.
    pub fn software(oversubscription: u32) -> MachineConstants {
        MachineConstants {
            launch: 0.5,
            link: LinkConstants::HOST_MEMORY,
            oversubscription: f64::from(oversubscription.max(1)),
        }
    }

    /// GPUs that some links join.
    pub fn gpu(link: LinkConstants) -> MachineConstants {
        MachineConstants { launch: 4.0, link, oversubscription: 1.0 }
    }

    /// What is assumed where nothing is known of the machine but its kind of device.
    pub fn assumed(software: bool, oversubscription: u32) -> MachineConstants {
        match software {
            true => MachineConstants::software(oversubscription),
            false => MachineConstants::gpu(LinkConstants::NVLINK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_shares_processors_takes_turns() {
        assert_eq!(MachineConstants::assumed(true, 3).oversubscription, 3.0);
        assert_eq!(MachineConstants::assumed(true, 0).oversubscription, 1.0);
        assert_eq!(MachineConstants::assumed(false, 3).oversubscription, 1.0);
    }

    #[test]
    fn flags_in_lines_take_room() {
        let [simple, ll, ll128] = LinkConstants::NVLINK.speed;
        assert_eq!((ll, ll128), (simple / 2.0, simple * 15.0 / 16.0));
    }
}
