//! AllReduce through `libnccl.so.2` on the software device, in the ways that programs use it: processes,
//! threads, one thread with several devices; groups, streams, transports, the life of a communicator.
//! Results are compared bit for bit with an oracle that shares no code with the library.
//!
//! A seeded sample runs by default, everything with `OXCCL_LONG=1`; `OXCCL_SEED` picks another sample.

#[path = "../common/mod.rs"]
mod common;

mod bind;
mod data;
mod groups;
mod lifecycle;
mod nonblocking;
mod peer_access;
mod rank_placement;
mod streams;
mod transports;
mod values;
mod wake_ups;
