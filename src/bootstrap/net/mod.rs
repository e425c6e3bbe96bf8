//! Sockets, interfaces, the root's thread: what carries the protocol out.

pub mod cancel;
pub mod driver;
pub mod interface;
pub mod root;
pub mod socket;

#[cfg(test)]
mod tests;
