//! The interfaces of plug-ins. `network` is what a network is to this library, whoever implements it.

pub mod network;
