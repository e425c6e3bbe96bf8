//! Hand-written system interfaces: shared memory, passing of file descriptors, host identity.

mod fdpass;
mod fork;
mod host;
mod shared;
pub mod sync;

pub use fdpass::{FdPost, FdPostName};
pub use fork::{ChildCloses, forks};
pub use host::{HostFacts, allowed_cpus};
pub use shared::{AddressRange, SharedFile, SharedMemory};
