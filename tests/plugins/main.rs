//! Net plug-ins: those of these tests, of every version of the interface, and those that others have written.

#[path = "../common/mod.rs"]
mod common;

mod adapter;
mod choice;
mod communicators;
mod fabric;
mod plugin;
mod traffic;
