//! Memory that calls of a communicator use: what users have registered, and where work items lie that do not fit a
//! launch's argument. It knows no communicator.

mod items;
mod pieces;
mod registration;

pub use items::{ItemStore, Lent};
pub use pieces::PieceReply;
pub use registration::Registrations;
