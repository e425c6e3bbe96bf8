//! Ranks on hosts of the tests' own (network namespaces): which addresses they use and tell others, what the log says
//! of it, what somebody between them sees, and what strangers at their listeners do to them, which is nothing.

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod deaths;
mod encryption;
mod failover;
mod gateway;
mod host_ids;
mod interfaces;
mod logged;
mod member;
mod strangers;
