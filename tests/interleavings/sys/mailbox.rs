//! Mailbox mailboxes as the system has them: messages arrive in order, a mailbox takes few at a time, and one that is
//! closed is gone with what lies in it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use super::MailboxName;
use super::sync::{Condvar, Mutex};
use crate::error::Error;

/// Messages that fit into a mailbox.
const ROOM: usize = 2;

pub struct Datagram {
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
pub struct Content {
    pub messages: VecDeque<Vec<u8>>,
    pub woken: bool,
}

pub struct Slot {
    pub content: Mutex<Content>,
    pub news: Condvar,
}

pub struct Mailbox {
    slot: Arc<Slot>,
    name: MailboxName,
}

thread_local! {
    /// The mailboxes that there are, by name. All threads of a model are one of the system's, and nothing is preempted
    /// here.
    static MAILBOXES: RefCell<HashMap<MailboxName, Weak<Slot>>> = RefCell::new(HashMap::new());
}

impl Mailbox {
    pub fn open() -> Result<Mailbox, Error> {
        let slot = Arc::new(Slot { content: Mutex::new(Content::default()), news: Condvar::new() });
        let name = MAILBOXES.with_borrow_mut(|mailboxes| {
            mailboxes.retain(|_, slot| slot.strong_count() > 0);
            let name = (0u128..).map(u128::to_le_bytes).find(|name| !mailboxes.contains_key(name)).expect("a name");
            mailboxes.insert(name, Arc::downgrade(&slot));
            name
        });
        Ok(Mailbox { slot, name })
    }

    pub fn name(&self) -> MailboxName {
        self.name
    }

    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    pub fn send(&self, to: &MailboxName, bytes: &[u8], _: Option<BorrowedFd<'_>>) -> Result<Sent, Error> {
        let Some(slot) = MAILBOXES.with_borrow(|mailboxes| mailboxes.get(to).and_then(Weak::upgrade)) else {
            return Ok(Sent::Gone);
        };
        let mut content = slot.content.lock();
        if content.messages.len() == ROOM {
            return Ok(Sent::Later);
        }
        content.messages.push_back(bytes.to_vec());
        drop(content);
        slot.news.notify_all();
        Ok(Sent::Yes)
    }

    pub fn take(&self) -> Result<Option<Datagram>, Error> {
        let message = self.slot.content.lock().messages.pop_front();
        Ok(message.map(|bytes| Datagram { bytes, fd: None, lost: false }))
    }
}
