//! What a launch needs besides work: which kernel, how many threads, how they wait.

use crate::device::{Driver, HostFlag};
use crate::plan::call::DataType;
use crate::plan::layout::{ERROR_CLAIM, ERROR_WORDS, LaunchArgs, Proto, launch_flag};
use crate::sys;

/// Threads of a block: one on the software device, where a block is a loop, and 512 on a GPU unless fewer are asked
/// for.
const THREADS: (u32, u32) = (1, 512);
/// Threads of a GPU's warp.
const WARP: i64 = 32;
/// The fewest threads of a block on a GPU.
const MIN_THREADS: i64 = 2 * WARP;
/// The longest sleep of a waiting host-image kernel, in nanoseconds.
const FUTEX_NS: u64 = 1_000_000;
/// Yields before a waiting kernel sleeps.
const YIELDS: u32 = 200;
/// Pauses before a waiting kernel yields: with a processor for every rank and its worker, and without.
const SPINS: (u32, u32) = (2000, 20);

// Kernels and the host's flag are told of an error report by each its own side.
const _: () = assert!(HostFlag::ERROR_WORDS == ERROR_WORDS && HostFlag::ERROR_CLAIM == ERROR_CLAIM);

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
    /// The policy for a number of ranks that share this process's processors.
    fn choose(local_ranks: usize, no_wake: bool) -> WaitPolicy {
        let roomy = local_ranks * 2 <= sys::allowed_cpus();
        WaitPolicy { spin: if roomy { SPINS.0 } else { SPINS.1 }, yields: YIELDS, futex_ns: FUTEX_NS, no_wake }
    }
}

/// What all launches of a communicator have in common.
#[derive(Clone, Copy, Debug)]
pub struct LaunchParameters {
    /// How its kernels wait.
    pub wait: WaitPolicy,
    /// Threads of a block.
    pub threads: u32,
    /// Whether the device is software: then blocks beyond the first need threads of their own.
    pub software: bool,
}

impl LaunchParameters {
    /// Those for a device of a driver, where so many ranks share this process's processors. `threads` is what
    /// `NCCL_NTHREADS` says.
    pub fn choose(driver: &Driver, local_ranks: usize, threads: i64) -> LaunchParameters {
        let software = driver.is_software();
        LaunchParameters {
            wait: WaitPolicy::choose(local_ranks, driver.no_wake()),
            threads: block_threads(software, threads),
            software,
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

/// Threads of a block, where `NCCL_NTHREADS` asks for some (below 1: for none in particular). What cannot be is told.
fn block_threads(software: bool, asked: i64) -> u32 {
    let (threads, why) = match asked {
        ..1 => return if software { THREADS.0 } else { THREADS.1 },
        _ if software => (THREADS.0, Some("a block of the software device has one thread".to_string())),
        _ if asked % WARP != 0 => (THREADS.1, Some(format!("must be a multiple of {WARP}"))),
        _ if asked > i64::from(THREADS.1) => (THREADS.1, Some(format!("maximum {}", THREADS.1))),
        _ if asked < MIN_THREADS => (MIN_THREADS as u32, Some(format!("minimum {MIN_THREADS}"))),
        _ => (asked as u32, None),
    };
    match why {
        Some(why) => log::info!(target: "GRAPH,ENV", "Invalid NCCL_NTHREADS {asked} ({why}): using {threads}"),
        None => log::info!(target: "GRAPH,ENV", "kernels have {threads} threads a block (NCCL_NTHREADS)"),
    }
    threads
}

/// The number of the kernel for messages of more than one protocol, for [`crate::device::Kernels::launch`].
pub const MESSAGES_KERNEL: usize = 0;

/// Names of all kernels that a device has: [`MESSAGES_KERNEL`], then those of collectives; see [`kernel_number`] for
/// their order.
pub fn kernel_names(software: bool) -> Vec<String> {
    let of_proto = |proto: &Proto| DataType::ALL.map(|datatype| proto.kernel_name(datatype));
    let collectives = Proto::of_device(software).iter().flat_map(of_proto);
    std::iter::once("oxccl_messages".to_string()).chain(collectives).collect()
}

/// The number of a kernel, for [`crate::device::Kernels::launch`]: by protocol, then by type.
pub fn kernel_number(proto: Proto, datatype: DataType) -> usize {
    1 + proto as usize * DataType::ALL.len() + datatype as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_threads_that_are_asked_for_as_far_as_can_be() {
        for (asked, threads) in
            [(-2, 512), (0, 512), (32, 64), (64, 64), (96, 96), (100, 512), (256, 256), (512, 512), (1024, 512)]
        {
            assert_eq!(block_threads(false, asked), threads, "{asked}");
        }
        assert_eq!((block_threads(true, -2), block_threads(true, 256)), (1, 1));
    }

    #[test]
    fn kernels_are_found_by_number() {
        let names = kernel_names(false);
        assert_eq!(names[kernel_number(Proto::Simple, DataType::Bfloat16)], "oxccl_simple_bf16");
        assert_eq!(names[kernel_number(Proto::Ll, DataType::Float8e5m2)], "oxccl_ll_f8e5m2");
        assert_eq!(names[kernel_number(Proto::Ll128, DataType::Float32)], "oxccl_ll128_f32");
        assert_eq!(names[MESSAGES_KERNEL], "oxccl_messages");
        assert_eq!(names.len(), 37);
        assert_eq!(kernel_names(true), names[..25]);
    }
}
