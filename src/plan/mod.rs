//! Placeholder.

pub mod call;

use serde::{Deserialize, Serialize};
/// Slots of a link.
pub const SLOTS: usize = 8;
/// A link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LinkId {
    /// sender
    pub from: u32,
    /// receiver
    pub to: u32,
    /// tag
    pub tag: u32,
}
