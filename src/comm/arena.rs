//! Handles: what the C interface calls `ncclComm_t`.
//!
//! A handle is an address in a range that is set aside for nothing else and is never given back. It
//! is never dereferenced: it is a number that looks like a pointer. A stale, doubly destroyed or
//! garbage handle is therefore found by looking it up, and cannot crash.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use parking_lot::{RwLock, RwLockReadGuard};

use super::Comm;
use crate::error::Error;
use crate::sys::{self, AddressRange};

/// Bytes between handles; the alignment tells most garbage from a handle.
const CELL: usize = 64;
/// Handles that can exist before old numbers are used again. The range costs address space only.
const CELLS: usize = 1 << 20;

struct Cells {
    range: AddressRange,
    table: RwLock<Table>,
    /// How often the process had been forked when it was made.
    forks: u32,
}

impl Cells {
    /// To look things up. In a forked child nothing, where another thread of the parent was changing the table.
    fn look(&self) -> Option<RwLockReadGuard<'_, Table>> {
        if self.forks == sys::forks() { Some(self.table.read()) } else { self.table.try_read() }
    }
}

#[derive(Default)]
struct Table {
    cells: Vec<Option<Arc<Comm>>>,
    /// Dead cells, the longest dead first; used only once all cells have been used.
    dead: VecDeque<usize>,
}

/// The process's handles. A handle comes from C and names no owner, so the table is the process's.
static HANDLES: OnceLock<Cells> = OnceLock::new();

fn cells() -> Result<&'static Cells, Error> {
    if let Some(cells) = HANDLES.get() {
        return Ok(cells);
    }
    let fresh = Cells { range: AddressRange::reserve(CELL * CELLS)?, table: RwLock::default(), forks: sys::forks() };
    Ok(HANDLES.get_or_init(|| fresh))
}

/// Gives a communicator a handle.
///
/// # Errors
/// [`Error::Resource`] when more than a million communicators are alive.
pub(super) fn insert(comm: Arc<Comm>) -> Result<usize, Error> {
    let cells = cells()?;
    let mut table = cells.table.write();
    let index = if table.cells.len() < CELLS {
        table.cells.push(None);
        table.cells.len() - 1
    } else {
        table.dead.pop_front().ok_or_else(|| Error::Resource(format!("more than {CELLS} communicators are alive")))?
    };
    table.cells[index] = Some(comm);
    Ok(cells.range.base() + index * CELL)
}

/// The communicator of a handle; none for anything that is not the handle of a live one.
pub(super) fn get(handle: usize) -> Option<Arc<Comm>> {
    let cells = HANDLES.get()?;
    cells.look()?.cells.get(index_of(cells, handle)?)?.clone()
}

/// All live communicators.
pub(super) fn all() -> Vec<Arc<Comm>> {
    HANDLES.get().map_or_else(Vec::new, |cells| cells.table.read().cells.iter().flatten().cloned().collect())
}

/// Looks at all live communicators; none can be added or taken away meanwhile, and none is kept alive.
pub(super) fn each(mut look: impl FnMut(&Comm)) {
    if let Some(cells) = HANDLES.get() {
        cells.table.read().cells.iter().flatten().for_each(|comm| look(comm));
    }
}

/// Takes a handle back. The second call for a handle finds nothing.
pub(super) fn remove(handle: usize) -> Option<Arc<Comm>> {
    let cells = HANDLES.get()?;
    let index = index_of(cells, handle)?;
    let mut table = cells.table.write();
    let comm = table.cells.get_mut(index)?.take()?;
    table.dead.push_back(index);
    Some(comm)
}

fn index_of(cells: &Cells, handle: usize) -> Option<usize> {
    let offset = handle.checked_sub(cells.range.base())?;
    (offset < cells.range.bytes() && offset % CELL == 0).then_some(offset / CELL)
}
