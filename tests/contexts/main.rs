//! The caller's streams and contexts: every kind of stream in every kind of context, whoever launches; calls that only
//! the thread that made them can enqueue; and communicators whose context is gone. The programs are in C, with the
//! default action of every signal.
//!
//! ```text
//! cargo test --test contexts                     a seeded sample
//! OXCCL_SEED=7 cargo test --test contexts        another sample
//! OXCCL_LONG=1 cargo test --test contexts        everything
//! ```

#[path = "../common/mod.rs"]
mod common;

mod flag;
mod gone;
mod streams;

/// What chooses the sample of a run; it is printed, so that the run can be repeated.
fn seed() -> u64 {
    let given = std::env::var("OXCCL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(rand::random);
    println!("OXCCL_SEED={seed}");
    seed
}
