//! The protocol without sockets: units, garbage, and a simulated network.

mod garbage;
mod scale;
mod several_roots;
mod simulation;
mod survivors;
mod units;
mod world;
