//! The protocol without sockets: units, garbage, and a simulated network.

mod simulation;
mod survivors;
mod units;
mod world;
