//! What each rank sends, reduces and copies, in which order, and how a call's elements are split. Pure:
//! no socket, clock, thread, CUDA or environment.
//!
//! * [`call`] is what a call is about, [`shape`] what its buffers look like, [`layout`] what kernels read, byte for
//!   byte as in `kernels/work.h`;
//! * [`algorithm`] knows which algorithms there are and what they are good for; [`ring`], [`tree`], [`direct`], [`pat`]
//!   and [`hierarchical`] make their steps, [`point_to_point`] those of sends and receives, [`zero_copy`] those that do
//!   without slots, [`schedule`] builds and checks them; [`offer`] is how ranks tell each other where their buffers
//!   are;
//! * [`wiring`] says which links a communicator has;
//! * [`work`] splits a call over channels and chunks, [`operator`] turns a reduction into what kernels know;
//! * [`exec`] runs the schedules of all ranks symbolically, which is how they are proved; [`timing`] says what they
//!   would take on a machine.

pub mod algorithm;
pub mod call;
pub mod direct;
pub mod exec;
pub mod hierarchical;
pub mod layout;
pub mod offer;
pub mod operator;
pub mod pat;
pub mod point_to_point;
pub mod ring;
pub mod schedule;
pub mod shape;
pub mod timing;
pub mod tree;
pub mod wiring;
pub mod work;
pub mod zero_copy;

pub use algorithm::{Algo, ScheduleKind};
pub use layout::SLOTS;
pub use schedule::{LinkClass, LinkId};
