//! Lines whose format is known outside and is needed in more than one place.

/// What the lines of a communicator's life say about it.
#[derive(Clone, Copy, Debug)]
pub struct CommLine<'a> {
    /// The C function that the user called.
    pub function: &'a str,
    /// The handle.
    pub comm: usize,
    /// This rank.
    pub rank: i32,
    /// Ranks of the communicator.
    pub nranks: i32,
    /// CUDA ordinal of its device.
    pub cuda_device: i32,
    /// NVML ordinal of its device.
    pub nvml_device: i32,
    /// Its PCI address as a number: domain, bus, device, function.
    pub bus_id: u64,
    /// The communicator's hash.
    pub hash: u64,
    /// What it is derived from, by split or shrink.
    pub origin: Option<OriginLine>,
}

/// What the lines of a derived communicator say about its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginLine {
    /// The handle of the parent.
    pub parent: usize,
    /// How many communicators the parent had derived before.
    pub count: u32,
    /// The colour of a split.
    pub color: i32,
    /// The key of a split.
    pub key: i32,
}

impl CommLine<'_> {
    fn who(&self) -> String {
        let CommLine { function, comm, rank, nranks, cuda_device, nvml_device, bus_id, hash, origin } = self;
        let device = format!("cudaDev {cuda_device} nvmlDev {nvml_device} busId {bus_id:x}");
        let from = match origin {
            None => format!("commId {hash:#x}"),
            Some(OriginLine { parent, count, color, key }) => {
                format!("parent {parent:#x} childCount {count} color {color} key {key}")
            }
        };
        format!("{function} comm {comm:#x} rank {rank} nranks {nranks} {device} {from}")
    }

    /// Subsystem INIT: An init call begins. The line of a derived communicator names no rank in front, and lacks a
    /// space.
    pub fn init_start(&self) -> String {
        match self.origin {
            None => format!("[Rank {}] {} - Init START", self.rank, self.who()),
            Some(_) => format!("{}- Init START", self.who()),
        }
    }

    /// Subsystem INIT: An init call is done.
    pub fn init_complete(&self) -> String {
        format!("{} - Init COMPLETE", self.who())
    }

    /// Subsystem DESTROY: An abort begins. The line says `nRanks`, the others `nranks`.
    pub fn abort_start(&self) -> String {
        let CommLine { comm, rank, nranks, cuda_device, bus_id, .. } = self;
        format!("comm {comm:#x} rank {rank} nRanks {nranks} cudaDev {cuda_device} busId {bus_id:x} - Abort START")
    }

    /// Subsystem DESTROY: What runs is told to leave; `what` is `START`, or `COMPLETE, result` and a result code.
    pub fn revoke(&self, what: &str) -> String {
        let CommLine { comm, rank, nranks, cuda_device, bus_id, .. } = self;
        format!("comm {comm:#x} rank {rank} nranks {nranks} cudaDev {cuda_device} busId {bus_id:x} - Revoke {what}")
    }

    /// Subsystem DESTROY: The communicator's memory is freed; `what` is `Destroy` or `Abort`.
    pub fn gone(&self, what: &str) -> String {
        let CommLine { comm, rank, nranks, cuda_device, bus_id, .. } = self;
        format!("comm {comm:#x} rank {rank} nranks {nranks} cudaDev {cuda_device} busId {bus_id:x} - {what} COMPLETE")
    }
}

/// What the line of a data call says.
#[derive(Clone, Copy, Debug)]
pub struct CallLine<'a> {
    /// The operation, `AllReduce`.
    pub name: &'a str,
    /// How many calls this communicator has seen before.
    pub count_before: u64,
    /// Send buffer.
    pub send: u64,
    /// Receive buffer.
    pub recv: u64,
    /// Elements.
    pub count: usize,
    /// NCCL's number of the datatype.
    pub datatype: i32,
    /// NCCL's number of the operator.
    pub op: i32,
    /// Root or peer.
    pub root: i32,
    /// The handle.
    pub comm: usize,
    /// Ranks of the communicator.
    pub nranks: i32,
    /// The stream.
    pub stream: usize,
}

impl CallLine<'_> {
    /// Subsystem COLL: The line of every data call.
    pub fn collective(&self) -> String {
        let CallLine { name, count_before, send, recv, count, datatype, op, root, comm, nranks, stream } = self;
        format!(
            "{name}: opCount {count_before:x} sendbuff {send:#x} recvbuff {recv:#x} count {count} datatype {datatype} \
             op {op} root {root} comm {comm:#x} [nranks={nranks}] stream {stream:#x}"
        )
    }
}

/// Subsystems INIT and P2P or SHM: How a channel of rank `from` reaches rank `to`: `how` is `P2P/IPC`,
/// `P2P/direct pointer`, `SHM/direct` and the like. Ranks come with their NVML device.
pub fn channel(channel: u32, connection: Option<u32>, from: (i32, i32), to: (i32, i32), how: &str) -> String {
    let connection = connection.map(|c| format!("/{c}")).unwrap_or_default();
    format!("Channel {channel:02}{connection} : {}[{}] -> {}[{}] via {how}", from.0, from.1, to.0, to.1)
}

/// Subsystems INIT and NET: The same over a network, which both ends say: `how` is `NET/Socket`. The number behind it
/// is that of the first interface.
pub fn net_channel(channel: u32, sends: bool, from: (i32, i32), to: (i32, i32), how: &str) -> String {
    let what = if sends { "send" } else { "receive" };
    format!("Channel {channel:02}/0 : {}[{}] -> {}[{}] [{what}] via {how}/0", from.0, from.1, to.0, to.1)
}

/// Subsystem INIT: The ring of a channel, which rank 0 prints.
pub fn ring(channel: u32, channels: u32, order: &[i32]) -> String {
    let order: Vec<String> = order.iter().map(i32::to_string).collect();
    format!("Channel {channel:02}/{channels:02} : {}", order.join(" "))
}
