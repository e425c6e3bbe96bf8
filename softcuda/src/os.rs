//! What is needed of the operating system beside memory: threads of ours, timer slack, fork.
#![allow(unsafe_code)]

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, Thread};
use std::time::Duration;

/// Bytes of stack of our threads, on which kernels and host functions run.
const STACK: usize = 1 << 20;

/// What a fault of a thread raises in that thread: it stays as the client has it, for the client's crash handlers.
const FAULTS: [libc::c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a detached thread that takes no signals but its own faults: those of the client are for the client's threads.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let before = block_signals();
    let spawned = Builder::new().name(name.into()).stack_size(STACK).spawn(run);
    set_mask(&before);
    spawned.map(|handle| handle.thread().clone())
}

/// Holds all signals but faults back from the calling thread; its mask before.
fn block_signals() -> libc::sigset_t {
    let mut all = no_signals();
    // SAFETY: the set is valid, and the numbers are signals'.
    unsafe {
        libc::sigfillset(&mut all);
        for fault in FAULTS {
            libc::sigdelset(&mut all, fault);
        }
    }
    block(&all)
}

fn no_signals() -> libc::sigset_t {
    // SAFETY: zeroes are the empty set.
    unsafe { std::mem::zeroed() }
}

/// Holds signals back; the mask before.
fn block(signals: &libc::sigset_t) -> libc::sigset_t {
    let mut before = no_signals();
    // SAFETY: both sets are valid.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, signals, &mut before) };
    before
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: the set is valid.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

/// How late the calling thread's sleeps may end.
pub fn set_timer_slack(slack: Duration) {
    // SAFETY: a plain number.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack.as_nanos() as libc::c_ulong, 0, 0, 0) };
}

/// This is a child of `fork` whose parent had called [`watch_forks`].
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn after_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

/// From now on [`is_forked`] knows a child that this process forks.
pub fn watch_forks() {
    // SAFETY: a function that stays loaded (the library is never unloaded) and does one store.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
}

/// Whether this is such a child: our threads are gone, and their locks may be held for good.
#[inline]
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Prints a line on stderr. One that nobody reads, or that is closed, is no reason to fail, nor to raise SIGPIPE.
pub fn say(text: &str) {
    let (mut pipe, mut pending) = (no_signals(), no_signals());
    // SAFETY: the sets are valid, and the number is a signal's.
    let was_pending = unsafe {
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        libc::sigismember(&pending, libc::SIGPIPE) == 1
    };
    let before = block(&pipe);
    let _ = io::stderr().write_all(format!("softcuda: {text}\n").as_bytes());
    if !was_pending {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: set and time are valid. It takes away the signal that the write may have raised.
        unsafe { libc::sigtimedwait(&pipe, ptr::null_mut(), &now) };
    }
    set_mask(&before);
}

/// A new descriptor, moved where it is 0, 1 or 2: the client has closed that one, and what is written to it is not for
/// us.
pub fn off_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    // SAFETY: the descriptor is open.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
    if moved < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(moved) })
}

/// Calls `function` when the process exits: before the exit handlers and destructors that were registered earlier.
pub fn on_exit(function: extern "C" fn()) {
    // SAFETY: a function that stays loaded (the library is never unloaded).
    unsafe { libc::atexit(function) };
}

/// Prints a line on stderr, once per topic.
pub fn say_once(topic: &str, text: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if SAID.lock().insert(topic.to_owned()) {
        say(text);
    }
}
