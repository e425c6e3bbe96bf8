//! Handles: what the C interface calls `ncclComm_t`.
//!
//! A handle is an address in a range that is set aside for nothing else and is never given back. It
//! is never dereferenced: it is a number that looks like a pointer. A stale, doubly destroyed or
//! garbage handle is therefore found by looking it up, and cannot crash.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, PoisonError};

use super::Comm;
use crate::error::Error;
use crate::sys::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::sys::{self, AddressRange};

/// Bytes between handles; the alignment tells most garbage from a handle.
const CELL: usize = 64;
/// Handles that can exist before old numbers are used again. The range costs address space only.
const CELLS: usize = 1 << 20;

/// The process's handles. A handle comes from C and names no owner, so the table is the process's.
static HANDLES: OnceLock<Cells> = OnceLock::new();

/// Handles and what they stand for.
pub(super) struct Cells {
    range: AddressRange,
    /// How many there are.
    count: usize,
    table: RwLock<HandleTable>,
    /// How often the process had been forked when it was made.
    forks: u32,
}

#[derive(Default)]
struct HandleTable {
    cells: Vec<Option<Arc<Comm>>>,
    /// Dead cells, the longest dead first; used only once all cells have been used.
    dead: VecDeque<usize>,
}

impl Cells {
    /// None of `count` handles is in use.
    ///
    /// # Errors
    /// [`Error::System`] without address space.
    pub(super) fn new(count: usize) -> Result<Cells, Error> {
        let range = AddressRange::reserve(CELL * count)?;
        Ok(Cells { range, count, table: RwLock::new(HandleTable::default()), forks: sys::forks() })
    }

    /// To look things up. In a forked child nothing, where another thread of the parent was changing the table.
    fn look(&self) -> Option<RwLockReadGuard<'_, HandleTable>> {
        match self.is_childs() {
            true => self.table.try_read().ok(),
            // What was done to the table is done, whatever its thread has come to.
            false => Some(self.table.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// To change things. In a forked child nothing, where another thread of the parent was looking at the table.
    fn change(&self) -> Option<RwLockWriteGuard<'_, HandleTable>> {
        match self.is_childs() {
            true => self.table.try_write().ok(),
            false => Some(self.table.write().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Whether this process is a child of the one that made the table: who holds its lock may be missing.
    fn is_childs(&self) -> bool {
        self.forks != sys::forks()
    }

    /// See [`insert`].
    pub(super) fn insert(&self, comm: Arc<Comm>) -> Result<usize, Error> {
        let locked =
            || Error::Resource("a forked child has inherited the table of communicators in a locked state".to_string());
        let mut table = self.change().ok_or_else(locked)?;
        let index = if table.cells.len() < self.count {
            table.cells.push(None);
            table.cells.len() - 1
        } else {
            let full = || Error::Resource(format!("more than {} communicators are alive", self.count));
            table.dead.pop_front().ok_or_else(full)?
        };
        table.cells[index] = Some(comm);
        Ok(self.range.base() + index * CELL)
    }

    /// See [`get`].
    pub(super) fn get(&self, handle: usize) -> Option<Arc<Comm>> {
        self.look()?.cells.get(self.index_of(handle)?)?.clone()
    }

    /// See [`all`].
    pub(super) fn all(&self) -> Vec<Arc<Comm>> {
        self.look().map_or_else(Vec::new, |table| table.cells.iter().flatten().cloned().collect())
    }

    /// See [`each`].
    pub(super) fn each(&self, mut look: impl FnMut(&Comm)) {
        if let Some(table) = self.look() {
            table.cells.iter().flatten().for_each(|comm| look(comm));
        }
    }

    /// See [`remove`].
    pub(super) fn remove(&self, handle: usize) -> Option<Arc<Comm>> {
        let index = self.index_of(handle)?;
        let mut table = self.change()?;
        let comm = table.cells.get_mut(index)?.take()?;
        table.dead.push_back(index);
        Some(comm)
    }

    fn index_of(&self, handle: usize) -> Option<usize> {
        let offset = handle.checked_sub(self.range.base())?;
        (offset < self.range.bytes() && offset % CELL == 0).then_some(offset / CELL)
    }
}

/// Gives a communicator a handle.
///
/// # Errors
/// [`Error::Resource`] when more than a million communicators are alive, [`Error::System`] without address space.
pub(super) fn insert(comm: Arc<Comm>) -> Result<usize, Error> {
    let cells = match HANDLES.get() {
        Some(cells) => cells,
        None => {
            let fresh = Cells::new(CELLS)?;
            HANDLES.get_or_init(|| fresh)
        }
    };
    cells.insert(comm)
}

/// The communicator of a handle; none for anything that is not the handle of a live one.
pub(super) fn get(handle: usize) -> Option<Arc<Comm>> {
    HANDLES.get()?.get(handle)
}

/// All live communicators.
pub(super) fn all() -> Vec<Arc<Comm>> {
    HANDLES.get().map_or_else(Vec::new, Cells::all)
}

/// Looks at all live communicators; none can be added or taken away meanwhile, and none is kept alive.
pub(super) fn each(look: impl FnMut(&Comm)) {
    if let Some(cells) = HANDLES.get() {
        cells.each(look);
    }
}

/// Takes a handle back. The second call for a handle finds nothing.
pub(super) fn remove(handle: usize) -> Option<Arc<Comm>> {
    HANDLES.get()?.remove(handle)
}
