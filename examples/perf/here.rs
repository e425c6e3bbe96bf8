//! This host as a machine of `perf predict`: what its processors take to tell each other something, to give way to each
//! other, and to move data.

use std::hint;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use nccl::plan::timing::{BlockModel, MachineModel, SharingModel};

use crate::flags::{self, End, Pin};

/// Looks of a waiting kernel before it yields: with a processor for every rank and its worker, and without.
const SPINS: (u32, u32) = (2000, 20);
/// Slots of a link.
const SLOTS: usize = 8;
/// Bytes of a rank's buffer that are walked through at most, and at least for one size.
const MOST: u64 = 16 << 20;
const LEAST: usize = 8 << 20;
/// Peers whose links are used at most.
const PEERS: usize = 8;
/// A piece that takes so many times as long as usual was interrupted.
const INTERRUPTED: f64 = 8.0;
/// Looks before the processor is offered to others.
const LOOKS: u32 = 2000;

/// This host's software devices. Their memory is as quick as [`with_memory`] finds it.
///
/// # Errors
/// If the machine is too busy to measure.
pub fn machine(ranks: u32) -> Result<MachineModel, String> {
    let busy = "--machine here: the machine is too busy to measure";
    let (flag, sharing) = (flags::exchange_ns().ok_or(busy)?, sharing(ranks).ok_or(busy)?);
    let (shown, switch) = (flags::show(Some(flag)), sharing.switch * 1e3);
    println!("# flag exchange between two processes: {shown}; on one processor, a hand-over: {switch:.0} ns");
    Ok(MachineModel::software(ranks, sharing, flag / 1e3, 1.0))
}

/// How so many ranks share this host's processors; None where it is too busy to measure.
pub fn sharing(ranks: u32) -> Option<SharingModel> {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let spin = spin(if ranks * 2 <= processors { SPINS.0 } else { SPINS.1 });
    Some(SharingModel { processors, spin, switch: flags::hand_over_ns()? / 1e3 })
}

/// Microseconds of so many looks with a pause between them.
fn spin(looks: u32) -> f64 {
    let word = AtomicU32::new(0);
    let once = || {
        let start = Instant::now();
        for _ in 0..looks {
            let _ = hint::black_box(&word).load(Ordering::Acquire);
            hint::spin_loop();
        }
        start.elapsed().as_secs_f64() * 1e6
    };
    (0..101).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// The machine with memory as quick as it is for calls of so many bytes that move in pieces, each rank to all others.
pub fn with_memory(machine: &MachineModel, bytes: u64, piece: u64) -> MachineModel {
    let ranks = machine.ranks.div_ceil(machine.sharing.processors.max(1)) as usize;
    let rate = Memory::new(bytes, piece, ranks, machine.ranks as usize - 1).rate();
    MachineModel { block: BlockModel { rate, ..machine.block }, ..machine.clone() }
}

/// What two processors move for each other: each copies its input to the other one's slots, and adds what it finds in
/// its own ones to its input.
struct Memory {
    /// Elements of a buffer and of a piece, and buffers of each side.
    elements: usize,
    piece: usize,
    ranks: usize,
    slots: [Vec<Mutex<Vec<f32>>>; 2],
    /// By side: pieces that are in its slots, and those that it has taken from there.
    posted: [AtomicUsize; 2],
    consumed: [AtomicUsize; 2],
}

impl Memory {
    fn new(bytes: u64, piece: u64, ranks: usize, peers: usize) -> Memory {
        let elements = (bytes.min(MOST) as usize / 4).max(16);
        let piece = (piece as usize / 4).clamp(16, elements);
        let slots = || (0..SLOTS * ranks * peers.clamp(1, PEERS)).map(|_| Mutex::new(vec![0.0; piece])).collect();
        let counters = || [AtomicUsize::new(0), AtomicUsize::new(0)];
        Memory { elements, piece, ranks, slots: [slots(), slots()], posted: counters(), consumed: counters() }
    }

    /// Bytes that are read and written in a microsecond: the mean over pieces, but for those in which something else
    /// ran.
    fn rate(&self) -> f64 {
        let (own, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| self.side(0, End::Last));
            (self.side(1, End::First), other.join().unwrap_or_default())
        });
        let mut pieces = [own, other].concat();
        pieces.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let usual = pieces[pieces.len() / 2].0;
        let (time, bytes) = pieces
            .iter()
            .take_while(|(each, _)| *each < INTERRUPTED * usual)
            .fold((0.0, 0.0), |(time, bytes), (each, moved)| (time + each * moved, bytes + moved));
        bytes / time
    }

    /// One side; microseconds for a byte of each piece, and its bytes.
    fn side(&self, me: usize, end: End) -> Vec<(f64, f64)> {
        let _pin = Pin::to(end);
        let mut buffers = vec![(vec![1.0f32; self.elements], vec![0.0f32; self.elements]); self.ranks];
        let rounds = (LEAST / (4 * self.elements * self.ranks)).clamp(4, 200);
        let mut pieces = Vec::new();
        let mut piece = 0;
        for _ in 0..rounds {
            for at in (0..self.elements).step_by(self.piece) {
                for (input, output) in &mut buffers {
                    let range = at..(at + self.piece).min(self.elements);
                    let time = self.piece(me, piece, &input[range.clone()], &mut output[range.clone()]);
                    // Read and written: twice for the copy, and three times for the sum.
                    let bytes = (5 * 4 * range.len()) as f64;
                    pieces.push((time / bytes, bytes));
                    piece += 1;
                }
            }
        }
        // The first rounds touch the buffers.
        pieces.split_off(pieces.len() / 4)
    }

    /// Moves a piece; microseconds without waits.
    fn piece(&self, me: usize, piece: usize, input: &[f32], output: &mut [f32]) -> f64 {
        wait(&self.consumed[1 - me], (piece + 1).saturating_sub(self.slots[0].len()));
        let mut time = self.with_slot(1 - me, piece, |slot| slot[..input.len()].copy_from_slice(input));
        self.posted[1 - me].store(piece + 1, Ordering::Release);
        wait(&self.posted[me], piece + 1);
        time += self.with_slot(me, piece, |slot| {
            for ((output, input), slot) in output.iter_mut().zip(input).zip(slot.iter()) {
                *output = input + slot;
            }
        });
        self.consumed[me].store(piece + 1, Ordering::Release);
        time
    }

    /// Does something with a slot; how many microseconds it takes.
    fn with_slot(&self, side: usize, piece: usize, work: impl FnOnce(&mut [f32])) -> f64 {
        let mut slot =
            self.slots[side][piece % self.slots[side].len()].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let start = Instant::now();
        work(&mut slot);
        start.elapsed().as_secs_f64() * 1e6
    }
}

/// Waits until a counter has come so far.
fn wait(counter: &AtomicUsize, value: usize) {
    let mut looks = 0;
    while counter.load(Ordering::Acquire) < value {
        looks += 1;
        if looks < LOOKS { hint::spin_loop() } else { std::thread::yield_now() }
    }
}
