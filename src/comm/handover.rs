//! Work that only the thread that made a call can do: its default stream has a name in no other thread (`0x2`). Another
//! thread gets everything ready and hands the rest over; the owner takes it up when it next calls the library.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::replace;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Comm;
use crate::error::Error;
use crate::log::Place;
use crate::sys;

/// What the owner does. It tells the communicators itself how it went.
pub type Rest = Box<dyn FnOnce() -> Result<(), Error> + Send>;

enum HandoverStage {
    Awaited,
    There(Rest),
    /// It was taken, or nothing will come.
    Over,
}

struct Handover {
    stage: Mutex<HandoverStage>,
    changed: Condvar,
    /// Those that are busy until the rest is done.
    comms: Vec<Weak<Comm>>,
    /// How often the process had been forked.
    forks: u32,
}

impl Handover {
    /// Takes what is there; none while it is awaited.
    fn take(&self) -> Option<HandoverStage> {
        let mut stage = self.stage.lock();
        match *stage {
            HandoverStage::Awaited => None,
            _ => Some(replace(&mut *stage, HandoverStage::Over)),
        }
    }
}

/// The end of a handover in the thread that gets things ready. Dropped, it says that nothing will come.
pub struct Giver(Arc<Handover>);

impl Giver {
    /// Hands the rest over. Where the owner has ended, it comes back.
    pub fn give(self, rest: Rest) -> Option<Rest> {
        let mut stage = self.0.stage.lock();
        match *stage {
            HandoverStage::Awaited => {
                *stage = HandoverStage::There(rest);
                self.0.changed.notify_all();
                None
            }
            _ => Some(rest),
        }
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        let mut stage = self.0.stage.lock();
        if matches!(*stage, HandoverStage::Awaited) {
            *stage = HandoverStage::Over;
            self.0.changed.notify_all();
        }
    }
}

/// What a thread is to do, in the order of its calls.
#[derive(Default)]
struct Owned(VecDeque<Arc<Handover>>);

impl Drop for Owned {
    /// The thread ends, and with it the stream that was meant.
    fn drop(&mut self) {
        let error = thread_has_ended();
        for handover in self.0.drain(..) {
            if handover.forks != sys::forks() {
                // Its lock may be held for ever in a forked child.
                std::mem::forget(handover);
                continue;
            }
            let stage = replace(&mut *handover.stage.lock(), HandoverStage::Over);
            if !matches!(stage, HandoverStage::Over) {
                let place = Place { file: "comm/handover.rs", line: line!(), function: "GroupEnd" };
                crate::log::failure(&place, &error);
                let error = Err(error.clone());
                handover.comms.iter().filter_map(Weak::upgrade).for_each(|comm| comm.end_busy(&error));
            }
        }
    }
}

fn thread_has_ended() -> Error {
    let text = "the thread that made a call on its default stream has ended before the call was enqueued: it must ask \
                ncclCommGetAsyncError until that no longer says ncclInProgress";
    Error::InvalidUsage(text.to_string())
}

thread_local! {
    /// How many there are: asked at every call of the library.
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static MINE: RefCell<Owned> = RefCell::default();
}

/// Announces something that the calling thread is to do for communicators.
///
/// # Errors
/// [`Error::InvalidUsage`] in a thread that is ending: it will not come back for it.
pub fn to_this_thread(comms: &[Arc<Comm>]) -> Result<Giver, Error> {
    let comms = comms.iter().map(Arc::downgrade).collect();
    let (stage, changed) = (Mutex::new(HandoverStage::Awaited), Condvar::new());
    let handover = Arc::new(Handover { stage, changed, comms, forks: sys::forks() });
    MINE.try_with(|mine| mine.borrow_mut().0.push_back(handover.clone())).map_err(|_| thread_has_ended())?;
    COUNT.set(COUNT.get() + 1);
    Ok(Giver(handover))
}

/// Does what was handed over to the calling thread, in the order of its calls, as far as it is there. The communicators
/// know how it went; gives what the last one came to, if anything came of it.
pub fn take_up() -> Option<Result<(), Error>> {
    let mut last = None;
    while COUNT.get() > 0
        && let Some(stage) = next()
    {
        last = match stage {
            HandoverStage::There(rest) => Some(rest()),
            _ => None,
        };
    }
    last
}

/// Waits for what was announced to the calling thread last, and does it; none where it has not come within the limit,
/// or never will: the state of the communicators tells.
pub fn wait_for_last(limit: Duration) -> Option<Result<(), Error>> {
    let deadline = Instant::now() + limit;
    let last = MINE.try_with(|mine| mine.borrow().0.back().cloned()).ok().flatten()?;
    let mut stage = last.stage.lock();
    while matches!(*stage, HandoverStage::Awaited) {
        if last.changed.wait_until(&mut stage, deadline).timed_out() {
            return None;
        }
    }
    drop(stage);
    let result = take_up();
    if COUNT.get() == 0 { result } else { None }
}

/// Takes the first off the list, if it is there.
fn next() -> Option<HandoverStage> {
    MINE.try_with(|mine| {
        let mut mine = mine.borrow_mut();
        let first = mine.0.front()?;
        // A forked child has no stream of its parent's, and who would give may be missing.
        let stage = if first.forks == sys::forks() { first.take()? } else { HandoverStage::Over };
        let first = mine.0.pop_front();
        COUNT.set(mine.0.len());
        first.filter(|first| first.forks != sys::forks()).into_iter().for_each(std::mem::forget);
        Some(stage)
    })
    .ok()
    .flatten()
}
