//! A poller as far as mailboxes go: the models have no other descriptors.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::mailbox::{Mailbox, Slot};
use super::sync::thread;
use super::{Interest, Ready};
use crate::error::Error;

pub struct Poller(Arc<Slot>);

impl Poller {
    pub fn open(mailbox: &Mailbox) -> Result<Poller, Error> {
        Ok(Poller(mailbox.slot().clone()))
    }

    pub fn wake(&self) {
        self.0.content.lock().woken = true;
        self.0.news.notify_all();
    }

    /// Time passes as the schedule has it: with a limit the wait is over at some moment.
    pub fn wait(&self, until: Option<Instant>, _: &mut Vec<Ready>) {
        if until.is_some() {
            thread::yield_now();
            self.0.content.lock().woken = false;
            return;
        }
        let mut content = self.0.content.lock();
        while content.messages.is_empty() && !content.woken {
            self.0.news.wait(&mut content);
        }
        content.woken = false;
    }

    pub fn add(&self, _: BorrowedFd<'_>, _: u64, _: Interest) -> Result<(), Error> {
        Ok(())
    }

    pub fn modify(&self, _: BorrowedFd<'_>, _: u64, _: Interest) -> Result<(), Error> {
        Ok(())
    }

    pub fn remove(&self, _: BorrowedFd<'_>) {}
}
