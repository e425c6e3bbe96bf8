//! Whether the process was forked: a child must leave alone what it shares with its parent, and must not keep
//! connections of the parent's open, or their other ends would not see when the parent is gone.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

/// Forks between the process that first asked and this one. The handler that counts has no arguments,
/// so the number is the process's.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// What a child closes; the handler finds it here for the same reason.
static CLOSED: Shelf = Shelf::new();

/// Places on a shelf.
const PLACES: usize = 64;
/// No descriptor.
const NONE: i32 = -1;

/// A list of descriptors that can be read at any moment without a lock: a fork can come in the middle of anything.
struct Shelf {
    places: [AtomicI32; PLACES],
    next: OnceLock<Box<Shelf>>,
}

impl Shelf {
    const fn new() -> Shelf {
        Shelf { places: [const { AtomicI32::new(NONE) }; PLACES], next: OnceLock::new() }
    }

    /// Puts a descriptor into a place that was free; shelves are added as they are needed, and stay.
    fn put(&self, fd: i32) -> &AtomicI32 {
        let mut shelf = self;
        loop {
            let free =
                |place: &&AtomicI32| place.compare_exchange(NONE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if let Some(place) = shelf.places.iter().find(free) {
                return place;
            }
            shelf = shelf.next.get_or_init(|| Box::new(Shelf::new()));
        }
    }

    fn take_all(&self, mut act: impl FnMut(i32)) {
        let mut shelf = Some(self);
        while let Some(Shelf { places, next }) = shelf {
            places.iter().map(|place| place.swap(NONE, Ordering::AcqRel)).filter(|fd| *fd != NONE).for_each(&mut act);
            shelf = next.get().map(|next| &**next);
        }
    }
}

/// As long as it lives, a forked child closes a descriptor first of all. It must be dropped before the descriptor is
/// closed. What owns the descriptor is never dropped in a child.
pub struct ChildCloses(&'static AtomicI32);

impl ChildCloses {
    /// For a connection whose other end must see when this process is gone.
    pub fn of(fd: BorrowedFd<'_>) -> ChildCloses {
        forks();
        ChildCloses(CLOSED.put(fd.as_raw_fd()))
    }
}

impl Drop for ChildCloses {
    fn drop(&mut self) {
        self.0.store(NONE, Ordering::Release);
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    CLOSED.take_all(|fd| {
        // SAFETY: the descriptor was open in the parent, and so it is in the child, where nobody else knows of it;
        // close may be called in a child of any process.
        unsafe { libc::close(fd) };
    });
}

/// A number that is another one in a forked child than in its parent, from the first call on.
pub fn forks() -> u32 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only touches atomics and closes descriptors, which is allowed in a child of any process.
        // It stays mapped: the library is never unloaded (`-z nodelete`).
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    FORKS.load(Ordering::Relaxed)
}

/// Whether this process is a forked child of one that has asked for [`forks`]: who holds a lock may be missing in it.
pub fn is_forked() -> bool {
    FORKS.load(Ordering::Relaxed) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shelves_grow_and_places_are_used_again() {
        let shelf = Shelf::new();
        let places: Vec<&AtomicI32> = (0..200).map(|fd| shelf.put(fd)).collect();
        places[..100].iter().for_each(|place| place.store(NONE, Ordering::Release));
        for fd in 200..250 {
            let _ = shelf.put(fd);
        }
        let mut all = Vec::new();
        shelf.take_all(|fd| all.push(fd));
        all.sort_unstable();
        assert_eq!(all, (100..250).collect::<Vec<_>>());
        shelf.take_all(|fd| panic!("{fd} was taken before"));
    }
}
