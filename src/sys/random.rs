//! Random numbers for ids, keys and names.

use rand::RngExt;
use rand::distr::{Distribution, StandardUniform};
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;

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
