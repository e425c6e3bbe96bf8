//! All use of CUDA: the driver, contexts, memory, events, captures, kernels.
//!
//! Objects free what they own on drop. Every method that may change the calling thread's current
//! context restores it before it returns.

mod allocation;
mod cache;
mod capture;
mod context;
mod driver;
mod embedded;
mod event;
pub mod gate;
mod image;
mod ledger;
mod memory;
mod nvml;
pub mod nvrtc;
mod physical;
mod watched;

pub use allocation::{Allocation, FreedMemory, allocate, buffer_id, free, is_given};
pub use capture::{Capture, Kept};
pub use context::{Context, ContextKey, DeviceFacts, Entered, device_count};
pub use driver::{ALREADY_MAPPED, Driver, IpcMemHandle, OUT_OF_MEMORY};
pub use event::Event;
pub use image::{KernelFacts, Kernels, Stream};
pub use ledger::{Charge, Ledger, Use};
pub use memory::{DeviceMemory, HostFlag, HostMemory, PeerMemory, RegisteredMemory};
pub use physical::{ImportedSegment, PhysicalMemory, let_reach};
pub use watched::{DeviceCopy, WatchedStream};
