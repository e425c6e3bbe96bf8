//! Whether the process was forked: a child must leave alone what it shares with its parent.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the process that first asked and this one. The handler that counts has no arguments,
/// so the number is the process's.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A number that is another one in a forked child than in its parent, from the first call on.
pub fn forks() -> u32 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed in a child of any process. It
        // stays mapped: the library holds threads and handlers, and is never unloaded while in use.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    FORKS.load(Ordering::Relaxed)
}
