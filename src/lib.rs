//! oxccl: collective communication for GPUs, a drop-in replacement for NVIDIA's `libnccl.so.2`.
//!
//! This file is the map of the crate; the logic lives in the rooms. Imports point downwards only, in
//! the order in which the rooms are listed here (`tests/tidy.rs` checks it). `ARCHITECTURE.md` says
//! what each room is for and who may know whom.
#![deny(unsafe_code)]

// The C boundary: every exported symbol. Pointers and C integers end here.
#[allow(unsafe_code)]
pub mod abi;
// What ncclGroupStart and ncclGroupEnd collect, and in which order it is carried out.
pub mod group;
// From collected calls to kernel launches.
#[allow(unsafe_code)]
pub mod launch;
// A communicator's life.
#[allow(unsafe_code)]
pub mod comm;
// Memory that calls of a communicator use: registered, and of work items.
pub mod memory;
// Who is alive, late or out of step.
pub mod health;
// How memory that peers share is made, exported and mapped.
#[allow(unsafe_code)]
pub mod transport;
// The interfaces of plug-ins, and what a network is.
#[allow(unsafe_code)]
pub mod plugin;
// Rendezvous: protocol (pure) and its sockets.
pub mod bootstrap;
// A rank's schedules on its device: steps, ends of links, and how calls are cut into work.
pub mod schedules;
// Which algorithm, protocol and how many channels a call gets; the seam of tuner plug-ins. Pure.
pub mod tuning;
// Schedules as data, the layouts that kernels read, the symbolic executor. Pure.
pub mod plan;
// The graph that schedules are compiled from. Pure.
pub mod topology;
// The process's event loop: one thread that serves registered sources and knows none of them.
pub mod proxy;
// Who is at the other end of a connection, and how what goes over it is protected. Pure.
pub mod secure;
// All use of CUDA.
#[allow(unsafe_code)]
pub mod device;
// One table of every variable.
pub mod params;
// NCCL's log format on the `log` facade.
pub mod log;
// Hand-written system interfaces: shared memory, fd passing, forks, threads and signals, host identity.
#[allow(unsafe_code)]
pub mod sys;
// One error type, and the one function that maps it to a result code.
pub mod error;
