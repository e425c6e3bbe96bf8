//! The room `comm` as far as the sources need it that are under test: a communicator is its state, and a mark that it
//! was freed, after which nobody may touch it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;
use crate::sys::sync::Mutex;

#[allow(dead_code)]
#[path = "../../src/comm/arena.rs"]
mod arena;
#[path = "../../src/comm/background.rs"]
mod background;
mod models;

/// As in the library.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Busy,
    Ready,
    Failed,
    Ended,
}

pub struct Comm {
    pub number: usize,
    state: Mutex<State>,
    background: Mutex<Option<Arc<background::Background>>>,
    freed: AtomicBool,
}

impl Comm {
    pub fn new(number: usize) -> Arc<Comm> {
        let (state, background) = (Mutex::new(State::Busy), Mutex::new(None));
        Arc::new(Comm { number, state, background, freed: AtomicBool::new(false) })
    }

    /// What work in the background does with a communicator.
    pub fn touch(&self) {
        assert!(!self.freed.load(Ordering::SeqCst), "it was freed");
    }

    pub fn succeed(&self) {
        self.touch();
        let mut state = self.state.lock();
        if *state == State::Busy {
            *state = State::Ready;
        }
    }

    fn fail(&self, _: &Error) {
        self.touch();
        let mut state = self.state.lock();
        if !matches!(*state, State::Failed | State::Ended) {
            *state = State::Failed;
        }
    }

    pub fn end(&self) {
        *self.state.lock() = State::Ended;
    }

    pub fn is_busy(&self) -> bool {
        *self.state.lock() == State::Busy
    }

    pub fn has_ended(&self) -> bool {
        *self.state.lock() == State::Ended
    }

    pub fn was_freed(&self) -> bool {
        self.freed.load(Ordering::SeqCst)
    }

    pub fn free(&self) {
        assert!(!self.freed.swap(true, Ordering::SeqCst), "it was freed twice");
    }
}
