//! What an interprocess event shares with other processes: one page, in which each record takes a ticket and marks it
//! when it is reached.

use super::access::poll;
use super::ipc::{self, MemoryHandle};
use super::{Mapping, PAGE};
use crate::error::Outcome;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records of an event that can be outstanding at once without a wait ending too early.
const MARKS: usize = 256;

#[repr(C)]
struct Page {
    /// Ticket of the last record; 0 = never recorded.
    last: AtomicU64,
    /// A ticket that was reached stands in the slot of its number modulo [`MARKS`].
    reached: [AtomicU64; MARKS],
}

/// The page, mapped.
pub struct SharedEvent {
    mapping: Mapping,
    tag: u128,
}

impl SharedEvent {
    /// A new one.
    pub fn create() -> Outcome<SharedEvent> {
        let tag = ipc::new_tag();
        Ok(SharedEvent { mapping: Mapping::with_file(PAGE, &ipc::file_name(tag))?, tag })
    }

    /// One that another process made.
    pub fn open(handle: &MemoryHandle) -> Outcome<SharedEvent> {
        Ok(SharedEvent { mapping: handle.map()?, tag: 0 })
    }

    /// What the other process needs; an event that was itself opened has none to give.
    pub fn handle(&self) -> Outcome<MemoryHandle> {
        MemoryHandle::of_mapping(&self.mapping, self.tag, size_of::<Page>())
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping holds at least a page, zeroed by the system, and only atomics are ever used on it.
        unsafe { &*(self.mapping.base() as *const Page) }
    }

    /// The ticket of a new record.
    pub fn take_ticket(&self) -> u64 {
        self.page().last.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The ticket of the last record of any process; 0 = none yet.
    pub fn last_ticket(&self) -> u64 {
        self.page().last.load(Ordering::Acquire)
    }

    /// The record was reached.
    pub fn announce(&self, ticket: u64) {
        self.page().reached[ticket as usize % MARKS].fetch_max(ticket, Ordering::AcqRel);
    }

    fn is_reached(&self, ticket: u64) -> bool {
        ticket == 0 || self.page().reached[ticket as usize % MARKS].load(Ordering::Acquire) >= ticket
    }

    /// Whether the last record was reached.
    pub fn is_complete(&self) -> bool {
        self.is_reached(self.last_ticket())
    }

    /// Waits until the record was reached, or `stop`.
    pub fn wait(&self, ticket: u64, stop: impl Fn() -> bool) {
        poll(|| self.is_reached(ticket) || stop());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets() {
        let event = SharedEvent::create().expect("a page");
        assert!(event.is_complete());
        let (first, second) = (event.take_ticket(), event.take_ticket());
        event.announce(second);
        assert!(event.is_complete());
        assert!(!event.is_reached(first));
        let again = SharedEvent::open(&event.handle().expect("a file")).expect("the same page");
        event.announce(first);
        again.wait(first, || false);
    }
}
