//! The caller's streams and contexts: every kind of stream in every kind of context, whoever launches; calls that only the
//! thread that made them can enqueue; and communicators whose context is gone. The programs are in C, with the default action
//! of every signal.
//!
//! ```text
//! cargo test --test contexts                     a seeded sample
//! OXCCL_SEED=7 cargo test --test contexts        another sample
//! OXCCL_LONG=1 cargo test --test contexts        everything
//! ```

#[path = "../common/mod.rs"]
mod common;

mod gone;
mod streams;
