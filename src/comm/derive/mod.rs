//! Communicators that are derived from another one: split, shrink, grow.
//!
//! The ranks of the new communicator agree over the parent's bootstrap, then meet as those of any other communicator
//! do:
//!
//! 1. Each says what it wants. From the answers all compute who belongs together.
//! 2. The first rank of each new communicator makes an id, and all hear it. (A grow has its id before.)
//! 3. Each checks in at the root of its new communicator, and says so. From here on the root notices the death of a
//!    rank; until here, the parent's bootstrap does.
//!
//! What goes wrong at a rank in between is what it says in the next of these rounds, so that nobody waits for it.

use std::sync::Arc;

use super::settings::Settings;
use super::{Comm, Config, InitRequest};
use crate::bootstrap::id::fnv1a;
use crate::bootstrap::{self, Cancel, Growth, RootHandle, UniqueId};
use crate::error::Error;
use crate::log::lines::OriginLine;

use agree::{DeriveOffer, DeriveRequest, meeting_place, members, read_id};
use rounds::Rounds;

mod agree;
mod derivations;
mod plan;
mod refuse;
mod rounds;

pub use plan::DerivePlan;

pub(super) use derivations::Derivations;

/// Where a derived communicator comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its own hash, which follows from its parent's.
    pub hash: u64,
    /// What log lines say.
    pub line: OriginLine,
}

/// Takes the handle of a new communicator.
pub type Publish = Box<dyn FnOnce(usize) + Send>;

/// A communicator that is to be derived.
pub struct Derivation {
    parent: Arc<Comm>,
    plan: DerivePlan,
    config: Config,
    cancel: Cancel,
    /// The new communicator, where it is there before its ranks have met.
    child: Option<Arc<Comm>>,
    /// Nobody has its handle yet.
    publish: Option<Publish>,
}

impl Derivation {
    /// Something to be derived; `publish` takes the handle of the new communicator once it is there.
    ///
    /// # Errors
    /// `System` if there is no descriptor left.
    pub fn new(parent: Arc<Comm>, plan: DerivePlan, config: Config, publish: Publish) -> Result<Derivation, Error> {
        Ok(Derivation { parent, plan, config, cancel: Cancel::new(), child: None, publish: Some(publish) })
    }

    /// Makes the new communicator now, before its ranks meet; it has a handle from here on. For a grow, which knows how
    /// many ranks there will be.
    ///
    /// # Errors
    /// As [`Comm::create`].
    pub fn make_child(&mut self) -> Result<Arc<Comm>, Error> {
        let DerivePlan::Grow { nranks, .. } = self.plan else {
            return Err(Error::Internal("only a grow knows its ranks before they meet".to_string()));
        };
        let child = Comm::create(self.request((nranks, self.parent.rank()), None)?)?;
        self.child = Some(child.clone());
        Ok(child)
    }

    /// Hands the handle out at once, so that the new communicator is polled.
    pub fn publish_now(&mut self) {
        if let (Some(publish), Some(child)) = (self.publish.take(), &self.child) {
            publish(child.handle());
        }
    }

    /// The C function.
    pub fn function(&self) -> &'static str {
        self.plan.function()
    }

    /// The communicator that it is derived from.
    pub fn parent(&self) -> &Arc<Comm> {
        &self.parent
    }

    /// What ends its waits, and the creation of the new communicator.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// What is derived works in its parent's context.
    fn request(&self, (nranks, rank): (i32, i32), origin: Option<Origin>) -> Result<InitRequest, Error> {
        Ok(InitRequest {
            function: self.plan.function(),
            nranks,
            rank,
            id: None,
            config: self.config.clone(),
            always_blocking: false,
            context: Some(self.parent.device.context.again()?),
            origin,
            cancel: Some(self.cancel.clone()),
        })
    }

    /// Does it, and waits for the ranks that take part.
    ///
    /// # Errors
    /// The first failure of any rank, of which the others hear; nothing is left of the new communicator then, and the
    /// parent is as it was, unless a rank of it has ended.
    pub fn carry_out(mut self) -> Result<(), Error> {
        crate::log::set_thread_device(self.parent.device.number);
        let parent = self.parent.clone();
        let _deriving = parent.derivations.derive(&self.cancel);
        if parent.cancel.fired() {
            // It was aborted before this was noted.
            self.cancel.fire();
        }
        match (self.child.take(), &self.plan) {
            (Some(child), _) => self.grow(&child),
            (None, DerivePlan::Shrink { abort: true, .. }) => {
                if let Err(error) = parent.stop_for_shrink() {
                    ::log::warn!("comm {:#x}: {error}", parent.handle());
                }
                self.derive()
            }
            (None, _) => self.derive(),
        }
    }

    /// This rank takes no part: the others hear why.
    pub fn drop_for(self, error: &Error) {
        self.parent.refuse(&self.plan, error);
        if let Some(child) = &self.child {
            // New ranks hear it from the root.
            drop(self.parent.derivations.take_growth());
            child.drop_unmade(self.publish.is_some(), error);
        }
    }

    /// A split or a shrink.
    fn derive(&mut self) -> Result<(), Error> {
        let parent = self.parent.clone();
        drop(parent.derivations.take_growth());
        let (mut rounds, offers) = self.first_round(&parent, parent.derivations.next())?;
        let count = parent.derivations.agree(offers.iter().map(|(_, (count, _))| *count));
        let members = members(&offers, parent.identity.rank)?;
        let mut root = None;
        let made = match members.first() == Some(&parent.identity.rank) {
            true => make_root().map(|made| Some(root.insert(made).id().0.to_vec())),
            false => Ok(None),
        };
        let words = rounds.round(match &made {
            Ok(id) => Ok(id.clone()),
            Err(error) => Err(error),
        })?;
        let Some(place) = members.iter().position(|rank| *rank == parent.identity.rank) else {
            // Without a colour of its own: the exchanges of all must stay in step.
            return rounds.arrive(&[], Ok(()));
        };
        let child = read_id(&members, words, made.err()).and_then(|id| {
            let place = (members.len() as i32, place as i32);
            self.request(place, Some(self.origin(count))).and_then(Comm::create).map(|child| (child, id))
        });
        let (child, id) = match child {
            Ok(made) => made,
            Err(error) => return rounds.arrive(&members, Err(&error)),
        };
        let build = || child.build(&[id], |outcome| rounds.arrive(&members, outcome));
        child.come_to_life(false, || build().map_err(|error| self.of_child(error, members[0])))?;
        root.into_iter().for_each(RootHandle::release);
        if self.shares() {
            parent.adopt(&child);
        }
        self.publish.take().into_iter().for_each(|publish| publish(child.handle()));
        Ok(())
    }

    /// A grow, of a rank that exists.
    fn grow(&mut self, child: &Arc<Comm>) -> Result<(), Error> {
        let parent = self.parent.clone();
        let root = parent.derivations.take_growth();
        let own = root.as_ref().map(|root| *root.id());
        if let DerivePlan::Grow { id, .. } = &mut self.plan {
            *id = id.or(own);
        }
        let count = parent.derivations.next();
        let mut met = None;
        child.come_to_life(self.publish.is_none(), || {
            let (rounds, offers) = self.first_round(&parent, count)?;
            parent.derivations.agree(offers.iter().map(|(_, (count, _))| *count));
            let id = *met.insert(meeting_place(&offers)?);
            child.identity.set_hash(id.hash64());
            let members: Vec<u32> = (0..parent.identity.nranks).collect();
            child.build(&[id], |outcome| rounds.arrive(&members, outcome))
        })?;
        // A root that nobody has come to ends here.
        root.filter(|root| Some(*root.id()) == met).into_iter().for_each(RootHandle::release);
        self.publish.take().into_iter().for_each(|publish| publish(child.handle()));
        Ok(())
    }

    /// What all ranks want; `count` is what this rank has derived before.
    fn first_round<'a>(&self, parent: &'a Comm, count: u32) -> Result<(Rounds<'a>, Vec<(u32, DeriveOffer)>), Error> {
        let mut rounds = Rounds::begin(parent, &self.plan, &self.cancel)?;
        let request = self.derive_request(count);
        let said = rounds.round::<DeriveOffer>(Ok((count, request.clone())))?;
        let offers: Vec<(u32, DeriveOffer)> =
            said.into_iter().map(|(rank, said)| said.map(|offer| (rank, offer))).collect::<Result<_, Error>>()?;
        if let Some((rank, (_, other))) = offers.iter().find(|(_, (_, other))| other.name() != request.name()) {
            let (me, ours, theirs) = (parent.identity.rank, request.name(), other.name());
            return Err(Error::InvalidUsage(format!("rank {rank} calls {theirs} while rank {me} calls {ours}")));
        }
        Ok((rounds, offers))
    }

    fn derive_request(&self, count: u32) -> DeriveRequest {
        match &self.plan {
            DerivePlan::Split { color, key } => DeriveRequest::Split { color: *color, key: *key },
            DerivePlan::Shrink { ranks, .. } => DeriveRequest::Shrink { ranks: ranks.clone() },
            DerivePlan::Grow { nranks, id } => {
                let now = Growth { parent: self.parent.hash(), count };
                let fresh = |id: &UniqueId| bootstrap::growth(id) == Ok(Some(now));
                DeriveRequest::Grow { nranks: *nranks, id: id.map(|id| (id.0.to_vec(), fresh(&id))) }
            }
        }
    }

    /// The new communicator's name among all that can be derived from its parent.
    fn origin(&self, count: u32) -> Origin {
        let (color, key, kind) = match &self.plan {
            DerivePlan::Split { color, key } => (color.unwrap_or_default(), *key, 0u8),
            _ => (0, self.parent.rank(), 1),
        };
        let name =
            [&self.parent.hash().to_le_bytes()[..], &count.to_le_bytes(), &color.to_le_bytes(), &[kind]].concat();
        Origin { hash: fnv1a(&name), line: OriginLine { parent: self.parent.handle(), count, color, key } }
    }

    /// An error of the new communicator, in which ranks have other numbers; its root is on a rank of the parent.
    fn of_child(&self, error: Error, root: u32) -> Error {
        match error {
            Error::Remote { rank: None, text } => {
                let text = format!("{} : {text}; that was rank {root} of the parent", self.function());
                Error::Remote { rank: Some(root), text }
            }
            other => other,
        }
    }

    /// Whether parent and child end together when one of them is aborted.
    fn shares(&self) -> bool {
        self.plan.shares(&self.parent)
    }
}

fn make_root() -> Result<RootHandle, Error> {
    Settings::read().and_then(|settings| bootstrap::create_root(&settings.net, None))
}
