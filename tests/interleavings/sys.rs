//! The room `sys` as the sources under test see it: addresses are real, locks and threads are shuttle's.

pub use mailbox::{Mailbox, Sent};
pub use nccl::sys::{
    AddressRange, Interest, MESSAGE_MAX, MailboxName, PortRange, Ready, TcpListener, TcpStream, forks, random,
    random_bytes, tcp,
};
pub use poller::Poller;

mod mailbox;
mod poller;

/// There is no time here.
pub fn wait_precisely() {}

/// Starts a thread; there are no signals here.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<sync::thread::JoinHandle<()>> {
    sync::thread::Builder::new().name(name.to_string()).spawn(run)
}

/// parking_lot's locks as far as they are used, on shuttle's.
pub mod sync {
    use std::ops::{Deref, DerefMut};
    use std::time::Instant;

    pub use shuttle::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub use shuttle::thread;

    #[derive(Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);
    pub struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("it is held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("it is held")
        }
    }

    #[derive(Default)]
    pub struct Condvar(shuttle::sync::Condvar);
    /// Whether a wait was over by its deadline. There is no time here: none is.
    pub struct TimedOut(bool);

    impl TimedOut {
        pub fn timed_out(&self) -> bool {
            self.0
        }
    }

    impl Condvar {
        pub fn new() -> Condvar {
            Condvar(shuttle::sync::Condvar::new())
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }

        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("it is held");
            guard.0 = Some(self.0.wait(held).unwrap_or_else(|poisoned| poisoned.into_inner()));
        }

        pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> TimedOut {
            self.wait(guard);
            TimedOut(false)
        }
    }
}
