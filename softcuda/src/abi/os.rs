//! What is needed of the operating system beside memory: threads of ours, timer slack, fork.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::ptr;
use std::thread::{Builder, Thread};
use std::time::Duration;

/// Bytes of stack of our threads, on which kernels and host functions run.
const STACK: usize = 1 << 20;

/// Starts a detached thread that takes no signals: the client's handlers belong to its own threads.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let before = block_signals();
    let spawned = Builder::new().name(name.into()).stack_size(STACK).spawn(run);
    // SAFETY: a mask that was initialised by `block_signals`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    spawned.map(|handle| handle.thread().clone())
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are plain memory, filled in by the calls.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    }
}

/// How late the calling thread's sleeps may end.
pub fn set_timer_slack(slack: Duration) {
    // SAFETY: a plain number.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack.as_nanos() as libc::c_ulong, 0, 0, 0) };
}

/// Calls `function` in each child that this process forks.
pub fn on_fork_child(function: extern "C" fn()) {
    // SAFETY: a function that stays loaded (the library is never unloaded) and does one store.
    unsafe { libc::pthread_atfork(None, None, Some(function)) };
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
        eprintln!("softcuda: {text}");
    }
}
