//! What the cost model knows of the machine.

use crate::plan::layout::Proto;
use crate::plan::timing::{KernelModel, MachineModel, NetworkModel};

const PROTOCOLS: usize = Proto::ALL.len();

/// The constants that the cost model counts with. Nothing is known of a network: of GPUs' hosts it is taken to be
/// Ethernet of 100 Gbit/s, by TCP.
#[derive(Clone, Debug, PartialEq)]
pub enum MachineConstants {
    /// Software devices, whose kernels run on the host's processors.
    Processors(ProcessorConstants),
    /// GPUs, by the model that [`crate::plan::timing`] simulates them with.
    Gpus(MachineModel, KernelModel),
}

/// What joins the GPUs of a communicator: where links differ, the slowest of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// NVLink between every two of them.
    NvLink,
    /// They reach each other's memory over PCIe.
    Pcie,
    /// Some do not reach each other's memory: data go through memory of the host.
    #[default]
    HostMemory,
}

/// What the cost model knows of software devices: kernels copy, and whoever waits is told soon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessorConstants {
    /// Microseconds of a launch.
    pub launch: f64,
    /// Microseconds until data that one rank posts are seen by another, by protocol: `hop[Proto as usize]`.
    pub hop: [f64; PROTOCOLS],
    /// Bytes that one channel of a rank sends in a microsecond, by protocol.
    pub speed: [f64; PROTOCOLS],
    /// Ranks for each processor that runs their kernels, at least 1: they take turns then.
    pub oversubscription: f64,
    /// What joins hosts, where there are several.
    pub network: NetworkModel,
}

/// Bytes that one channel of a rank sends in a microsecond on a software device. Of the order that two cores of a
/// virtual machine show; where choices change is not measured.
const HOST_SPEED: f64 = 8000.0;

impl MachineConstants {
    /// A host whose software devices share its processors, with so many ranks for each.
    pub fn software(oversubscription: u32) -> MachineConstants {
        MachineConstants::Processors(ProcessorConstants {
            launch: 0.5,
            hop: [0.5; PROTOCOLS],
            speed: Proto::ALL.map(|protocol| HOST_SPEED / protocol.expansion()),
            oversubscription: f64::from(oversubscription.max(1)),
            network: NetworkModel::namespaces(),
        })
    }

    /// GPUs that some kind of link joins, as [`MachineModel`] describes machines with such links.
    pub fn gpus(links: LinkKind) -> MachineConstants {
        let model = match links {
            LinkKind::NvLink => MachineModel::eight_h100(),
            LinkKind::Pcie => MachineModel::four_a100_pcie(),
            LinkKind::HostMemory => MachineModel::two_rtx_without_p2p(),
        };
        MachineConstants::Gpus(model, KernelModel::CURRENT)
    }

    /// What is assumed where nothing is known of the machine but its kinds of device and of link.
    pub fn assumed(software: bool, oversubscription: u32, links: LinkKind) -> MachineConstants {
        match software {
            true => MachineConstants::software(oversubscription),
            false => MachineConstants::gpus(links),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_shares_processors_takes_turns() {
        let of = |software, ranks| match MachineConstants::assumed(software, ranks, LinkKind::NvLink) {
            MachineConstants::Processors(constants) => Some(constants.oversubscription),
            MachineConstants::Gpus(..) => None,
        };
        assert_eq!([of(true, 3), of(true, 0), of(false, 3)], [Some(3.0), Some(1.0), None]);
    }

    #[test]
    fn flags_in_lines_take_room() {
        let MachineConstants::Processors(constants) = MachineConstants::software(1) else { panic!("processors") };
        let [simple, ll, ll128] = constants.speed;
        assert_eq!((ll, ll128), (simple / 2.0, simple * 15.0 / 16.0));
    }
}
