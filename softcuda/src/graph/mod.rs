//! Stream capture and graphs.
//!
//! * `capture`: what streams are told while they capture becomes nodes of a graph
//! * `node`, `body`: a graph as the client sees and edits it
//! * `exec`, `lanes`: an instantiated graph, its update, and how a launch runs on streams of its own
//! * `object`: user objects, kept alive by graphs

pub mod body;
pub mod capture;
pub mod exec;
mod lanes;
mod node;
pub mod object;
#[cfg(test)]
mod tests;

use crate::config::Config;
use crate::event;
use crate::handles::{Kind, Table};
pub use body::Graph;
pub use capture::Captures;
pub use exec::{Exec, Refusal};
pub use node::{Kernel, Work, no_memory_nodes};
pub use object::UserObject;
use std::ops::Deref;

/// The driver's state, as far as graphs use it.
pub struct State {
    below: event::State,
    /// What there is of graphs.
    pub graphs: Graphs,
}

impl Deref for State {
    type Target = event::State;

    fn deref(&self) -> &event::State {
        &self.below
    }
}

impl State {
    /// With these settings.
    pub fn new(config: Config) -> State {
        State { graphs: Graphs::new(), below: event::State::new(config) }
    }
}

/// Everything about graphs that the driver holds.
pub struct Graphs {
    /// `CUgraph`
    pub graphs: Table<Graph>,
    /// `CUgraphNode`
    pub nodes: Table<body::Slot>,
    /// `CUgraphExec`
    pub execs: Table<Exec>,
    /// `CUuserObject`
    pub objects: Table<UserObject>,
    /// Captures that have begun and not ended.
    pub captures: Captures,
    /// Streams for the parts of graphs.
    pub lanes: lanes::Pool,
}

impl Graphs {
    /// None of anything.
    pub fn new() -> Graphs {
        Graphs {
            graphs: Table::new(Kind::Graph),
            nodes: Table::new(Kind::Node),
            execs: Table::new(Kind::Exec),
            objects: Table::new(Kind::UserObject),
            captures: Captures::default(),
            lanes: lanes::Pool::default(),
        }
    }

    /// Whether anything of a graph is being executed.
    pub fn is_busy(&self) -> bool {
        let mut busy = self.lanes.is_busy();
        self.execs.for_each(|_, exec| busy |= exec.is_busy());
        busy
    }
}
