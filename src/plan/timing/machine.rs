//! Descriptions of machines: what a simulated kernel's turns, links and loads take.

use crate::error::Error;
use crate::topology::Graph;

/// How fast a block's threads move data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockModel {
    /// Threads of a block, 16 bytes each at a time; 0 where data move at [`BlockModel::rate`] alone, as on a processor.
    pub threads: u32,
    /// Microseconds from a load of local memory to its data, under load.
    pub load: f64,
    /// Bytes that a block reads and writes in a microsecond at most, both counted.
    pub rate: f64,
    /// Microseconds of a turn besides data and links: barriers, the next step, the waiting thread's work.
    pub turn: f64,
    /// Microseconds between two looks at a counter, half of which an arrival waits on average.
    pub poll: f64,
}

/// What joins two ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathModel {
    /// Bytes that a rank sends in a microsecond, on all channels together; as many come in meanwhile.
    pub bandwidth: f64,
    /// Microseconds until a store is seen at the other end.
    pub latency: f64,
    /// Microseconds of a fence that waits for stores to have arrived.
    pub fence: f64,
    /// Microseconds from a load of what a peer has sent to its data.
    pub receive_load: f64,
    /// Microseconds from a load of a peer's memory to its data, under load.
    pub remote_load: f64,
    /// Bytes that all ranks together move in a microsecond, where they share something; infinite where not.
    pub fabric: f64,
}

/// What joins hosts: movers that take slots from kernels to kernels, by TCP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkModel {
    /// Microseconds from a slot that is posted on one host to when it can be seen on another, besides its bytes.
    pub latency: f64,
    /// Bytes that a host sends in a microsecond, over all its interfaces; as many come in meanwhile.
    pub bandwidth: f64,
    /// Bytes that one rank's mover sends in a microsecond; as many come in meanwhile.
    pub rank_bandwidth: f64,
    /// Microseconds of a mover for each slot that it sends, or receives, besides its bytes.
    pub message: f64,
    /// Microseconds from a load of what has come to its data: it is in memory of the host.
    pub receive_load: f64,
}

impl NetworkModel {
    /// Ethernet of some gigabits a second, of which 94 in 100 are data, under TCP. Public figures of hosts in one data
    /// centre: 30 to 50 µs for a TCP message there and back, to which movers and memory of the host add some on each
    /// end; 20 to 30 Gbit/s by one stream that one thread serves, with the usual 1500 bytes of a packet; 2 to 5 µs for
    /// a system call that sends, or receives.
    pub fn ethernet(gigabits: f64) -> NetworkModel {
        let bandwidth = gigabits * 0.94 * 125.0;
        let rank_bandwidth = bandwidth.min(2500.0);
        NetworkModel { latency: 25.0, bandwidth, rank_bandwidth, message: 4.0, receive_load: 1.6 }
    }

    /// Network namespaces of one host, whose processors do all of it: as they come out on two of them.
    pub fn namespaces() -> NetworkModel {
        NetworkModel { latency: 30.0, bandwidth: 2000.0, rank_bandwidth: 1500.0, message: 6.0, receive_load: 0.0 }
    }
}

/// How blocks share processors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharingModel {
    /// Processors that blocks take turns on; 0: every block has its own.
    pub processors: u32,
    /// Microseconds that a block looks for what it waits for before it yields its processor.
    pub spin: f64,
    /// Microseconds until another block goes on where one has yielded.
    pub switch: f64,
}

impl SharingModel {
    /// Every block has a processor of its own.
    pub const NONE: SharingModel = SharingModel { processors: 0, spin: 0.0, switch: 0.0 };
}

/// A machine, as the simulation knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineModel {
    /// Its name.
    pub name: String,
    /// Ranks, one on each device.
    pub ranks: u32,
    /// Hosts that they are on, as many on each as far as that goes, in the order of their numbers.
    pub hosts: u32,
    /// What joins these, where they are several.
    pub network: NetworkModel,
    /// Microseconds from a call to its kernel's first instruction, and from its last to the call's end. Where
    /// processors are shared, each rank's takes its processor so long.
    pub launch: f64,
    /// Processors, where blocks share them.
    pub sharing: SharingModel,
    /// Channels at most.
    pub channels: u32,
    /// Blocks.
    pub block: BlockModel,
    /// Links.
    pub path: PathModel,
    /// Whether lines of LL128 are carried whole.
    pub whole_lines: bool,
}

/// NVIDIA H100 and its like. Loads of local memory take about 500 ns unloaded (microbenchmarks of Hopper: 480 to 560
/// cycles at 1.7 GHz beyond the L2 cache, 270 in it), more under load. A block's rate is that of NCCL's own model for a
/// tree's channel of Hopper, 38.7 GB/s of data that are read, added to what is read, and written.
const GPU_BLOCK: BlockModel = BlockModel { threads: 512, load: 0.6, rate: 116_000.0, turn: 0.5, poll: 0.2 };

/// The most hosts that a name can say.
const MOST_HOSTS: u32 = 512;

/// Microseconds of a load from the L2 cache, where peers' stores end.
const IN_CACHE: f64 = 0.3;

impl MachineModel {
    /// Eight H100 behind NVSwitch. NVLink carries 370 GB/s of data in each direction (measured peer writes: 371 to 376;
    /// NCCL counts with 18 × 20.6). A hop of LL takes 0.6 µs in NCCL's model: a store's way and a poll. A fence waits
    /// for a store's way there and back. So does a load of a peer's memory, and 0.3 µs for what memory takes there: it
    /// is 1.2 µs, where published are 1 to 2 µs over NVLink of H100.
    pub fn eight_h100() -> MachineModel {
        MachineModel {
            name: "8xH100".to_string(),
            ranks: 8,
            hosts: 1,
            network: NetworkModel::ethernet(100.0),
            launch: 6.0,
            sharing: SharingModel::NONE,
            channels: 32,
            block: GPU_BLOCK,
            path: PathModel {
                bandwidth: 370_000.0,
                latency: 0.45,
                fence: 0.9,
                receive_load: IN_CACHE,
                remote_load: 1.2,
                fabric: f64::INFINITY,
            },
            whole_lines: true,
        }
    }

    /// Four A100 that PCIe 4.0 with 16 lanes joins, behind switches. Peers write 26 GB/s (measured of four devices with
    /// such links: 25.9 GB/s bus bandwidth of NCCL's ring; NCCL counts with 24). A hop of LL takes 1.0 µs in NCCL's
    /// model. A load of a peer's memory goes there and back, too: 2.1 µs, where published are 2 to 5 µs over PCIe.
    pub fn four_a100_pcie() -> MachineModel {
        MachineModel {
            name: "4xA100-pcie".to_string(),
            ranks: 4,
            channels: 32,
            block: BlockModel { rate: 72_000.0, ..GPU_BLOCK },
            path: PathModel {
                bandwidth: 26_000.0,
                latency: 0.9,
                fence: 1.8,
                receive_load: IN_CACHE,
                remote_load: 2.1,
                fabric: f64::INFINITY,
            },
            whole_lines: false,
            ..MachineModel::eight_h100()
        }
    }

    /// Two GeForce boards with PCIe 4.0 that do not reach each other: data go through memory of the host. Loads from
    /// there take about 1.5 µs. Nothing loads from a peer's memory.
    pub fn two_rtx_without_p2p() -> MachineModel {
        let pcie = MachineModel::four_a100_pcie();
        MachineModel {
            name: "2xRTX-nop2p".to_string(),
            ranks: 2,
            path: PathModel { bandwidth: 24_000.0, receive_load: 1.6, ..pcie.path },
            ..pcie
        }
    }

    /// Ranks on the software device of a host, whose processors they share: `rate` bytes a microsecond are read and
    /// written by one of them, and a flag takes `flag` microseconds from one to the other. A launch takes
    /// 1.7 µs: what each of many calls of Broadcast takes on two processors, where no rank waits for an answer, less a
    /// turn (measured: 1.9 µs at the least; a call of one rank alone, which is a copy, 0.6).
    pub fn software(ranks: u32, sharing: SharingModel, flag: f64, rate: f64) -> MachineModel {
        MachineModel {
            name: "software".to_string(),
            ranks,
            hosts: 1,
            network: NetworkModel::namespaces(),
            launch: 1.7,
            sharing,
            channels: 1,
            block: BlockModel { threads: 0, load: 0.0, rate, turn: 0.1, poll: 0.02 },
            path: PathModel {
                bandwidth: f64::INFINITY,
                latency: flag,
                fence: 0.0,
                receive_load: 0.0,
                remote_load: 0.0,
                fabric: f64::INFINITY,
            },
            whole_lines: false,
        }
    }

    /// The machines that have a name here.
    pub fn known() -> [MachineModel; 3] {
        [MachineModel::eight_h100(), MachineModel::four_a100_pcie(), MachineModel::two_rtx_without_p2p()]
    }

    /// A known machine by its name, or some of them: `2x8xH100-tcp100` are two, joined by TCP over Ethernet of 100
    /// Gbit/s.
    pub fn named(name: &str) -> Option<MachineModel> {
        let known = |name: &str| MachineModel::known().into_iter().find(|known| known.name.eq_ignore_ascii_case(name));
        let several = || {
            let (rest, gigabits) = name.rsplit_once("-tcp")?;
            let (hosts, base) = rest.split_once('x')?;
            let hosts: u32 = hosts.parse().ok().filter(|hosts| (2..=MOST_HOSTS).contains(hosts))?;
            let gigabits: f64 = gigabits.parse().ok().filter(|gigabits| (1.0..=10_000.0).contains(gigabits))?;
            Some(known(base)?.on_hosts(hosts, NetworkModel::ethernet(gigabits)))
        };
        known(name).or_else(several)
    }

    /// So many of these machines.
    pub fn on_hosts(self, hosts: u32, network: NetworkModel) -> MachineModel {
        let name = format!("{hosts}x{}-tcp{:.0}", self.name, network.bandwidth / 0.94 / 125.0);
        MachineModel { name, ranks: self.ranks * hosts, hosts, network, ..self }
    }

    /// What schedules are compiled from.
    pub fn graph(&self) -> Graph {
        let host = |rank: u32| (u64::from(rank) * u64::from(self.hosts) / u64::from(self.ranks.max(1))) as u32;
        Graph::of_hosts((0..self.ranks).map(host).collect())
    }

    /// Reads a description: lines of `key = value`, with `#` for comments. `base = NAME` begins with a known machine;
    /// what is not said is as there, or as with eight H100. Times are in microseconds, bandwidths in GB/s.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names the line, and what is wrong with it.
    pub fn parse(text: &str) -> Result<MachineModel, Error> {
        let mut machine = MachineModel::eight_h100();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or("").trim();
            let refuse = |why: &str| Error::InvalidArgument(format!("line {number}, `{line}`: {why}"));
            if line.is_empty() {
                continue;
            }
            let (key, value) = line.split_once('=').ok_or_else(|| refuse("`key = value` is wanted"))?;
            machine.set(key.trim(), value.trim()).map_err(|why| refuse(&why))?;
        }
        Ok(machine)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let time = || value.parse::<f64>().ok().filter(|x| *x >= 0.0).ok_or("a number of microseconds is wanted");
        let speed = || value.parse::<f64>().ok().filter(|x| *x > 0.0).map(|x| x * 1e3).ok_or("GB/s are wanted");
        let count =
            |least: u32| value.parse::<u32>().ok().filter(|x| *x >= least).ok_or(format!("{least} or more is wanted"));
        match key {
            "base" => *self = MachineModel::named(value).ok_or("there is no such machine")?,
            "name" => self.name = value.to_string(),
            "ranks" => self.ranks = count(2)?,
            "hosts" => self.hosts = count(1)?,
            "net_latency" => self.network.latency = time()?,
            "net_bandwidth" => self.network.bandwidth = speed()?,
            "net_rank_bandwidth" => self.network.rank_bandwidth = speed()?,
            "net_message" => self.network.message = time()?,
            "net_receive_load" => self.network.receive_load = time()?,
            "channels" => self.channels = count(1)?,
            "processors" => self.sharing.processors = count(0)?,
            "spin" => self.sharing.spin = time()?,
            "switch" => self.sharing.switch = time()?,
            "threads" => self.block.threads = count(0)?,
            "launch" => self.launch = time()?,
            "load" => self.block.load = time()?,
            "turn" => self.block.turn = time()?,
            "poll" => self.block.poll = time()?,
            "block_bandwidth" => self.block.rate = speed()?,
            "bandwidth" => self.path.bandwidth = speed()?,
            "latency" => self.path.latency = time()?,
            "fence" => self.path.fence = time()?,
            "receive_load" => self.path.receive_load = time()?,
            "remote_load" => self.path.remote_load = time()?,
            "fabric" => self.path.fabric = speed()?,
            "whole_lines" => self.whole_lines = count(0)? > 0,
            _ => return Err("there is no such key".to_string()),
        }
        Ok(())
    }
}
