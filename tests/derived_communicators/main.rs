//! Communicators that are made from others: split, shrink, grow, several ids; and revoke (spec §6.3 to §6.5, §6.7).
//!
//! Every communicator is checked by its size, this rank's number, and an AllReduce whose result says which ranks of the
//! original communicator took part, and how often. Expected members come from the spec's rules, computed here.

#[path = "../common/mod.rs"]
mod common;

mod deaths;
mod grows;
mod api;
mod nonblocking;
mod revokes;
mod shares;
mod shrinks;
mod splits;
