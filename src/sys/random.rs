//! Random numbers for ids, keys and names.

use rand::distr::{Distribution, StandardUniform};
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;
use rand::{Rng, RngExt};

/// A number of the system's generator. A generator of this thread's own would be gone in exit handlers, and have the
/// same state in a forked child.
///
/// # Panics
/// If the system has no generator.
pub fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    UnwrapErr(SysRng).random()
}

/// Bytes of the system's generator.
///
/// # Panics
/// As [`random`].
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    UnwrapErr(SysRng).fill_bytes(&mut bytes);
    bytes
}
