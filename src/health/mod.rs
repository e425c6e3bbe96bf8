//! Who is out of step: what every rank of a host has called lately, where all of them can read it.
//!
//! * [`record`] is a call as the flight recorder keeps it, and what a set of them says when they do not match. Pure;
//! * [`registered`] is memory that peers may map, and of which they learn from the same place;
//! * [`waiting`] is what there is to say of a rank that waits for others in vain. Pure;
//! * [`liveness`] is which ranks are there, and who leaves;
//! * [`cause`] is why a rank leaves, and [`reports`] what other ranks have told;
//! * [`flight_recorder`] is the memory that the ranks of a host share.

pub mod cause;
pub mod flight_recorder;
pub mod liveness;
pub mod record;
pub mod registered;
pub mod reports;
pub mod waiting;

pub use cause::FailureCause;
pub use flight_recorder::FlightRecorder;
pub use record::Record;
pub use registered::Registered;
pub use waiting::{Peer, Verdict, Waiting};
