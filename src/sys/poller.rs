//! One set of descriptors that a thread waits for, with a wakeup for other threads.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::thread::set_current_timer_slack;

use super::{ChildCloses, Mailbox, off_standard};
use crate::error::Error;

/// Events taken at once.
const EVENTS: usize = 64;
/// The token of the wakeup, and of the mailbox: nobody else has it.
const OWN: u64 = u64::MAX;

/// What of a descriptor is waited for. That it has failed, or the other side has closed it, is always told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Something can be read.
    pub readable: bool,
    /// Something can be written.
    pub writable: bool,
}

impl Interest {
    /// Reading alone.
    pub const READ: Interest = Interest { readable: true, writable: false };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.readable);
        flags.set(EventFlags::OUT, self.writable);
        flags
    }
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number that it was added with.
    pub token: u64,
    /// It can be read, or has failed, or was closed by the other side.
    pub readable: bool,
    /// It can be written.
    pub writable: bool,
}

/// An epoll set with a wakeup. Level-triggered: what is not read is told again. A child has neither.
pub struct Poller {
    // Before what they close.
    _child_closes: [ChildCloses; 2],
    epoll: OwnedFd,
    wakeup: OwnedFd,
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

/// Lets waits of this thread end when their time has come, and not up to 50 microseconds later.
pub fn wait_precisely() {
    let _ = set_current_timer_slack(NonZeroU64::new(1000));
}

/// A descriptor by which one thread tells another one that there is something to look at. A child has none.
pub struct Bell {
    // Before what it closes.
    _child_closes: ChildCloses,
    count: OwnedFd,
}

impl Bell {
    /// One that has not been rung.
    ///
    /// # Errors
    /// [`Error::System`] where the process may open no more files.
    pub fn new() -> Result<Bell, Error> {
        let count = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
        let count = count.and_then(off_standard).map_err(|error| Error::system("eventfd", "a connection", &error))?;
        Ok(Bell { _child_closes: ChildCloses::of(count.as_fd()), count })
    }

    /// Makes the descriptor ready to be read.
    pub fn ring(&self) {
        // The counter can only be full of earlier rings.
        let _ = rustix::io::write(&self.count, &1u64.to_ne_bytes());
    }

    /// It was heard.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.count, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.count.as_fd()
    }
}

/// Waits that are not shorter may end up to a millisecond late.
const COARSE: Duration = Duration::from_millis(8);

impl Poller {
    /// A set with a mailbox in it, whose messages end waits.
    ///
    /// # Errors
    /// [`Error::System`] where the process may open no more files.
    pub fn open(mailbox: &Mailbox) -> Result<Poller, Error> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from).and_then(off_standard);
        let epoll = epoll.map_err(|error| Error::system("epoll_create1", "event loop", &error))?;
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(io::Error::from)
            .and_then(off_standard)
            .map_err(|error| Error::system("eventfd", "wakeup of the event loop", &error))?;
        let _child_closes = [ChildCloses::of(epoll.as_fd()), ChildCloses::of(wakeup.as_fd())];
        let poller = Poller { _child_closes, epoll, wakeup };
        poller.add(poller.wakeup.as_fd(), OWN, Interest::READ)?;
        poller.add(mailbox.as_fd(), OWN, Interest::READ)?;
        Ok(poller)
    }

    /// Ends the [`Poller::wait`] that is under way, or the next one. From any thread.
    pub fn wake(&self) {
        // The counter can only be full of earlier wakeups.
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
    }

    /// Adds a descriptor, from any thread. `token` is what [`Ready`] tells; not `u64::MAX`.
    ///
    /// # Errors
    /// [`Error::System`] where the system refuses.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> Result<(), Error> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), interest.flags())
            .map_err(|errno| Error::system("epoll_ctl", "event loop", &errno.into()))
    }

    /// Waits for something else of a descriptor from now on.
    ///
    /// # Errors
    /// [`Error::System`] where it was not added.
    pub fn modify(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> Result<(), Error> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token), interest.flags())
            .map_err(|errno| Error::system("epoll_ctl", "event loop", &errno.into()))
    }

    /// Takes a descriptor out; before it is closed, since a copy of it elsewhere would keep it in. One that is not in
    /// the set is of no account.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until descriptors are ready, or somebody calls [`Poller::wake`], or a time has come; now and then it
    /// returns for nothing. `ready` has what is ready afterwards.
    pub fn wait(&self, until: Option<Instant>, ready: &mut Vec<Ready>) {
        ready.clear();
        let mut left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if let Some(short) = left.filter(|left| !left.is_zero() && *left < COARSE) {
            // epoll's own time is in milliseconds, rounded up.
            let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timespec(short)));
            left = Some(Duration::ZERO);
        }
        let timeout = left.map(timespec);
        let mut events: [std::mem::MaybeUninit<Event>; EVENTS] = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()) else { return };
        let mut woken = false;
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            woken |= token == OWN;
            if token != OWN {
                let readable = flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR);
                ready.push(Ready { token, readable, writable: flags.contains(EventFlags::OUT) });
            }
        }
        if woken {
            let _ = rustix::io::read(&self.wakeup, &mut [0; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Sent;

    fn far() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(60))
    }

    #[test]
    fn the_wakeup_ends_one_wait_and_messages_all() {
        let (a, b) = (Mailbox::open().expect("a"), Mailbox::open().expect("b"));
        let poller = Poller::open(&b).expect("a poller");
        let (start, mut ready) = (Instant::now(), Vec::new());
        poller.wake();
        poller.wake();
        poller.wait(far(), &mut ready);
        assert_eq!(a.send(&b.name(), b"x", None), Ok(Sent::Yes));
        (0..3).for_each(|_| poller.wait(far(), &mut ready));
        assert!(ready.is_empty() && b.take().expect("take").is_some());
        assert!(start.elapsed().as_secs() < 60);
        let soon = Instant::now() + Duration::from_millis(5);
        while Instant::now() < soon {
            poller.wait(Some(soon), &mut ready);
        }
    }

    #[test]
    fn descriptors_are_told_by_their_tokens() {
        let mailbox = Mailbox::open().expect("a mailbox");
        let poller = Poller::open(&mailbox).expect("a poller");
        let (one, other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        poller.add(one.as_fd(), 7, Interest { readable: true, writable: true }).expect("add");
        let mut ready = Vec::new();
        poller.wait(far(), &mut ready);
        assert_eq!(ready, [Ready { token: 7, readable: false, writable: true }]);
        poller.modify(one.as_fd(), 8, Interest::READ).expect("modify");
        poller.wait(Some(Instant::now()), &mut ready);
        assert!(ready.is_empty());
        drop(other);
        poller.wait(far(), &mut ready);
        assert_eq!(ready, [Ready { token: 8, readable: true, writable: false }]);
        poller.remove(one.as_fd());
        poller.wait(Some(Instant::now()), &mut ready);
        assert!(ready.is_empty());
    }
}
