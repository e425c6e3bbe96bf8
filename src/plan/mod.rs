//! What each rank sends, reduces and copies, in which order, and how a call's elements are split. Pure:
//! no socket, clock, thread, CUDA or environment.
//!
//! * [`call`] is what a call is about, [`layout`] is what kernels read, byte for byte as in `kernels/work.h`;
//! * [`schedule`] builds and checks a rank's steps, [`ring`] makes them for the ring algorithm;
//! * [`work`] splits a call over channels and chunks, [`operator`] turns a reduction into what kernels know;
//! * [`exec`] runs the schedules of all ranks symbolically, which is how they are proved.

pub mod call;
pub mod exec;
pub mod layout;
pub mod operator;
pub mod ring;
pub mod schedule;
pub mod work;

pub use layout::SLOTS;
pub use schedule::{LinkClass, LinkId};
