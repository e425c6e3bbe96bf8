//! Locks and threads of what is tested under every interleaving: there (`tests/interleavings`) the same names are
//! those of a model.

pub use parking_lot::{Condvar, Mutex, MutexGuard};
// These for what forked children look at: `parking_lot` has tables of all waiting threads, which a child may find
// locked.
pub use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::thread;
