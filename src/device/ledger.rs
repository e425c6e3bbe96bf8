//! What a communicator holds in memory, counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It stays as long as the communicator.
    Persist,
    /// Links; they can be given up for a while.
    Links,
}

/// Counts the bytes, on the device and shared on the host, that a communicator holds on one rank.
#[derive(Debug, Default)]
pub struct Ledger([AtomicU64; 2]);

/// Bytes that are counted until it is dropped. Kept beside the memory.
#[derive(Debug)]
pub struct Charge {
    ledger: Arc<Ledger>,
    what: Use,
    bytes: u64,
}

impl Ledger {
    /// Counts some bytes that have been allocated.
    pub fn charge(self: &Arc<Ledger>, what: Use, bytes: usize) -> Charge {
        self.0[what as usize].fetch_add(bytes as u64, Ordering::Relaxed);
        Charge { ledger: self.clone(), what, bytes: bytes as u64 }
    }

    /// Bytes that are held now.
    pub fn bytes(&self, what: Use) -> u64 {
        self.0[what as usize].load(Ordering::Relaxed)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.ledger.0[self.what as usize].fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_no_longer_counted() {
        let ledger = Arc::new(Ledger::default());
        let (a, b) = (ledger.charge(Use::Persist, 10), ledger.charge(Use::Links, 7));
        let c = ledger.charge(Use::Persist, 5);
        assert_eq!((ledger.bytes(Use::Persist), ledger.bytes(Use::Links)), (15, 7));
        drop(a);
        drop(b);
        assert_eq!((ledger.bytes(Use::Persist), ledger.bytes(Use::Links)), (5, 0));
        drop(c);
        assert_eq!(ledger.bytes(Use::Persist), 0);
    }
}
