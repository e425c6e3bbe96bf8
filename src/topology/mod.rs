//! What schedules are compiled from. Pure: facts, and the seeds of tests, are arguments.
//!
//! * [`order`] puts ranks in a row;
//! * [`graph`] is the rows that the algorithms of a communicator follow, channel by channel, and which ranks share a
//!   host;
//! * [`hosts`] is such a row, host by host.

pub mod graph;
pub mod hosts;
pub mod order;

pub use graph::{Channel, Graph, MAX_PEERS};
pub use hosts::HostRows;
pub use order::Order;
