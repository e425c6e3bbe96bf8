//! Communicators that are made from others: split, shrink, grow, several ids; and revoke.
//!
//! Every communicator is checked by its size, this rank's number, and an AllReduce whose result says which ranks of the
//! original communicator took part, and how often. Expected members come from NCCL's rules, computed here: ranks of one
//! colour are ordered by key, then by old rank; a shrink keeps the order; what grows keeps its ranks.

#[path = "../common/mod.rs"]
mod common;

mod api;
mod deaths;
mod grows;
mod nonblocking;
mod revokes;
mod shares;
mod shrinks;
mod splits;
