//! What the library must do, checked from the C interface and the specification alone: every collective, type,
//! operator, number of ranks, size, alignment, algorithm, protocol and transport; groups, point to point, random
//! programs, calls that do not match, graphs. Expected values come from `common::contract` and `common::oracle`.
//!
//! ```text
//! cargo test --test conformance                      a seeded sample
//! OXCCL_SEED=7 cargo test --test conformance         another sample
//! OXCCL_LONG=1 cargo test --test conformance         everything
//! OXCCL_LONG=1 OXCCL_PART=2/6 cargo test --test conformance collectives    the second sixth of the matrix
//! ```
//!
//! What the library does not do yet is listed in `built.rs` and left out.

#[path = "../common/mod.rs"]
mod common;

mod built;
mod case;
mod collectives;
mod configs;
mod graph_lifetimes;
mod graphs;
mod groups;
mod hosts;
mod huge;
mod launch_order;
mod member;
mod messages;
mod million;
mod mismatch;
mod operators;
mod point_to_point;
mod programs;
mod ranges;
mod registered;
mod setup;
