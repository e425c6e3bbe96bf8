//! The protocol without sockets: units, garbage, and a simulated network.

mod simulation;
mod units;
mod world;
