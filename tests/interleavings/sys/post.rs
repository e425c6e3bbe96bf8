//! Post boxes as the system has them: letters arrive in order, a box takes few at a time, and one that is closed is
//! gone with what lies in it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::PostName;
use super::sync::{Condvar, Mutex, thread};
use crate::error::Error;

/// Letters that fit into a box.
const ROOM: usize = 2;

pub struct Parcel {
    pub bytes: Vec<u8>,
    pub fd: Option<OwnedFd>,
    pub lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Yes,
    Later,
    Gone,
}

#[derive(Default)]
struct Content {
    letters: VecDeque<Vec<u8>>,
    rung: bool,
}

struct Slot {
    content: Mutex<Content>,
    news: Condvar,
}

pub struct Post {
    slot: Arc<Slot>,
    name: PostName,
}

thread_local! {
    /// The boxes that there are, by name. All threads of a model are one of the system's, and nothing is preempted
    /// here.
    static BOXES: RefCell<HashMap<PostName, Weak<Slot>>> = RefCell::new(HashMap::new());
}

impl Post {
    pub fn open() -> Result<Post, Error> {
        let slot = Arc::new(Slot { content: Mutex::new(Content::default()), news: Condvar::new() });
        let name = BOXES.with_borrow_mut(|boxes| {
            boxes.retain(|_, slot| slot.strong_count() > 0);
            let name = (0u128..).map(u128::to_le_bytes).find(|name| !boxes.contains_key(name)).expect("a name");
            boxes.insert(name, Arc::downgrade(&slot));
            name
        });
        Ok(Post { slot, name })
    }

    pub fn name(&self) -> PostName {
        self.name
    }

    pub fn ring(&self) {
        self.slot.content.lock().rung = true;
        self.slot.news.notify_all();
    }

    /// Time passes as the schedule has it: with a limit the wait is over at some moment.
    pub fn wait(&self, until: Option<Instant>) {
        if until.is_some() {
            thread::yield_now();
            self.slot.content.lock().rung = false;
            return;
        }
        let mut content = self.slot.content.lock();
        while content.letters.is_empty() && !content.rung {
            self.slot.news.wait(&mut content);
        }
        content.rung = false;
    }

    pub fn send(&self, to: &PostName, bytes: &[u8], _: Option<BorrowedFd<'_>>) -> Result<Sent, Error> {
        let Some(slot) = BOXES.with_borrow(|boxes| boxes.get(to).and_then(Weak::upgrade)) else {
            return Ok(Sent::Gone);
        };
        let mut content = slot.content.lock();
        if content.letters.len() == ROOM {
            return Ok(Sent::Later);
        }
        content.letters.push_back(bytes.to_vec());
        drop(content);
        slot.news.notify_all();
        Ok(Sent::Yes)
    }

    pub fn take(&self) -> Result<Option<Parcel>, Error> {
        let letter = self.slot.content.lock().letters.pop_front();
        Ok(letter.map(|bytes| Parcel { bytes, fd: None, lost: false }))
    }
}
