//! Memory of other processes that is open in this one. Two ranks of this process that use one device may both want the
//! same memory of a third, and so may two links of one rank, which lie in one block: CUDA need not open a handle twice
//! in one context, so it is opened once and closed once.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::{Context, ContextKey, PeerMemory, PhysicalMemory};
use crate::error::Error;
use crate::sys::Hold;

/// What tells memory of other processes apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum MemoryName {
    /// A user's allocation, by its CUDA inter-process handle.
    Handle([u8; 64]),
    /// A block of memory for links, by its number; or what has no other user, by any.
    Block(u64),
}

/// Memory of another process, mapped here.
pub(super) enum ForeignMemory {
    /// The fields drop in this order: who made it may free it then.
    Ipc {
        memory: PeerMemory,
        _hold: Option<Hold>,
    },
    Physical(PhysicalMemory),
}

impl ForeignMemory {
    fn address(&self) -> u64 {
        match self {
            ForeignMemory::Ipc { memory, .. } => memory.address(),
            ForeignMemory::Physical(memory) => memory.address(),
        }
    }
}

/// A context of this process, and memory of another.
type OpenKey = (ContextKey, MemoryName);

/// Memory of another process, while it has users here. The lock is held while it is opened and closed, so that the one
/// never overtakes the other.
#[derive(Default)]
struct OpenHandle {
    users: usize,
    memory: Option<ForeignMemory>,
}

/// All that is open, being opened or being closed.
static OPEN: Mutex<Option<HashMap<OpenKey, Arc<Mutex<OpenHandle>>>>> = Mutex::new(None);

/// One use of memory of another process. The last drop unmaps it.
pub(super) struct Opened {
    key: OpenKey,
    state: Arc<Mutex<OpenHandle>>,
    address: u64,
}

impl Opened {
    /// Memory of another process, which `map` maps unless it is mapped in this context already.
    pub(super) fn open(
        context: &Context,
        name: MemoryName,
        map: impl FnOnce() -> Result<ForeignMemory, Error>,
    ) -> Result<Opened, Error> {
        let key = (context.key(), name);
        let state = OPEN.lock().get_or_insert_default().entry(key).or_default().clone();
        // From here on the drop puts things right.
        let mut opened = Opened { key, state, address: 0 };
        let mut state = opened.state.lock();
        state.users += 1;
        let known = state.memory.as_ref().map(ForeignMemory::address);
        let address = match known {
            Some(address) => Ok(address),
            None => map().map(|memory| state.memory.insert(memory).address()),
        };
        drop(state);
        opened.address = address?;
        Ok(opened)
    }

    /// The address in this process.
    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.users -= 1;
        if state.users == 0 {
            state.memory = None;
        }
        drop(state);
        let mut open = OPEN.lock();
        // Others get hold of it only under the lock of the table: these two are the table and this object.
        if Arc::strong_count(&self.state) == 2
            && let Some(open) = open.as_mut()
        {
            open.remove(&self.key);
        }
    }
}
