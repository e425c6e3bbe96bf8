//! The interfaces of plug-ins. `network` is what a network is to this library, whoever implements it; `net` makes one
//! of a net plug-in.

mod library;
mod logger;
pub mod net;
pub mod network;
