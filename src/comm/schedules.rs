//! A communicator's schedule on the device: steps once, link ends for each channel.

use std::sync::Arc;

use zerocopy::IntoBytes;

use super::settings::Agreed;
use crate::device::{Context, DeviceMemory, HostFlag};
use crate::error::Error;
use crate::plan::call::DataType;
use crate::plan::layout::{LaunchArgs, LinkEnd, Proto, Work, launch_flag};
use crate::plan::operator::Operator;
use crate::plan::schedule::Schedule;
use crate::plan::work::{Geometry, Request};
use crate::plan::{LinkId, SLOTS, ring};
use crate::sys;
use crate::transport::{Connections, LinkNeed, PeerFacts};

/// Threads of a block: one on the software device, where a block is a loop, and 512 on a GPU.
const THREADS: (u32, u32) = (1, 512);
/// The longest sleep of a waiting host-image kernel, in nanoseconds.
const FUTEX_NS: u64 = 1_000_000;
/// Yields before a waiting kernel sleeps.
const YIELDS: u32 = 200;
/// Pauses before a waiting kernel yields: with a processor for every rank and its worker, and without.
const SPINS: (u32, u32) = (2000, 20);

/// How a waiting host-image kernel spends its time; a GPU ignores it.
#[derive(Clone, Copy, Debug)]
pub struct WaitPolicy {
    /// Pauses before the first yield.
    pub spin: u32,
    /// Yields before the first sleep.
    pub yields: u32,
    /// The longest sleep in nanoseconds.
    pub futex_ns: u64,
    /// A peer's store wakes nobody: sleeps are short, and who wakes looks again.
    pub no_wake: bool,
}

impl WaitPolicy {
    /// The policy for a number of ranks that share this process's processors (`spec/kernels.md`).
    fn choose(local_ranks: usize, no_wake: bool) -> WaitPolicy {
        let roomy = local_ranks * 2 <= sys::allowed_cpus();
        WaitPolicy { spin: if roomy { SPINS.0 } else { SPINS.1 }, yields: YIELDS, futex_ns: FUTEX_NS, no_wake }
    }
}

/// Bytes of a call for which another channel is worth its while.
const CHANNEL_BYTES: u64 = 64 << 10;

/// A rank's schedule: as data, and as steps and links in device memory.
pub struct Schedules {
    /// How its kernels wait.
    pub wait: WaitPolicy,
    /// Threads of a block.
    pub threads: u32,
    all_reduce: Schedule,
    agreed: Agreed,
    memory: DeviceMemory,
    links_at: usize,
}

/// Names of the kernels of all protocols that a device has; see [`kernel_number`] for the order.
pub(super) fn kernel_names(software: bool) -> Vec<String> {
    Proto::of_device(software)
        .iter()
        .flat_map(|proto| DataType::ALL.iter().map(|datatype| proto.kernel_name(*datatype)))
        .collect()
}

/// The place of a kernel in [`kernel_names`].
fn kernel_number(proto: Proto, datatype: DataType) -> usize {
    proto as usize * DataType::ALL.len() + datatype as usize
}

/// The ring visits the ranks in their own order.
fn ring_schedule(rank: u32, nranks: u32) -> Result<Schedule, Error> {
    let ring: Vec<u32> = (0..nranks).collect();
    let schedule = ring::all_reduce(&ring, rank)?;
    schedule.check(SLOTS as u32)?;
    Ok(schedule)
}

/// The links that a rank needs, over all channels: those of the first channel, then of the second.
pub(super) fn needs(rank: u32, nranks: u32, agreed: Agreed) -> Result<Vec<LinkNeed>, Error> {
    let links = ring_schedule(rank, nranks)?.links;
    let of_channel = |channel| {
        links
            .iter()
            .map(move |link| LinkNeed { id: LinkId { proto: agreed.proto, channel, ..*link }, slot_bytes: agreed.slot_bytes })
    };
    Ok((0..agreed.channels).flat_map(of_channel).collect())
}

impl Schedules {
    /// Puts a rank's schedule and link ends on its device.
    pub(super) fn upload(
        context: &Arc<Context>,
        me: &PeerFacts,
        peers: &[PeerFacts],
        agreed: Agreed,
        connections: &Connections,
    ) -> Result<Schedules, Error> {
        let nranks = peers.len() as u32;
        log::info!(target: "INIT,TUNING", "links carry {} in slots of {} bytes", agreed.proto.name(), agreed.slot_bytes);
        let all_reduce = ring_schedule(me.rank, nranks)?;
        let links_at = all_reduce.steps.as_bytes().len().next_multiple_of(align_of::<LinkEnd>());
        let ends = link_ends(&needs(me.rank, nranks, agreed)?, connections)?;
        let memory = DeviceMemory::zeroed(context, links_at + ends.as_bytes().len())?;
        memory.write(0, all_reduce.steps.as_bytes())?;
        memory.write(links_at, ends.as_bytes())?;
        let local = peers.iter().filter(|peer| peer.host.same_host(&me.host)).count();
        let wait = WaitPolicy::choose(local, context.driver().no_wake());
        let threads = if context.driver().is_software() { THREADS.0 } else { THREADS.1 };
        Ok(Schedules { wait, threads, all_reduce, agreed, memory, links_at })
    }

    /// The number of the kernel for a datatype, for [`crate::device::Kernels::launch`].
    pub fn kernel(&self, datatype: DataType) -> usize {
        kernel_number(self.agreed.proto, datatype)
    }

    /// How a call is cut into channels and chunks.
    pub fn split(&self, count: u64, datatype: DataType) -> Result<Geometry, Error> {
        Geometry::new(&Request {
            count,
            datatype,
            nchunks: self.all_reduce.nchunks,
            max_channels: self.agreed.channels,
            slot_bytes: u64::from(self.agreed.slot_bytes),
            proto: self.agreed.proto,
            min_channel_bytes: CHANNEL_BYTES,
        })
    }

    /// The work item of a channel, complete but for the user's buffers.
    pub fn work(&self, geometry: &Geometry, channel: u32, datatype: DataType, operator: &Operator) -> Work {
        let channel_bytes = size_of::<LinkEnd>() * self.all_reduce.links.len();
        let links_at = self.links_at + channel as usize * channel_bytes;
        Work {
            steps: self.memory.address(),
            links: self.memory.address() + links_at as u64,
            ..geometry.work(channel, &self.all_reduce, datatype, operator)
        }
    }

    /// The argument of a launch without work items yet. `flag` is the address of the abort word.
    pub fn arguments(&self, flag: u64) -> LaunchArgs {
        LaunchArgs {
            spin: self.wait.spin,
            yields: self.wait.yields,
            futex_ns: self.wait.futex_ns,
            abort: flag,
            error: flag + HostFlag::ERROR_OFFSET,
            flags: if self.wait.no_wake { launch_flag::NO_WAKE } else { 0 },
            ..LaunchArgs::default()
        }
    }
}

/// The ends of links as kernels read them.
fn link_ends(needs: &[LinkNeed], connections: &Connections) -> Result<Vec<LinkEnd>, Error> {
    let end = |need: &LinkNeed| {
        let at = connections.link(need.id).ok_or_else(|| Error::Internal(format!("link {:?} was not connected", need.id)))?;
        Ok(LinkEnd { slots: at.slots, posted: at.posted, consumed: at.consumed, slot_bytes: at.slot_bytes, ..LinkEnd::default() })
    };
    needs.iter().map(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_by_number() {
        let names = kernel_names(false);
        assert_eq!(names[kernel_number(Proto::Simple, DataType::Bfloat16)], "oxccl_simple_bf16");
        assert_eq!(names[kernel_number(Proto::Ll, DataType::Float8e5m2)], "oxccl_ll_f8e5m2");
        assert_eq!(names[kernel_number(Proto::Ll128, DataType::Float32)], "oxccl_ll128_f32");
        assert_eq!(names.len(), 36);
        assert_eq!(kernel_names(true), names[..24]);
    }
}
