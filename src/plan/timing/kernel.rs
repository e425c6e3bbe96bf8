//! What the simulation knows of the kernels: how many loads they keep in flight, and what they do one after the other.

use super::super::layout::{MAX_FAN, Proto, SLOTS};
use super::machine::BlockModel;

/// The kernels, as they are or as they were.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelModel {
    /// Packs of 16 bytes that a thread of a copy has in flight, in the order in which loops are tried: the last is 1.
    pub copy: &'static [u32],
    /// The same of a reduction, of each source.
    pub reduce: &'static [u32],
    /// Sources of a reduction whose loads are in flight at the same time, besides what they are added to. The first
    /// source's are, with those of the next ones: nothing waits for them before.
    pub sources: usize,
    /// The next turn's links are waited for, and the last one's slots posted, while data move.
    pub overlaps: bool,
    /// System fences of a turn, one after the other.
    pub fences: u32,
    /// Slots of a link.
    pub slots: u32,
    /// Lines of LL that a thread has in flight.
    pub lines: u32,
    /// A rank's own data are loaded before the lines that they are added to are waited for.
    pub early: bool,
}

impl KernelModel {
    /// As the kernels of this version are (`scripts/sass-report.sh` counts loads in flight).
    pub const CURRENT: KernelModel =
        KernelModel { copy: &[8, 4, 2, 1], reduce: &[4, 2, 1], fences: 1, ..KernelModel::SERIAL };

    /// As kernels were before they were made for real GPUs.
    pub const SERIAL: KernelModel = KernelModel {
        copy: &[8, 1],
        reduce: &[4, 1],
        sources: 1,
        overlaps: false,
        fences: 2,
        slots: SLOTS as u32,
        lines: 4,
        early: false,
    };

    /// As NCCL describes its kernels: unrolled by 4, with a warp that waits and one that posts, and one fence a slot.
    pub const NCCL: KernelModel = KernelModel {
        copy: &[4, 1],
        reduce: &[4, 1],
        sources: MAX_FAN,
        overlaps: true,
        fences: 1,
        slots: 4,
        lines: 4,
        early: true,
    };

    /// Microseconds in which a block moves `bytes` bytes from sources that take so long to load each, to `ndst` places.
    pub fn move_time(&self, block: &BlockModel, proto: Proto, bytes: u64, loads: &[f64], ndst: usize) -> f64 {
        if bytes == 0 || loads.is_empty() {
            return 0.0;
        }
        let passes = bytes as f64 * (loads.len() + ndst) as f64 / block.rate;
        if block.threads == 0 {
            return passes;
        }
        let unrolls = if loads.len() == 1 { self.copy } else { self.reduce };
        let sweeps = match proto {
            Proto::Simple => sweeps(bytes.div_ceil(16 * u64::from(block.threads)), unrolls),
            Proto::Ll => bytes.div_ceil(8 * u64::from(block.threads) * u64::from(self.lines)),
            Proto::Ll128 => bytes.div_ceil(15 * u64::from(block.threads) * u64::from(self.lines)),
        };
        let each = if proto == Proto::Simple { self.sources_time(loads) } else { longest(loads) };
        passes.max(sweeps as f64 * each)
    }

    /// Microseconds until all sources of some packs are loaded.
    fn sources_time(&self, loads: &[f64]) -> f64 {
        let (first, others) = loads.split_at(loads.len().min(1 + self.sources));
        longest(first) + others.chunks(self.sources.max(1)).map(longest).sum::<f64>()
    }
}

fn longest(loads: &[f64]) -> f64 {
    loads.iter().copied().fold(0.0, f64::max)
}

/// How often a loop over so many packs of each thread goes round: unrolled as long as it fits.
fn sweeps(packs: u64, unrolls: &[u32]) -> u64 {
    let (mut left, mut rounds) = (packs, 0);
    for &unroll in unrolls {
        rounds += left / u64::from(unroll);
        left %= u64::from(unroll);
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_loaded_some_at_a_time() {
        let loads = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5];
        let time = |sources| KernelModel { sources, ..KernelModel::CURRENT }.sources_time(&loads);
        assert_eq!([1, 3, 7, MAX_FAN].map(time), [6.5, 2.5, 1.0, 1.0]);
        let one = |loads: &[f64]| KernelModel::CURRENT.sources_time(loads);
        assert_eq!((one(&[]), one(&[2.0]), one(&[2.0, 3.0])), (0.0, 2.0, 3.0));
    }

    #[test]
    fn loops_are_unrolled_as_far_as_they_fit() {
        assert_eq!(sweeps(8, &[8, 1]), 1);
        assert_eq!(sweeps(15, &[8, 1]), 8);
        assert_eq!(sweeps(15, &[8, 4, 2, 1]), 4);
        assert_eq!(sweeps(0, &[8, 1]), 0);
    }
}
