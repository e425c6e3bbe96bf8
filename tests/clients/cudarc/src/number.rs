//! Elements: what a rank puts in, and what must come out, exact in every type and every order of the terms.

use cudarc::driver::{DeviceRepr, ValidAsZeroBits};
use cudarc::nccl::safe::NcclType;

/// A type that NCCL and cudarc both know.
pub trait Number: NcclType + DeviceRepr + ValidAsZeroBits + Copy + PartialEq + std::fmt::Debug + Unpin {
    /// A small whole number, which every type holds.
    fn of(value: i64) -> Self;
}

impl Number for f32 {
    fn of(value: i64) -> f32 {
        value as f32
    }
}

impl Number for f64 {
    fn of(value: i64) -> f64 {
        value as f64
    }
}

impl Number for i8 {
    fn of(value: i64) -> i8 {
        value as i8
    }
}

impl Number for u8 {
    fn of(value: i64) -> u8 {
        value as u8
    }
}

impl Number for i32 {
    fn of(value: i64) -> i32 {
        value as i32
    }
}

impl Number for u32 {
    fn of(value: i64) -> u32 {
        value as u32
    }
}

impl Number for i64 {
    fn of(value: i64) -> i64 {
        value
    }
}

impl Number for u64 {
    fn of(value: i64) -> u64 {
        value as u64
    }
}

/// Element `i` of rank `rank`: 1 to 5, so that products and sums of a few ranks fit in 7 bits.
pub fn element(rank: usize, i: usize) -> i64 {
    ((rank + i) % 5) as i64 + 1
}

/// What rank `rank` puts in.
pub fn input<T: Number>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|i| T::of(element(rank, i))).collect()
}

/// What a reduction by `fold` of all ranks' elements gives.
pub fn reduced<T: Number>(ranks: usize, count: usize, fold: fn(i64, i64) -> i64) -> Vec<T> {
    let one = |i| (0..ranks).map(|rank| element(rank, i)).reduce(fold).map_or(T::of(0), T::of);
    (0..count).map(one).collect()
}

/// What all ranks put in, one after the other.
pub fn gathered<T: Number>(ranks: usize, count: usize) -> Vec<T> {
    (0..ranks).flat_map(|rank| input(rank, count)).collect()
}
