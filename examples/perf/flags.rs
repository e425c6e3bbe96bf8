//! How long two processes take to exchange a flag: each has a counter on a cache line of its own, writes
//! it, and waits for the other's. Everything that moves data between cores scales with it, and the same
//! machine can be in a near state (about 50 ns) or a far one (about 250 ns): a figure without it says little. On one
//! processor the same exchange is two hand-overs by yielding.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Tells a process that it is the other side, and on which processor; its stdin is the shared memory.
const PEER: &str = "OXCCL_PERF_FLAGS";
/// Exchanges that are timed together: between two processors, and on one.
const BATCH: (u64, u64) = (2000, 20);
/// Batches whose median is the answer.
const BATCHES: usize = 21;
/// Most time for all of it; a machine too busy for that gives no answer.
const LIMIT: Duration = Duration::from_secs(3);
/// Looks before the processor is offered to others.
const SPINS: u32 = 2000;
/// The counter's value that ends the other side.
const END: u64 = u64::MAX;
/// What [`PEER`] says of a side on the same processor, and of one on another.
const SAME: &str = "same";
const OTHER: &str = "other";

#[repr(align(64))]
struct Line(AtomicU64);

/// Two cache lines that two processes share.
struct Lines(*mut Line);

impl Lines {
    const BYTES: usize = 2 * size_of::<Line>();

    fn map(memory: impl AsFd) -> std::io::Result<Lines> {
        // SAFETY: a new mapping at an address that the system chooses; nothing of ours is replaced.
        let start = unsafe {
            mmap(std::ptr::null_mut(), Lines::BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, memory, 0)?
        };
        Ok(Lines(start.cast()))
    }

    fn counter(&self, side: usize) -> &AtomicU64 {
        // SAFETY: the mapping has two lines, is page aligned, and lives as long as self; atomics may be
        // shared with another process.
        unsafe { &(*self.0.add(side % 2)).0 }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference outlives self. Unmapping cannot fail for it.
        let _ = unsafe { munmap(self.0.cast(), Lines::BYTES) };
    }
}

/// Runs this process as the other side, if it is one; returns the exit code.
pub fn main_if_peer() -> Option<i32> {
    let (end, spins) = if std::env::var_os(PEER)? == SAME { (End::First, 0) } else { (End::Last, SPINS) };
    let Ok(lines) = Lines::map(std::io::stdin()) else { return Some(3) };
    let _pin = Pin::to(end);
    let until = Instant::now() + 2 * LIMIT;
    for next in 1.. {
        lines.counter(1).store(next, Ordering::Release);
        if !wait(lines.counter(0), next, spins, until) || lines.counter(0).load(Ordering::Relaxed) == END {
            break;
        }
    }
    Some(0)
}

/// Waits until a counter has come to a value; false when time is up.
fn wait(counter: &AtomicU64, value: u64, spins: u32, until: Instant) -> bool {
    let mut looks = 0u32;
    while counter.load(Ordering::Acquire) < value {
        looks += 1;
        if looks < spins {
            std::hint::spin_loop();
        } else if looks.is_multiple_of(64) && Instant::now() > until {
            return false;
        } else {
            std::thread::yield_now();
        }
    }
    true
}

/// Which of the processors that this process may use.
pub enum End {
    First,
    Last,
}

/// Keeps this thread on one processor, so that the two sides are never on the same one where there are two.
pub struct Pin(CpuSet);

impl Pin {
    /// None where the system does not allow it.
    pub fn to(end: End) -> Option<Pin> {
        let old = sched_getaffinity(None).ok()?;
        let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| old.is_set(*cpu));
        let cpu = match end {
            End::First => usable.next(),
            End::Last => usable.next_back(),
        };
        let mut one = CpuSet::new();
        one.set(cpu?);
        sched_setaffinity(None, &one).ok()?;
        Some(Pin(old))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // It was in force before, so the system takes it.
        let _ = sched_setaffinity(None, &self.0);
    }
}

struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Nanoseconds for an exchange, the median of [`BATCHES`]; `None` where it could not be measured in time.
pub fn exchange_ns() -> Option<f64> {
    let batches = exchange(OTHER, SPINS, BATCH.0)?;
    (batches.len() == BATCHES).then(|| batches[batches.len() / 2])
}

/// Nanoseconds until another process goes on where one yields its processor, the least of [`BATCHES`], since what
/// others do there only makes it longer; `None` where it could not be measured in time.
pub fn hand_over_ns() -> Option<f64> {
    Some(exchange(SAME, 0, BATCH.1)?.first()? / 2.0)
}

/// Nanoseconds of an exchange by batch, from the least to the most; fewer than [`BATCHES`] where time was up.
fn exchange(where_to: &str, spins: u32, batch: u64) -> Option<Vec<f64>> {
    let memory: OwnedFd = memfd_create("perf-flags", MemfdFlags::CLOEXEC).ok()?;
    let memory = File::from(memory);
    memory.set_len(Lines::BYTES as u64).ok()?;
    let lines = Lines::map(&memory).ok()?;
    let peer = Command::new(std::env::current_exe().ok()?)
        .env(PEER, where_to)
        .stdin(Stdio::from(memory))
        .stdout(Stdio::null())
        .spawn();
    let _peer = Peer(peer.ok()?);
    let _pin = Pin::to(End::First);
    let until = Instant::now() + LIMIT;
    let mut value = 0;
    let mut batches = Vec::new();
    'batches: for _ in 0..=BATCHES {
        let start = Instant::now();
        for _ in 0..batch {
            value += 1;
            lines.counter(0).store(value, Ordering::Release);
            if !wait(lines.counter(1), value, spins, until) {
                break 'batches;
            }
        }
        batches.push(start.elapsed().as_secs_f64() * 1e9 / batch as f64);
    }
    lines.counter(0).store(END, Ordering::Release);
    let mut batches = batches.split_off(batches.len().min(1)); // the other side was starting
    batches.sort_by(f64::total_cmp);
    Some(batches)
}

/// For people.
pub fn show(ns: Option<f64>) -> String {
    ns.map_or_else(|| "not measured (the machine is too busy)".into(), |ns| format!("{ns:.0} ns"))
}
