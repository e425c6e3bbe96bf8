//! Typed bindings to what makes, derives, asks and ends communicators beyond [`super::nccl`]: configurations, split,
//! shrink, grow, revoke, suspend. Codes and handles come back as they are.
//!
//! They are apart, so that a program that needs only AllReduce can use a library that has no more.

use std::ffi::c_int;

use super::abi::{self, Code, Comm, Config, MemStat, UniqueId};
use super::nccl::{open, symbol};

/// The functions. The library stays loaded for the life of the process.
#[derive(Clone, Copy)]
pub struct Communicators {
    init_config: abi::CommInitRankConfig,
    init_scalable: abi::CommInitRankScalable,
    split: abi::CommSplit,
    shrink: abi::CommShrink,
    grow: abi::CommGrow,
    unique_id: abi::CommGetUniqueId,
    revoke: abi::OfCommWithFlags,
    suspend: abi::OfCommWithFlags,
    resume: abi::OfComm,
    mem_stats: abi::CommMemStats,
    user_rank: abi::CommQuery,
    cu_device: abi::CommQuery,
    count: abi::CommQuery,
}

/// A configuration, or NULL.
fn pointer(config: Option<&Config>) -> *const Config {
    config.map_or(std::ptr::null(), std::ptr::from_ref)
}

impl Communicators {
    /// Loads `libnccl.so.2` as the dynamic linker finds it.
    ///
    /// # Panics
    /// If it cannot be loaded or lacks a function.
    pub fn load() -> Communicators {
        let l = open("libnccl.so.2").expect("libnccl");
        let missing = "a function of the library";
        // SAFETY: the types of the fields are the prototypes of nccl.h.
        unsafe {
            Communicators {
                init_config: symbol(l, "ncclCommInitRankConfig").expect(missing),
                init_scalable: symbol(l, "ncclCommInitRankScalable").expect(missing),
                split: symbol(l, "ncclCommSplit").expect(missing),
                shrink: symbol(l, "ncclCommShrink").expect(missing),
                grow: symbol(l, "ncclCommGrow").expect(missing),
                unique_id: symbol(l, "ncclCommGetUniqueId").expect(missing),
                revoke: symbol(l, "ncclCommRevoke").expect(missing),
                suspend: symbol(l, "ncclCommSuspend").expect(missing),
                resume: symbol(l, "ncclCommResume").expect(missing),
                mem_stats: symbol(l, "ncclCommMemStats").expect(missing),
                user_rank: symbol(l, "ncclCommUserRank").expect(missing),
                cu_device: symbol(l, "ncclCommCuDevice").expect(missing),
                count: symbol(l, "ncclCommCount").expect(missing),
            }
        }
    }

    /// `ncclCommInitRankConfig`.
    ///
    /// # Safety
    /// `comm` stays where it is until the group is over; `config` is NULL or has as many
    /// bytes as its size says.
    pub unsafe fn init_config(
        &self,
        comm: *mut Comm,
        (nranks, rank): (usize, usize),
        id: UniqueId,
        config: *const Config,
    ) -> Code {
        // SAFETY: the caller vouches for both.
        unsafe { (self.init_config)(comm, nranks as c_int, id, rank as c_int, config) }
    }

    /// `ncclCommInitRankConfig` outside of a group.
    pub fn init(&self, (nranks, rank): (usize, usize), id: UniqueId, config: Option<&Config>) -> (Code, Comm) {
        let mut comm = Comm::NULL;
        // SAFETY: outside of a group the handle is written before the return; configurations tell their size.
        let code = unsafe { self.init_config(&mut comm, (nranks, rank), id, pointer(config)) };
        (code, comm)
    }

    /// `ncclCommInitRankScalable` outside of a group.
    pub fn init_scalable(
        &self,
        ids: &[UniqueId],
        (nranks, rank): (usize, usize),
        config: Option<&Config>,
    ) -> (Code, Comm) {
        let mut comm = Comm(std::ptr::dangling_mut());
        let (n, rank, count) = (nranks as c_int, rank as c_int, ids.len() as c_int);
        // SAFETY: the list has that many ids; the handle is written before the return.
        let code = unsafe { (self.init_scalable)(&mut comm, n, rank, count, ids.as_ptr(), pointer(config)) };
        (code, comm)
    }

    /// `ncclCommSplit`.
    ///
    /// # Safety
    /// `child` is NULL, or stays where it is until the group is over and, without blocking, until the split is.
    pub unsafe fn split(
        &self,
        comm: Comm,
        color: c_int,
        key: c_int,
        child: *mut Comm,
        config: Option<&Config>,
    ) -> Code {
        // SAFETY: the caller vouches for the handle; configurations tell their size.
        unsafe { (self.split)(comm, color, key, child, pointer(config)) }
    }

    /// `ncclCommShrink` by a list of ranks, or by as many at NULL.
    ///
    /// # Safety
    /// `child` as for [`Communicators::split`].
    pub unsafe fn shrink(
        &self,
        comm: Comm,
        excluded: Result<&mut [c_int], c_int>,
        child: *mut Comm,
        config: Option<&Config>,
        flags: c_int,
    ) -> Code {
        let (list, count) = match excluded {
            Ok(list) => (list.as_mut_ptr(), list.len() as c_int),
            Err(count) => (std::ptr::null_mut(), count),
        };
        // SAFETY: the list is as long as it says; the caller vouches for the handle.
        unsafe { (self.shrink)(comm, list, count, child, pointer(config), flags) }
    }

    /// `ncclCommGrow`; `comm` is NULL for a rank that is new.
    ///
    /// # Safety
    /// `child` as for [`Communicators::split`].
    pub unsafe fn grow(
        &self,
        comm: Comm,
        (nranks, rank): (usize, c_int),
        id: Option<&UniqueId>,
        child: *mut Comm,
        config: Option<&Config>,
    ) -> Code {
        let id = id.map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the id is alive; the caller vouches for the handle.
        unsafe { (self.grow)(comm, nranks as c_int, id, rank, child, pointer(config)) }
    }

    /// `ncclCommGetUniqueId`: an id for ranks that join.
    pub fn unique_id(&self, comm: Comm) -> Result<UniqueId, Code> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is to a live id.
        match unsafe { (self.unique_id)(comm, &mut id) } {
            abi::SUCCESS => Ok(id),
            code => Err(code),
        }
    }

    /// `ncclCommRevoke`.
    pub fn revoke(&self, comm: Comm, flags: c_int) -> Code {
        // SAFETY: the library checks the handle.
        unsafe { (self.revoke)(comm, flags) }
    }

    /// `ncclCommSuspend`.
    pub fn suspend(&self, comm: Comm, flags: c_int) -> Code {
        // SAFETY: the library checks the handle.
        unsafe { (self.suspend)(comm, flags) }
    }

    /// `ncclCommResume`.
    pub fn resume(&self, comm: Comm) -> Code {
        // SAFETY: the library checks the handle.
        unsafe { (self.resume)(comm) }
    }

    /// `ncclCommMemStats`.
    pub fn mem_stat(&self, comm: Comm, stat: MemStat) -> Result<u64, Code> {
        let mut value = u64::MAX;
        // SAFETY: the pointer is to a live number.
        match unsafe { (self.mem_stats)(comm, stat as c_int, &mut value) } {
            abi::SUCCESS => Ok(value),
            code => Err(code),
        }
    }

    fn query(&self, comm: Comm, query: abi::CommQuery) -> Result<c_int, Code> {
        let mut value = -1;
        // SAFETY: the library checks the handle; the pointer is to a live int.
        match unsafe { query(comm, &mut value) } {
            abi::SUCCESS => Ok(value),
            code => Err(code),
        }
    }

    /// `ncclCommUserRank`.
    pub fn user_rank(&self, comm: Comm) -> Result<c_int, Code> {
        self.query(comm, self.user_rank)
    }

    /// `ncclCommCuDevice`.
    pub fn cu_device(&self, comm: Comm) -> Result<c_int, Code> {
        self.query(comm, self.cu_device)
    }

    /// The codes of the three questions about a communicator.
    pub fn questions(&self, comm: Comm) -> [(&'static str, Code); 3] {
        let code = |query| self.query(comm, query).map_or_else(|code| code, |_| abi::SUCCESS);
        [
            ("ncclCommCount", code(self.count)),
            ("ncclCommCuDevice", code(self.cu_device)),
            ("ncclCommUserRank", code(self.user_rank)),
        ]
    }
}
