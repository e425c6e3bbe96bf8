//! Links that are made when they are first used, on the software device: what they cost, that nobody waits for a peer's
//! call, what happens where a peer is stopped or dead, and memory that is given up for a while.

#[path = "../common/mod.rs"]
mod common;

mod bytes;
mod member;
mod messages;
mod shared;
mod suspend;
mod waits;
