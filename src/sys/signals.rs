//! Signals: no thread of the library takes one that is meant for the program, and no write of the library raises one.

use std::io;
use std::ptr::null_mut;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// What a fault of a thread raises in that thread. It stays as the program has it: a blocked one would end the process
/// before a handler of the program's (a profiler's, a crash reporter's) could run.
const FAULTS: [Signal; 6] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS];

/// Signals that are held back from the calling thread; dropping this restores the mask that was there.
struct Blocked(SigSet);

impl Blocked {
    fn new(signals: &SigSet) -> Blocked {
        // It cannot fail: the set and the way are valid.
        Blocked(signals.thread_swap_mask(SigmaskHow::SIG_BLOCK).unwrap_or_else(|_| SigSet::empty()))
    }

    /// All that can be meant for the program.
    fn all() -> Blocked {
        let mut signals = SigSet::all();
        FAULTS.into_iter().for_each(|fault| signals.remove(fault));
        Blocked::new(&signals)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let _ = self.0.thread_set_mask();
    }
}

/// Starts a thread of the library. It takes no signals from its first moment on, as it inherits the mask: the program's
/// handlers run on the program's threads, and `sigwait` there sees every signal.
///
/// # Errors
/// The system has no thread.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let _blocked = Blocked::all();
    Builder::new().name(name.to_string()).spawn(run)
}

/// The same for a thread that ends with a scope.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_scoped<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, ()>> {
    let _blocked = Blocked::all();
    Builder::new().name(name.to_string()).spawn_scoped(scope, run)
}

/// Writes to what may be a pipe or a socket whose reader has gone: this thread's SIGPIPE is held back meanwhile, and
/// one that the write has raised is taken away. What was pending before stays, and so does the thread's mask.
pub fn without_sigpipe<R>(write: impl FnOnce() -> R) -> R {
    let pipe = SigSet::from(Signal::SIGPIPE);
    let was_pending = is_pending(Signal::SIGPIPE);
    let _blocked = Blocked::new(&pipe);
    let result = write();
    if !was_pending {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: set and time are initialised and live; nothing is told of the signal. EINTR cannot lose it: a write
        // that has raised it has done so before, so that the call finds it at once.
        unsafe { libc::sigtimedwait(pipe.as_ref(), null_mut(), &now) };
    }
    result
}

fn is_pending(signal: Signal) -> bool {
    // SAFETY: zeroes are a valid set.
    let mut pending: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid for writing.
    unsafe { libc::sigpending(&mut pending) };
    // SAFETY: the set is valid and the number is a signal's.
    unsafe { libc::sigismember(&pending, signal as i32) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::sync::mpsc::{Sender, channel};

    /// Writes to a pipe that nobody reads.
    fn broken_write() -> Result<usize, Errno> {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        drop(reader);
        rustix::io::write(&writer, b"x")
    }

    /// The signals that this thread holds back.
    fn held() -> SigSet {
        SigSet::thread_get_mask().expect("a mask")
    }

    /// Runs with the default action, which would end the process; on a thread of its own, whose mask ends with it.
    fn with_default_action(act: impl FnOnce() + Send + 'static) {
        // SAFETY: no handler is installed.
        unsafe { nix::sys::signal::signal(Signal::SIGPIPE, nix::sys::signal::SigHandler::SigDfl) }.expect("SIGPIPE");
        std::thread::spawn(act).join().expect("no panic");
    }

    #[test]
    fn a_write_to_nobody_is_an_error_and_no_more() {
        with_default_action(|| {
            for _ in 0..3 {
                assert_eq!(without_sigpipe(broken_write), Err(Errno::PIPE));
                assert!(!is_pending(Signal::SIGPIPE) && !held().contains(Signal::SIGPIPE));
            }
        });
    }

    #[test]
    fn a_thread_that_holds_the_signal_back_gets_none_later() {
        with_default_action(|| {
            SigSet::from(Signal::SIGPIPE).thread_block().expect("a mask");
            assert_eq!(without_sigpipe(broken_write), Err(Errno::PIPE));
            assert!(!is_pending(Signal::SIGPIPE) && held().contains(Signal::SIGPIPE));
        });
    }

    #[test]
    fn one_that_was_pending_before_stays() {
        with_default_action(|| {
            SigSet::from(Signal::SIGPIPE).thread_block().expect("a mask");
            assert_eq!(broken_write(), Err(Errno::PIPE));
            assert_eq!(without_sigpipe(broken_write), Err(Errno::PIPE));
            assert!(is_pending(Signal::SIGPIPE));
        });
    }

    #[test]
    fn threads_take_faults_and_nothing_else() {
        let before = held();
        let (send, receive) = channel();
        let scoped = send.clone();
        let tell = |to: Sender<SigSet>| to.send(held()).expect("somebody listens");
        spawn("test", move || tell(send)).expect("a thread").join().expect("no panic");
        std::thread::scope(|scope| {
            spawn_scoped(scope, "test", move || tell(scoped)).expect("a thread");
        });
        let masks: Vec<SigSet> = receive.iter().collect();
        assert_eq!(masks.len(), 2);
        for mask in masks {
            for signal in Signal::iterator() {
                let always = [Signal::SIGKILL, Signal::SIGSTOP];
                let blocked = !FAULTS.contains(&signal) && !always.contains(&signal);
                assert_eq!(mask.contains(signal), blocked, "{signal}");
            }
        }
        assert_eq!(held(), before);
    }
}
