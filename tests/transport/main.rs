//! Links between all ranks, on the software device: whether both ends of each see the same memory, whether nothing of
//! it is used twice, and what it takes.

#[path = "../common/mod.rs"]
mod common;

mod links;
mod scale;
