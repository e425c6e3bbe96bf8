//! What is to be derived.

use crate::bootstrap::{Participants, UniqueId};
use crate::comm::{Comm, Config};
use crate::error::Error;

/// What is to be derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DerivePlan {
    /// A communicator of all ranks that say the same colour.
    Split {
        /// None takes part without getting one.
        color: Option<i32>,
        /// The order of ranks.
        key: i32,
    },
    /// A communicator without some ranks, which do not take part.
    Shrink {
        /// Those that stay, in ascending order.
        ranks: Vec<u32>,
        /// What runs is told to leave first.
        abort: bool,
    },
    /// A communicator with more ranks.
    Grow {
        /// How many there will be.
        nranks: i32,
        /// Where they meet, if the caller knows it.
        id: Option<UniqueId>,
    },
}

impl DerivePlan {
    /// The C function.
    pub fn function(&self) -> &'static str {
        match self {
            DerivePlan::Split { .. } => "ncclCommSplit",
            DerivePlan::Shrink { .. } => "ncclCommShrink",
            DerivePlan::Grow { .. } => "ncclCommGrow",
        }
    }

    /// The ranks of the parent that take part.
    pub(super) fn participants(&self) -> Participants {
        match self {
            DerivePlan::Shrink { ranks, .. } => Participants::Some(ranks.clone()),
            DerivePlan::Split { .. } | DerivePlan::Grow { .. } => Participants::All,
        }
    }
    /// Whether a communicator that is derived like this shares its parent's resources.
    pub(super) fn shares(&self, parent: &Comm) -> bool {
        let asked = match self {
            DerivePlan::Split { .. } => parent.config.split_share,
            DerivePlan::Shrink { abort, .. } => parent.config.shrink_share && !abort,
            DerivePlan::Grow { .. } => false,
        };
        asked && !parent.state().is_stopped()
    }

    /// Whether a configuration fits the parent.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] for another network where resources are shared.
    pub fn check_config(&self, parent: &Comm, config: &Config) -> Result<(), Error> {
        if !self.shares(parent) {
            return Ok(());
        }
        let (ours, theirs) = (&parent.config.net_name, &config.net_name);
        let same = match (ours, theirs) {
            (Some(ours), Some(theirs)) => ours.eq_ignore_ascii_case(theirs),
            (_, None) => true,
            (None, Some(_)) => false,
        };
        if !same {
            let text = |name: &Option<String>| name.as_ref().map_or("none".to_string(), |name| format!("'{name}'"));
            return Err(Error::InvalidUsage(format!(
                "{} : netName {} differs from {} of the parent, with which resources are shared",
                self.function(),
                text(theirs),
                text(ours)
            )));
        }
        if parent.config.traffic_class != config.traffic_class {
            ::log::info!(target: "INIT", "{} : the traffic class of the parent is used", self.function());
        }
        Ok(())
    }
}
