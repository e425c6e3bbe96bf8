//! The room `comm` as far as the sources need it that are under test: a communicator is its life, and a mark that it
//! was freed, after which nobody may touch it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;
use crate::sys::sync::Mutex;
use lifecycle::{CallKind, CommEvent, CommPhase, Effect};
use shared_lifecycle::SharedLifecycle;

#[allow(dead_code)]
#[path = "../../src/comm/arena.rs"]
mod arena;
#[path = "../../src/comm/background.rs"]
mod background;
#[allow(dead_code)]
#[path = "../../src/comm/lifecycle/mod.rs"]
mod lifecycle;
mod models;
#[allow(dead_code)]
#[path = "../../src/comm/shared_lifecycle.rs"]
mod shared_lifecycle;

pub struct Comm {
    pub number: usize,
    lifecycle: SharedLifecycle,
    background: Mutex<Option<Arc<background::Background>>>,
    freed: AtomicBool,
}

impl Comm {
    pub fn new(number: usize) -> Arc<Comm> {
        let (lifecycle, background) = (SharedLifecycle::new(), Mutex::new(None));
        Arc::new(Comm { number, lifecycle, background, freed: AtomicBool::new(false) })
    }

    /// What work in the background does with a communicator.
    pub fn touch(&self) {
        assert!(!self.freed.load(Ordering::SeqCst), "it was freed");
    }

    pub fn succeed(&self) {
        self.touch();
        self.happen(CommEvent::Completed);
    }

    fn fail(&self, error: &Error) {
        self.touch();
        self.happen(CommEvent::Failed(error));
    }

    fn happen(&self, event: CommEvent<'_>) {
        self.lifecycle.happen(event, |_| ());
    }

    pub fn end(&self) {
        self.happen(CommEvent::Ended);
    }

    pub fn is_busy(&self) -> bool {
        self.lifecycle.state().phase() == CommPhase::InProgress
    }

    pub fn has_ended(&self) -> bool {
        self.lifecycle.state().phase() == CommPhase::Ended
    }

    /// Begins a revoke; false: it was refused.
    pub fn revoke(&self) -> bool {
        self.lifecycle.claim(CallKind::Revoke, CommEvent::Revoked, |_| ()).is_ok()
    }

    /// What work in the background comes to where it fails; whether somebody sees the failure before it is told.
    pub fn fail_work(&self) -> bool {
        let mut seen_early = false;
        self.lifecycle.happen(CommEvent::WorkFailed(&Error::Aborted), |effect| {
            seen_early |= effect == Effect::Tell && self.lifecycle.state().phase() == CommPhase::Failed;
        });
        seen_early
    }

    /// The peers are to hear of a failure.
    pub fn owe_goodbye(&self) {
        self.happen(CommEvent::GoodbyeOwed);
    }

    /// How often this takes the goodbye.
    pub fn take_goodbye(&self) -> usize {
        let mut taken = 0;
        self.lifecycle.happen(CommEvent::GoodbyeTaken, |effect| taken += usize::from(effect == Effect::SayGoodbye));
        taken
    }

    pub fn permits(&self, call: CallKind) -> Result<(), Error> {
        self.lifecycle.permits(call).map(drop)
    }

    pub fn was_freed(&self) -> bool {
        self.freed.load(Ordering::SeqCst)
    }

    pub fn free(&self) {
        assert!(!self.freed.swap(true, Ordering::SeqCst), "it was freed twice");
    }
}
