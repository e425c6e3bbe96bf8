//! Locks and threads of what is tested under every interleaving: there (`tests/races`) the same names are those of a model.

pub use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
pub use std::thread;
