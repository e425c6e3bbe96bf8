//! Hand-written system interfaces: shared memory, messages with file descriptors, host identity, forks, signals.

mod descriptor;
mod fork;
mod holders;
mod host;
mod mailbox;
mod nic;
mod numa;
mod pci;
mod poller;
mod random;
mod shared;
mod signals;
pub mod sync;
pub mod tcp;

pub use descriptor::off_standard;
pub use fork::{ChildCloses, forks, is_forked};
pub use holders::{Hold, Holders};
pub use host::{HostFacts, allowed_cpus, loaded_file};
pub use mailbox::{Datagram, MESSAGE_MAX, Mailbox, MailboxName, Sent, can_reach, is_open, too_many_files};
pub use nic::{NicFacts, is_tunnel, unready_addresses};
pub use pci::PciPlace;
pub use poller::{Bell, Interest, Poller, Ready, wait_precisely};
pub use random::{random, random_bytes};
pub use shared::{AddressRange, SharedFile, SharedMemory, wake_sleeper};
pub use signals::{spawn, spawn_scoped, without_sigpipe};
pub use tcp::{PortRange, TcpListener, TcpStream};
