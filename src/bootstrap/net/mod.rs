//! Sockets, interfaces, and the sources of the event loop that carry the protocol out.

pub mod cancel;
pub mod connections;
pub mod driver;
pub mod interface;
pub mod root;
pub mod secure_layer;
pub mod shared;
pub mod socket;

#[cfg(test)]
mod tests;
