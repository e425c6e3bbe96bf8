//! The life of communicators under trouble: states of those that do not block, aborts at any moment, forks, every way
//! for a process to end, many communicators one after another and side by side. What a call returns is in other tests;
//! here it is how long it takes, whether the others get on, and whether anything is left behind.
//!
//! ```text
//! cargo test --test lifecycle                        a seeded sample
//! OXCCL_SEED=7 cargo test --test lifecycle           another sample
//! OXCCL_LONG=1 cargo test --test lifecycle           everything: 10,000 cycles of each kind
//! ```

#[path = "../common/mod.rs"]
mod common;

mod abort;
mod api;
mod cycles;
mod exits;
mod forks;
mod nonblocking;
mod oversubscription;
mod stuck;
mod times;
