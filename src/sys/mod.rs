//! Hand-written system interfaces: shared memory, letters with file descriptors, host identity, forks, signals.

mod descriptor;
mod fdpass;
mod fork;
mod host;
mod random;
mod shared;
mod signals;
pub mod sync;

pub use descriptor::off_standard;
pub use fdpass::{LETTER_MAX, Parcel, Post, PostName, Sent, is_open, too_many_files};
pub use fork::{ChildCloses, forks, is_forked};
pub use host::{HostFacts, allowed_cpus, loaded_file};
pub use random::random;
pub use shared::{AddressRange, SharedFile, SharedMemory};
pub use signals::{spawn, spawn_scoped, without_sigpipe};
