//! One rank's way through the rounds of a derivation.

use parking_lot::MutexGuard;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::DerivePlan;
use crate::bootstrap::{Bootstrap, Cancel, Participants};
use crate::comm::Comm;
use crate::error::Error;

/// What a rank of the parent says in a round, or why it cannot go on.
pub(super) type Said<T> = (u32, Result<T, Error>);

/// One rank's way through the rounds. The parent's bootstrap is nobody else's meanwhile.
pub(super) struct Rounds<'a> {
    bootstrap: MutexGuard<'a, Option<Bootstrap>>,
    participants: Participants,
    /// The ranks that take part, in the order of their blocks.
    ranks: Vec<u32>,
    me: u32,
    function: &'static str,
}

impl<'a> Rounds<'a> {
    /// Takes the parent's bootstrap; `cancel` ends its waits.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the parent has ended, and what the bootstrap gives.
    pub(super) fn begin(parent: &'a Comm, plan: &DerivePlan, cancel: &Cancel) -> Result<Rounds<'a>, Error> {
        let gone = || Error::InvalidArgument(format!("{} : the communicator has ended", plan.function()));
        let mut bootstrap = parent.parts.get().ok_or_else(gone)?.bootstrap.lock();
        let participants = plan.participants();
        let open = bootstrap.as_mut().ok_or_else(gone)?;
        open.watch(Some(cancel)).inspect_err(|error| open.refuse_in(&participants, error))?;
        let ranks = match &participants {
            Participants::All => (0..parent.identity.nranks).collect(),
            Participants::Some(ranks) => ranks.clone(),
        };
        Ok(Rounds { bootstrap, participants, ranks, me: parent.identity.rank, function: plan.function() })
    }

    /// What each rank says, or why it cannot go on; with its rank in the parent.
    pub(super) fn round<T: Serialize + DeserializeOwned>(
        &mut self,
        own: Result<T, &Error>,
    ) -> Result<Vec<Said<T>>, Error> {
        let (me, function) = (self.me, self.function);
        let block = encode(&own.map_err(|error| format!("{function} : rank {me} cannot go on: {error}")))?;
        let Some(bootstrap) = self.bootstrap.as_mut() else {
            return Err(Error::Internal("a communicator lost its bootstrap".to_string()));
        };
        let blocks = bootstrap.gather_in(&self.participants, &block)?;
        let read = |(rank, block): (&u32, Vec<u8>)| {
            let said: Result<T, String> = postcard::from_bytes(&block).map_err(|_| other_call(*rank, function))?;
            Ok((*rank, said.map_err(|text| Error::Remote { rank: Some(*rank), text })))
        };
        self.ranks.iter().zip(blocks).map(read).collect()
    }

    /// The last round: this rank has checked in, or has not. All of `members` must have.
    pub(super) fn arrive(mut self, members: &[u32], outcome: Result<(), &Error>) -> Result<(), Error> {
        let said = self.round(outcome);
        outcome.map_err(Error::clone)?;
        let failed = said?.into_iter().find_map(|(rank, said)| said.err().filter(|_| members.contains(&rank)));
        failed.map_or(Ok(()), Err)
    }
}

impl Drop for Rounds<'_> {
    fn drop(&mut self) {
        if let Some(bootstrap) = self.bootstrap.as_mut() {
            let _ = bootstrap.watch(None);
        }
    }
}

/// A rank takes part in something else.
pub(super) fn other_call(rank: u32, function: &str) -> Error {
    Error::InvalidUsage(format!("rank {rank} does something else while other ranks call {function}"))
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(value).map_err(|error| Error::Internal(format!("encoding: {error}")))
}
