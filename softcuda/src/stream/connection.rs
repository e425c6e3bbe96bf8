//! Hardware queues: as on a GPU, the streams of a device share a few of them (`CUDA_DEVICE_MAX_CONNECTIONS`).
//!
//! Operations leave a queue in the order of their submission, whatever stream they belong to: an operation starts only
//! when the one before it in the queue has started, and one that waits at the head (for its stream's earlier work, or
//! for an event) keeps back streams that have nothing to do with it. What has started keeps nobody back.

use super::{Op, Stream, Target};
use crate::config::MAX_CONNECTIONS;
use crate::memory::access::poll;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::Ordering;

/// A queue: the last operation put into it.
#[derive(Default)]
pub(super) struct Connection {
    last: Option<Target>,
}

/// The queues of a device. None: each stream has one of its own.
pub struct Connections {
    queues: Box<[Mutex<Connection>]>,
    /// How many streams use each.
    users: Mutex<Vec<u32>>,
}

impl Connections {
    /// So many queues.
    pub fn new(count: usize) -> Connections {
        Connections { queues: (0..count).map(|_| Mutex::default()).collect(), users: Mutex::new(vec![0; count]) }
    }

    /// The queue with the fewest streams, which has one more from now on.
    fn take(&self) -> Option<usize> {
        let mut users = self.users.lock();
        let (index, _) = users.iter().enumerate().min_by_key(|(_, count)| **count)?;
        users[index] += 1;
        Some(index)
    }

    fn give_back(&self, index: usize) {
        self.users.lock()[index] -= 1;
    }
}

/// Device and queue as one number other than 0.
fn encode(device: usize, index: usize) -> u32 {
    (device * MAX_CONNECTIONS + index) as u32 + 1
}

fn decode(code: u32) -> Option<(usize, usize)> {
    let code = code.checked_sub(1)? as usize;
    Some((code / MAX_CONNECTIONS, code % MAX_CONNECTIONS))
}

impl Stream {
    /// The stream's queue, locked: held while an operation is put into the stream. A stream gets a queue with its first
    /// operation, and keeps it.
    pub(super) fn connect(&self) -> Option<MutexGuard<'static, Connection>> {
        let driver = self.driver();
        if driver.config.connections == 0 {
            return None;
        }
        let mut code = self.connection.load(Ordering::Acquire);
        if code == 0 {
            code = self.choose_connection()?;
        }
        let (device, index) = decode(code)?;
        Some(driver.connections.get(device)?.queues.get(index)?.lock())
    }

    #[cold]
    fn choose_connection(&self) -> Option<u32> {
        let device = self.siblings()?.device();
        let connections = self.driver().connections.get(device)?;
        let index = connections.take()?;
        let code = encode(device, index);
        match self.connection.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(code),
            // Another thread was first.
            Err(other) => {
                connections.give_back(index);
                Some(other)
            }
        }
    }

    /// The stream needs no queue any more.
    pub(super) fn disconnect(&self) {
        if let Some((device, index)) = decode(self.connection.swap(0, Ordering::AcqRel))
            && let Some(connections) = self.driver().connections.get(device)
        {
            connections.give_back(index);
        }
    }
}

impl Connection {
    /// What an operation of `stream` has to stand behind.
    pub(super) fn ahead_of(&self, stream: &Stream) -> Option<Op> {
        let last = self.last.filter(|last| !std::ptr::eq(last.stream, stream) && !last.is_started())?;
        Some(Op::Behind(last))
    }

    /// The last operation from now on.
    pub(super) fn put(&mut self, last: Target) {
        self.last = Some(last);
    }
}

impl Target {
    /// Whether the last of its operations has started, or never will because the device is lost.
    #[inline]
    pub(super) fn is_started(&self) -> bool {
        self.stream.progress.started.load(Ordering::SeqCst) >= self.number || self.stream.check().is_err()
    }

    /// Waits until it has. The thread does not execute it: it may not end before other streams go on.
    pub(super) fn wait_started(&self) {
        poll(|| {
            let started = self.is_started();
            if !started {
                self.stream.nudge();
            }
            started
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_spread_over_the_queues() {
        let connections = Connections::new(3);
        let taken: Vec<_> = (0..4).map(|_| connections.take()).collect();
        assert_eq!(taken, [Some(0), Some(1), Some(2), Some(0)]);
        connections.give_back(1);
        assert_eq!(connections.take(), Some(1));
        assert_eq!(Connections::new(0).take(), None);
        for (device, index) in [(0, 0), (63, 31), (2, 7)] {
            assert_eq!(decode(encode(device, index)), Some((device, index)));
        }
        assert_eq!(decode(0), None);
    }
}
