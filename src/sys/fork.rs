//! Whether the process was forked: a child must leave alone what it shares with its parent.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Forks between the process that first asked and this one. The handler that counts has no arguments,
/// so the number is the process's.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Descriptors that a child closes, or -1; for the same reason the process's. The helper thread has two.
static CLOSED: [AtomicI32; 8] = [const { AtomicI32::new(-1) }; 8];

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for place in &CLOSED {
        let fd = place.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: close may be called in a child of any process. Whoever has the descriptor in the parent is told by
            // [`forks`] that it has nothing here.
            unsafe { libc::close(fd) };
        }
    }
}

/// A number that is another one in a forked child than in its parent, from the first call on.
pub fn forks() -> u32 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic and closes descriptors, which is allowed in a child of any process. It
        // stays mapped: the library holds threads and handlers, and is never unloaded while in use.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    FORKS.load(Ordering::Relaxed)
}

/// While it lives, a forked child closes a descriptor at once: nobody shall take the child for its parent.
pub struct ChildCloses(Option<&'static AtomicI32>);

impl ChildCloses {
    /// For a descriptor that lives longer than the object. Where many have that already, nothing comes of it.
    pub fn of(fd: BorrowedFd<'_>) -> ChildCloses {
        forks();
        let fd = fd.as_raw_fd();
        let free = |place: &&AtomicI32| place.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        ChildCloses(CLOSED.iter().find(free))
    }
}

impl Drop for ChildCloses {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(-1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn places_are_given_back() {
        let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
        for _ in 0..3 * CLOSED.len() {
            let closes = ChildCloses::of(pipe.as_fd());
            assert!(closes.0.is_some_and(|place| place.load(Ordering::Relaxed) == pipe.as_raw_fd()));
        }
    }
}
