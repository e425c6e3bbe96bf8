//! Typed bindings to the collectives, point to point, and operators of `libnccl.so.2`.
//!
//! They are apart from [`super::nccl`], so that a program that needs only AllReduce can use a library that has
//! no more. The prototypes are those of [`super::abi`]; [`Collectives::call`] picks it.

use std::ffi::{OsStr, c_int, c_void};

use super::abi::{self, Code, Comm};
pub use super::abi::{CollConfig, SimInfo};
use super::contract::Func;
use super::nccl::{Failure, Nccl, open, symbol};
use super::oracle::DataType;

type Ptr = *mut c_void;

/// The functions. The library stays loaded for the life of the process.
#[derive(Clone, Copy)]
pub struct Collectives {
    nccl: Nccl,
    all_reduce: (abi::Reducing, abi::ReducingConfig),
    reduce: (abi::ReducingTo, abi::ReducingToConfig),
    broadcast: (abi::MovingOf, abi::MovingOfConfig),
    bcast: abi::OneBuffer,
    all_gather: (abi::Moving, abi::MovingConfig),
    reduce_scatter: (abi::Reducing, abi::ReducingConfig),
    all_to_all: (abi::Moving, abi::MovingConfig),
    gather: (abi::MovingOf, abi::MovingOfConfig),
    scatter: (abi::MovingOf, abi::MovingOfConfig),
    send: abi::OneBuffer,
    recv: abi::OneBuffer,
    create_pre_mul: abi::RedOpCreatePreMulSum,
    destroy_op: abi::RedOpDestroy,
    simulate_end: abi::GroupSimulateEnd,
}

/// A call of a collective but for its buffers. Numbers are C's, so that wrong ones can be given, too.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The function.
    pub func: Func,
    /// Elements of a block.
    pub count: usize,
    /// `ncclDataType_t`.
    pub dtype: c_int,
    /// `ncclRedOp_t`; without meaning for functions that reduce nothing.
    pub op: c_int,
    /// Without meaning for functions that have none.
    pub root: c_int,
}

/// `library::NAME` and `library::NAMEConfig`.
///
/// # Safety
/// `A` and `B` must be the types of the functions.
unsafe fn pair<A: Copy, B: Copy>(library: &'static libloading::Library, name: &str) -> Result<(A, B), String> {
    // SAFETY: the caller vouches for the types.
    unsafe { Ok((symbol(library, name)?, symbol(library, &format!("{name}Config"))?)) }
}

impl Collectives {
    /// Loads `libnccl.so.2`, or the file of this name.
    ///
    /// # Errors
    /// If it cannot be loaded or lacks a function.
    pub fn load(name: impl AsRef<OsStr>) -> Result<Collectives, String> {
        let name = name.as_ref();
        let l = open(name)?;
        // SAFETY: the types of the fields are the prototypes of nccl.h.
        unsafe {
            Ok(Collectives {
                nccl: Nccl::load(name)?,
                all_reduce: pair(l, "ncclAllReduce")?,
                reduce: pair(l, "ncclReduce")?,
                broadcast: pair(l, "ncclBroadcast")?,
                bcast: symbol(l, "ncclBcast")?,
                all_gather: pair(l, "ncclAllGather")?,
                reduce_scatter: pair(l, "ncclReduceScatter")?,
                all_to_all: pair(l, "ncclAlltoAll")?,
                gather: pair(l, "ncclGather")?,
                scatter: pair(l, "ncclScatter")?,
                send: symbol(l, "ncclSend")?,
                recv: symbol(l, "ncclRecv")?,
                create_pre_mul: symbol(l, "ncclRedOpCreatePreMulSum")?,
                destroy_op: symbol(l, "ncclRedOpDestroy")?,
                simulate_end: symbol(l, "ncclGroupSimulateEnd")?,
            })
        }
    }

    /// The result of a call as the common bindings tell it.
    fn told(&self, call: &'static str, code: Code) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        let text = format!("{}; {}", self.nccl.error_string(code), self.nccl.last_error());
        Err(Failure { call, code, text })
    }

    /// Calls the plain function. The pointers are device addresses, 0 for NULL.
    ///
    /// # Errors
    /// What the library returns.
    ///
    /// # Safety
    /// The buffers must be good for what the function does with them until the stream has done the work.
    pub unsafe fn call(&self, what: Call, (send, recv): (u64, u64), comm: Comm, stream: Ptr) -> Result<(), Failure> {
        let (s, r) = (send as Ptr, recv as Ptr);
        let Call { func, count: n, dtype: t, op, root } = what;
        // SAFETY: the caller vouches for the buffers; the library checks the rest.
        let code = unsafe {
            match func {
                Func::AllReduce => (self.all_reduce.0)(s, r, n, t, op, comm, stream),
                Func::Reduce => (self.reduce.0)(s, r, n, t, op, root, comm, stream),
                Func::Broadcast => (self.broadcast.0)(s, r, n, t, root, comm, stream),
                Func::Bcast => (self.bcast)(r, n, t, root, comm, stream),
                Func::AllGather => (self.all_gather.0)(s, r, n, t, comm, stream),
                Func::ReduceScatter => (self.reduce_scatter.0)(s, r, n, t, op, comm, stream),
                Func::AlltoAll => (self.all_to_all.0)(s, r, n, t, comm, stream),
                Func::Gather => (self.gather.0)(s, r, n, t, root, comm, stream),
                Func::Scatter => (self.scatter.0)(s, r, n, t, root, comm, stream),
            }
        };
        self.told(func.name(), code)
    }

    /// Calls the function with a configuration, which may be NULL; Bcast has no such form and is called plainly.
    ///
    /// # Errors
    /// What the library returns.
    ///
    /// # Safety
    /// As [`Collectives::call`]; `config` is NULL or points to a configuration.
    pub unsafe fn call_with(
        &self,
        what: Call,
        (send, recv): (u64, u64),
        comm: Comm,
        stream: Ptr,
        config: *const CollConfig,
    ) -> Result<(), Failure> {
        let (s, r) = (send as Ptr, recv as Ptr);
        let Call { func, count: n, dtype: t, op, root } = what;
        // SAFETY: the caller vouches for the buffers and the configuration; the library checks the rest.
        let code = unsafe {
            match func {
                Func::AllReduce => (self.all_reduce.1)(s, r, n, t, op, comm, stream, config),
                Func::Reduce => (self.reduce.1)(s, r, n, t, op, root, comm, stream, config),
                Func::Broadcast => (self.broadcast.1)(s, r, n, t, root, comm, stream, config),
                Func::Bcast => (self.bcast)(r, n, t, root, comm, stream),
                Func::AllGather => (self.all_gather.1)(s, r, n, t, comm, stream, config),
                Func::ReduceScatter => (self.reduce_scatter.1)(s, r, n, t, op, comm, stream, config),
                Func::AlltoAll => (self.all_to_all.1)(s, r, n, t, comm, stream, config),
                Func::Gather => (self.gather.1)(s, r, n, t, root, comm, stream, config),
                Func::Scatter => (self.scatter.1)(s, r, n, t, root, comm, stream, config),
            }
        };
        self.told(func.name(), code)
    }

    /// `ncclSend`.
    ///
    /// # Errors
    /// What the library returns.
    ///
    /// # Safety
    /// The buffer must be good for `count` elements until the stream has done the work.
    pub unsafe fn send(
        &self,
        buffer: u64,
        (count, dtype): (usize, DataType),
        peer: c_int,
        comm: Comm,
        stream: Ptr,
    ) -> Result<(), Failure> {
        // SAFETY: the caller vouches for the buffer; the library checks the rest.
        self.told("ncclSend", unsafe { (self.send)(buffer as Ptr, count, dtype as c_int, peer, comm, stream) })
    }

    /// `ncclRecv`.
    ///
    /// # Errors
    /// What the library returns.
    ///
    /// # Safety
    /// As [`Collectives::send`].
    pub unsafe fn recv(
        &self,
        buffer: u64,
        (count, dtype): (usize, DataType),
        peer: c_int,
        comm: Comm,
        stream: Ptr,
    ) -> Result<(), Failure> {
        // SAFETY: the caller vouches for the buffer; the library checks the rest.
        self.told("ncclRecv", unsafe { (self.recv)(buffer as Ptr, count, dtype as c_int, peer, comm, stream) })
    }

    /// `ncclRedOpCreatePreMulSum` with a scalar that is read at once.
    ///
    /// # Errors
    /// What the library returns.
    pub fn pre_mul_host(&self, scalar: u64, dtype: DataType, comm: Comm) -> Result<c_int, Failure> {
        let (mut op, mut scalar) = (-1, scalar.to_le_bytes());
        let at = scalar.as_mut_ptr().cast();
        // SAFETY: the pointers are to a live operator and to eight live bytes.
        let code = unsafe { (self.create_pre_mul)(&mut op, at, dtype as c_int, abi::SCALAR_HOST_IMMEDIATE, comm) };
        self.told("ncclRedOpCreatePreMulSum", code).map(|()| op)
    }

    /// `ncclRedOpCreatePreMulSum` with a scalar at a device address, which is read when a call runs.
    ///
    /// # Errors
    /// What the library returns.
    ///
    /// # Safety
    /// The scalar must stay until the calls that use the operator have run.
    pub unsafe fn pre_mul_device(&self, scalar: u64, dtype: DataType, comm: Comm) -> Result<c_int, Failure> {
        let mut op = -1;
        // SAFETY: the pointer is to a live operator; the caller vouches for the scalar.
        let code = unsafe { (self.create_pre_mul)(&mut op, scalar as Ptr, dtype as c_int, abi::SCALAR_DEVICE, comm) };
        self.told("ncclRedOpCreatePreMulSum", code).map(|()| op)
    }

    /// `ncclGroupSimulateEnd`: ends a group without carrying it out.
    ///
    /// # Errors
    /// What the library returns.
    pub fn simulate_end(&self, info: &mut SimInfo) -> Result<(), Failure> {
        // SAFETY: the pointer is to a live structure that tells its size.
        self.told("ncclGroupSimulateEnd", unsafe { (self.simulate_end)(info) })
    }

    /// `ncclRedOpDestroy`.
    ///
    /// # Errors
    /// What the library returns.
    pub fn destroy_op(&self, op: c_int, comm: Comm) -> Result<(), Failure> {
        // SAFETY: the library checks both.
        self.told("ncclRedOpDestroy", unsafe { (self.destroy_op)(op, comm) })
    }
}
