//! Bad input and bad surroundings: what users do by mistake and what machines do to them. Every case must
//! give a clear error on every rank that is there, leave nothing behind, and never hang.
//!
//! The tests call `libnccl.so.2` through its C interface in processes of their own, on the software device.
//! A rank counts what it holds before and after. The longer forms run with `OXCCL_LONG=1`.

mod common;

#[path = "bad_input/arguments.rs"]
mod arguments;
#[path = "bad_input/deaths.rs"]
mod deaths;
#[path = "bad_input/devices.rs"]
mod devices;
#[path = "bad_input/foreign.rs"]
mod foreign;
#[path = "bad_input/handles.rs"]
mod handles;
#[path = "bad_input/leaks.rs"]
mod leaks;
#[path = "bad_input/library.rs"]
mod library;
#[path = "bad_input/rank.rs"]
mod rank;
#[path = "bad_input/rendezvous.rs"]
mod rendezvous;
#[path = "bad_input/surroundings.rs"]
mod surroundings;
