//! Communicators that are derived from another one: split, shrink, grow (spec §6.3 to §6.5).
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

use parking_lot::MutexGuard;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::settings::Settings;
use super::{Comm, Config, InitRequest, Parts, State};
use crate::bootstrap::id::fnv1a;
use crate::bootstrap::protocol::ranks;
use crate::bootstrap::{self, Bootstrap, Cancel, Growth, Participants, RootHandle, UniqueId};
use crate::error::Error;
use crate::log::lines::OriginLine;

#[cfg(test)]
mod tests;

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

/// What is to be derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
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

impl Plan {
    /// The C function.
    pub fn function(&self) -> &'static str {
        match self {
            Plan::Split { .. } => "ncclCommSplit",
            Plan::Shrink { .. } => "ncclCommShrink",
            Plan::Grow { .. } => "ncclCommGrow",
        }
    }

    fn participants(&self) -> Participants {
        match self {
            Plan::Shrink { ranks, .. } => Participants::Some(ranks.clone()),
            Plan::Split { .. } | Plan::Grow { .. } => Participants::All,
        }
    }
}

/// A communicator that is to be derived.
pub struct Derivation {
    parent: Arc<Comm>,
    plan: Plan,
    config: Config,
    cancel: Cancel,
    /// The new communicator, where it is there before its ranks have met.
    child: Option<Arc<Comm>>,
    /// Nobody has its handle yet.
    publish: Option<Publish>,
}

/// What each rank says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum DeriveRequest {
    Split { color: Option<i32>, key: i32 },
    Shrink { ranks: Vec<u32> },
    Grow { nranks: i32, id: Option<(Vec<u8>, bool)> },
}

impl DeriveRequest {
    fn name(&self) -> &'static str {
        match self {
            DeriveRequest::Split { .. } => "ncclCommSplit",
            DeriveRequest::Shrink { .. } => "ncclCommShrink",
            DeriveRequest::Grow { .. } => "ncclCommGrow",
        }
    }
}

/// The same with the number of communicators that the rank has derived before.
type Offer = (u32, DeriveRequest);

/// What a rank of the parent says in a round, or why it cannot go on.
type Said<T> = (u32, Result<T, Error>);

/// One rank's way through the rounds. The parent's bootstrap is nobody else's meanwhile.
struct Rounds<'a> {
    bootstrap: MutexGuard<'a, Option<Bootstrap>>,
    participants: Participants,
    /// The ranks that take part, in the order of their blocks.
    ranks: Vec<u32>,
    me: u32,
    function: &'static str,
}

impl<'a> Rounds<'a> {
    fn begin(parent: &'a Comm, plan: &Plan, cancel: &Cancel) -> Result<Rounds<'a>, Error> {
        let gone = || Error::InvalidArgument(format!("{} : the communicator has ended", plan.function()));
        let mut bootstrap = parent.parts.get().ok_or_else(gone)?.bootstrap.lock();
        let participants = plan.participants();
        let open = bootstrap.as_mut().ok_or_else(gone)?;
        open.watch(Some(cancel)).inspect_err(|error| open.refuse_in(&participants, error))?;
        let ranks = match &participants {
            Participants::All => (0..parent.nranks).collect(),
            Participants::Some(ranks) => ranks.clone(),
        };
        Ok(Rounds { bootstrap, participants, ranks, me: parent.rank, function: plan.function() })
    }

    /// What each rank says, or why it cannot go on; with its rank in the parent.
    fn round<T: Serialize + DeserializeOwned>(&mut self, own: Result<T, &Error>) -> Result<Vec<Said<T>>, Error> {
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
    fn arrive(mut self, members: &[u32], outcome: Result<(), &Error>) -> Result<(), Error> {
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

fn other_call(rank: u32, function: &str) -> Error {
    Error::InvalidUsage(format!("rank {rank} does something else while other ranks call {function}"))
}

impl Derivation {
    /// Something to be derived; `publish` takes the handle of the new communicator once it is there.
    ///
    /// # Errors
    /// `System` if there is no descriptor left.
    pub fn new(parent: Arc<Comm>, plan: Plan, config: Config, publish: Publish) -> Result<Derivation, Error> {
        Ok(Derivation { parent, plan, config, cancel: Cancel::new(), child: None, publish: Some(publish) })
    }

    /// Makes the new communicator now, before its ranks meet; it has a handle from here on. For a grow, which knows how
    /// many ranks there will be.
    ///
    /// # Errors
    /// As [`Comm::create`].
    pub fn make_child(&mut self) -> Result<Arc<Comm>, Error> {
        let Plan::Grow { nranks, .. } = self.plan else {
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
            context: Some(self.parent.context.again()?),
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
        crate::log::set_thread_device(self.parent.device);
        let parent = self.parent.clone();
        let _deriving = parent.derivations.derive(&self.cancel);
        if parent.cancel.fired() {
            // It was aborted before this was noted.
            self.cancel.fire();
        }
        match (self.child.take(), &self.plan) {
            (Some(child), _) => self.grow(&child),
            (None, Plan::Shrink { abort: true, .. }) => {
                if let Err(error) = parent.halt() {
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
        let members = members(&offers, parent.rank)?;
        let mut root = None;
        let made = match members.first() == Some(&parent.rank) {
            true => make_root().map(|made| Some(root.insert(made).id().0.to_vec())),
            false => Ok(None),
        };
        let words = rounds.round(match &made {
            Ok(id) => Ok(id.clone()),
            Err(error) => Err(error),
        })?;
        let Some(place) = members.iter().position(|rank| *rank == parent.rank) else {
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
        let build = || child.build(&id, |outcome| rounds.arrive(&members, outcome));
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
        if let Plan::Grow { id, .. } = &mut self.plan {
            *id = id.or(own);
        }
        let count = parent.derivations.next();
        let mut met = None;
        child.come_to_life(self.publish.is_none(), || {
            let (rounds, offers) = self.first_round(&parent, count)?;
            parent.derivations.agree(offers.iter().map(|(_, (count, _))| *count));
            let id = *met.insert(meeting_place(&offers)?);
            let _ = child.hash.set(id.hash64());
            let members: Vec<u32> = (0..parent.nranks).collect();
            child.build(&id, |outcome| rounds.arrive(&members, outcome))
        })?;
        // A root that nobody has come to ends here.
        root.filter(|root| Some(*root.id()) == met).into_iter().for_each(RootHandle::release);
        self.publish.take().into_iter().for_each(|publish| publish(child.handle()));
        Ok(())
    }

    /// What all ranks want; `count` is what this rank has derived before.
    fn first_round<'a>(&self, parent: &'a Comm, count: u32) -> Result<(Rounds<'a>, Vec<(u32, Offer)>), Error> {
        let mut rounds = Rounds::begin(parent, &self.plan, &self.cancel)?;
        let request = self.derive_request(count);
        let said = rounds.round::<Offer>(Ok((count, request.clone())))?;
        let offers: Vec<(u32, Offer)> =
            said.into_iter().map(|(rank, said)| said.map(|offer| (rank, offer))).collect::<Result<_, Error>>()?;
        if let Some((rank, (_, other))) = offers.iter().find(|(_, (_, other))| other.name() != request.name()) {
            let (me, ours, theirs) = (parent.rank, request.name(), other.name());
            return Err(Error::InvalidUsage(format!("rank {rank} calls {theirs} while rank {me} calls {ours}")));
        }
        Ok((rounds, offers))
    }

    fn derive_request(&self, count: u32) -> DeriveRequest {
        match &self.plan {
            Plan::Split { color, key } => DeriveRequest::Split { color: *color, key: *key },
            Plan::Shrink { ranks, .. } => DeriveRequest::Shrink { ranks: ranks.clone() },
            Plan::Grow { nranks, id } => {
                let now = Growth { parent: self.parent.hash(), count };
                let fresh = |id: &UniqueId| bootstrap::growth(id) == Ok(Some(now));
                DeriveRequest::Grow { nranks: *nranks, id: id.map(|id| (id.0.to_vec(), fresh(&id))) }
            }
        }
    }

    /// The new communicator's name among all that can be derived from its parent.
    fn origin(&self, count: u32) -> Origin {
        let (color, key, kind) = match &self.plan {
            Plan::Split { color, key } => (color.unwrap_or_default(), *key, 0u8),
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

impl Plan {
    /// Whether a communicator that is derived like this shares its parent's resources (spec §6.3, §6.4).
    fn shares(&self, parent: &Comm) -> bool {
        let asked = match self {
            Plan::Split { .. } => parent.config.split_share,
            Plan::Shrink { abort, .. } => parent.config.shrink_share && !abort,
            Plan::Grow { .. } => false,
        };
        asked && !parent.is_halted()
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

impl Comm {
    /// This rank takes no part in a derivation: others that wait for it hear why.
    pub fn refuse(&self, plan: &Plan, error: &Error) {
        let Some(parts) = self.parts.get().filter(|_| self.nranks > 1 && !self.is_inherited()) else { return };
        drop(self.derivations.take_growth());
        self.derivations.next();
        self.tell_refusal(parts, plan, error);
    }

    /// The same for a call with a wrong argument, or one that is not allowed now. One that comes too early is no part
    /// of what the ranks do together.
    pub fn refuse_call(&self, plan: &Plan, error: &Error) {
        if !matches!(*self.state.lock(), State::Busy | State::Ended) {
            self.refuse(plan, error);
        }
    }

    /// Whether something can be derived now. A shrink that stops what runs is possible where something has failed.
    ///
    /// # Errors
    /// As [`Comm::check_ready`].
    pub fn check_derivable(&self, plan: &Plan) -> Result<(), Error> {
        match plan {
            Plan::Shrink { abort: true, .. } if self.is_blocking() => self.check_settled(),
            _ => self.check_ready(),
        }
    }

    fn tell_refusal(&self, parts: &Parts, plan: &Plan, error: &Error) {
        let (me, function) = (self.rank, plan.function());
        let told = Error::Remote { rank: Some(me), text: format!("{function} : rank {me} takes no part: {error}") };
        // Held: this rank takes part in something at this moment, so that others wait for that.
        match parts.bootstrap.try_lock().as_deref_mut() {
            Some(Some(bootstrap)) => bootstrap.refuse_in(&plan.participants(), &told),
            _ => ::log::info!(target: "INIT", "{function} : the other ranks are not told that rank {me} takes no part"),
        }
    }
}

fn make_root() -> Result<RootHandle, Error> {
    Settings::read().and_then(|settings| bootstrap::create_root(&settings.net, None))
}

/// The ranks of this rank's new communicator, in their new order; none where it gets none.
fn members(offers: &[(u32, Offer)], me: u32) -> Result<Vec<u32>, Error> {
    let own = offers.iter().find(|(rank, _)| *rank == me).map(|(_, (_, request))| request);
    match own {
        Some(DeriveRequest::Split { color: Some(color), .. }) => {
            let same = offers.iter().filter_map(|(rank, (_, request))| match request {
                DeriveRequest::Split { color: Some(other), key } if other == color => Some((*key, *rank)),
                _ => None,
            });
            let mut same: Vec<(i32, u32)> = same.collect();
            same.sort_unstable();
            Ok(same.into_iter().map(|(_, rank)| rank).collect())
        }
        Some(DeriveRequest::Shrink { ranks }) => {
            let differs = offers.iter().find_map(|(rank, (_, request))| match request {
                DeriveRequest::Shrink { ranks: theirs } if theirs != ranks => Some((*rank, theirs)),
                _ => None,
            });
            match differs {
                None => Ok(ranks.clone()),
                Some((rank, theirs)) => Err(Error::InvalidUsage(format!(
                    "ncclCommShrink : rank {me} keeps {} and rank {rank} keeps {}",
                    ranks::name(ranks),
                    ranks::name(theirs)
                ))),
            }
        }
        _ => Ok(Vec::new()),
    }
}

/// The id that the first of the members has made; `own` is why this rank, being the first, has not.
fn read_id(members: &[u32], words: Vec<Said<Option<Vec<u8>>>>, own: Option<Error>) -> Result<UniqueId, Error> {
    if let Some(error) = own {
        return Err(error);
    }
    let first = members.first().copied();
    let word = words.into_iter().find(|(rank, _)| Some(*rank) == first).map(|(_, word)| word);
    let bytes = word.unwrap_or(Ok(None))?;
    let id = bytes.and_then(|bytes| bytes.try_into().ok()).map(UniqueId);
    id.ok_or_else(|| Error::Remote { rank: first, text: format!("rank {first:?} has sent no id") })
}

/// Where the ranks of a grow meet.
///
/// # Errors
/// The same on all ranks: `InvalidUsage` where they do not agree or none has an id, `InvalidArgument` for an id that is
/// not for this grow.
fn meeting_place(offers: &[(u32, Offer)]) -> Result<UniqueId, Error> {
    const NAME: &str = "ncclCommGrow";
    let requests = offers.iter().filter_map(|(rank, (_, request))| match request {
        DeriveRequest::Grow { nranks, id } => Some((*rank, *nranks, id.as_ref())),
        _ => None,
    });
    let requests: Vec<_> = requests.collect();
    if let Some(pair) = requests.windows(2).find(|pair| pair[0].1 != pair[1].1) {
        let ((a, few, _), (b, many, _)) = (pair[0], pair[1]);
        return Err(Error::InvalidUsage(format!("{NAME} : rank {a} wants {few} ranks and rank {b} wants {many}")));
    }
    let ids: Vec<_> = requests.iter().filter_map(|(rank, _, id)| id.map(|(id, fresh)| (*rank, id, *fresh))).collect();
    if let Some((rank, ..)) = ids.iter().find(|(.., fresh)| !fresh) {
        return Err(Error::InvalidArgument(format!(
            "{NAME} : magic mismatch: the id that rank {rank} was given is not for this grow; it was made for another \
             communicator, or one was derived since ncclCommGetUniqueId"
        )));
    }
    let Some((first, id, _)) = ids.first() else {
        return Err(Error::InvalidUsage(format!(
            "{NAME} : no rank has an id: one of them must call ncclCommGetUniqueId before"
        )));
    };
    if let Some((other, ..)) = ids.iter().find(|(_, theirs, _)| theirs != id) {
        return Err(Error::InvalidUsage(format!("{NAME} : ranks {first} and {other} have different ids")));
    }
    let id = id.as_slice().try_into().map_err(|_| other_call(*first, NAME))?;
    Ok(UniqueId(id))
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(value).map_err(|error| Error::Internal(format!("encoding: {error}")))
}
