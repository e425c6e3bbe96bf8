//! Hand-written system interfaces: shared memory, letters with file descriptors, host identity.

mod fdpass;
mod fork;
mod host;
mod shared;
pub mod sync;

pub use fdpass::{LETTER_MAX, Parcel, Post, PostName, Sent, is_open, too_many_files};
pub use fork::{ChildCloses, forks};
pub use host::{HostFacts, allowed_cpus, block_signals, loaded_file};
pub use shared::{AddressRange, SharedFile, SharedMemory};
