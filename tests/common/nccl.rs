//! Typed bindings to the functions of `libnccl.so.2` that tests and `perf` use, loaded at run time.
//!
//! The prototypes are those of [`super::abi`]; every call returns a `Result` with the call's name and the
//! library's own texts.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::time::{Duration, Instant};

use libloading::Library;
use libloading::os::unix::{Library as UnixLibrary, RTLD_LOCAL, RTLD_NOW};

use super::abi::{self, IN_PROGRESS};
pub use super::abi::{Comm, UniqueId};
use super::oracle::{DataType, RedOp};

/// How long a state may take to change, on a machine that is busy.
const SETTLE: Duration = Duration::from_secs(60);

/// The key that a rank of a test is to encrypt with, if it has this variable.
pub const TEST_KEY: &str = "OXCCL_TEST_KEY";

/// A call that did not return `ncclSuccess`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The function.
    pub call: &'static str,
    /// Its `ncclResult_t`.
    pub code: i32,
    /// `ncclGetErrorString` of the code and `ncclGetLastError`.
    pub text: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} returned {}: {}", self.call, self.code, self.text)
    }
}

impl std::error::Error for Failure {}

/// The library and its functions. The library stays loaded for the life of the process.
#[derive(Clone, Copy)]
pub struct Nccl {
    get_version: abi::GetVersion,
    get_unique_id: abi::GetUniqueId,
    init_rank: abi::CommInitRank,
    init_all: abi::CommInitAll,
    finalize: abi::OfComm,
    destroy: abi::OfComm,
    abort: abi::OfComm,
    count: abi::CommQuery,
    async_error: abi::CommQuery,
    error_string: abi::GetErrorString,
    last_error: abi::GetLastError,
    group_start: abi::Group,
    group_end: abi::Group,
    all_reduce: abi::Reducing,
    mem_alloc: abi::MemAlloc,
    mem_free: abi::MemFree,
    register: Option<abi::CommRegister>,
    deregister: Option<abi::CommDeregister>,
    set_encryption: Option<abi::SetEncryption>,
}

/// Opens a library for good and at once with all its symbols, as a linked program would have it.
///
/// # Errors
/// The dynamic linker's text.
pub fn open(name: impl AsRef<OsStr>) -> Result<&'static Library, String> {
    // SAFETY: the libraries that tests open have no initialisers with preconditions.
    let library = unsafe { UnixLibrary::open(Some(name.as_ref()), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| why(&error))?;
    Ok(Box::leak(Box::new(Library::from(library))))
}

/// What the loader says of a library or symbol: the error itself says only what failed.
fn why(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A symbol as a function pointer.
///
/// # Errors
/// If the library has no such symbol.
///
/// # Safety
/// `T` must be the type of the function.
pub unsafe fn symbol<T: Copy>(library: &'static Library, name: &str) -> Result<T, String> {
    // SAFETY: the caller vouches for the type.
    unsafe { library.get::<T>(name.as_bytes()) }.map(|symbol| *symbol).map_err(|error| why(&error))
}

impl Nccl {
    /// Loads `libnccl.so.2`, or the file of this name.
    ///
    /// # Errors
    /// If it cannot be loaded or lacks a function.
    pub fn load(name: impl AsRef<OsStr>) -> Result<Nccl, String> {
        let l = open(name)?;
        // SAFETY: the types of the fields are the prototypes of nccl.h.
        unsafe {
            Ok(Nccl {
                get_version: symbol(l, "ncclGetVersion")?,
                get_unique_id: symbol(l, "ncclGetUniqueId")?,
                init_rank: symbol(l, "ncclCommInitRank")?,
                init_all: symbol(l, "ncclCommInitAll")?,
                finalize: symbol(l, "ncclCommFinalize")?,
                destroy: symbol(l, "ncclCommDestroy")?,
                abort: symbol(l, "ncclCommAbort")?,
                count: symbol(l, "ncclCommCount")?,
                async_error: symbol(l, "ncclCommGetAsyncError")?,
                error_string: symbol(l, "ncclGetErrorString")?,
                last_error: symbol(l, "ncclGetLastError")?,
                group_start: symbol(l, "ncclGroupStart")?,
                group_end: symbol(l, "ncclGroupEnd")?,
                all_reduce: symbol(l, "ncclAllReduce")?,
                mem_alloc: symbol(l, "ncclMemAlloc")?,
                mem_free: symbol(l, "ncclMemFree")?,
                register: symbol(l, "ncclCommRegister").ok(),
                deregister: symbol(l, "ncclCommDeregister").ok(),
                set_encryption: symbol(l, "ncclSetEncryption").ok(),
            })
        }
    }

    /// Sets the key that connections made from now on are encrypted with, or none.
    ///
    /// # Errors
    /// The library's; where it has no such function, too.
    pub fn set_encryption(&self, key: Option<&str>) -> Result<(), Failure> {
        let call = "ncclSetEncryption";
        let lacks = || Failure { call, code: -1, text: "this library has no ncclSetEncryption".to_string() };
        let set = self.set_encryption.ok_or_else(lacks)?;
        let key = key.map(|key| CString::new(key).expect("a key has no zero in it"));
        let config = key.as_ref().map(|key| abi::EncryptionConfig::new(key));
        // SAFETY: configuration and key live until the call is over.
        self.check(call, unsafe { set(config.as_ref().map_or(std::ptr::null(), |config| config)) })
    }

    /// Sets the key that this process's environment has for it, if it has one.
    ///
    /// # Panics
    /// If it is refused.
    pub fn encrypt_as_told(&self) {
        if let Ok(key) = std::env::var(TEST_KEY) {
            self.set_encryption(Some(&key)).expect("a key");
        }
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        let text = format!("{}; {}", self.error_string(code), self.last_error());
        Err(Failure { call, code, text })
    }

    /// `ncclGetErrorString`.
    pub fn error_string(&self, code: i32) -> String {
        // SAFETY: takes any number; the answer is a static C string.
        unsafe { CStr::from_ptr((self.error_string)(code)) }.to_string_lossy().into_owned()
    }

    /// `ncclGetLastError(NULL)`.
    pub fn last_error(&self) -> String {
        // SAFETY: NULL is allowed; the answer is a C string of the library.
        unsafe { CStr::from_ptr((self.last_error)(Comm::NULL)) }.to_string_lossy().into_owned()
    }

    /// `ncclGetVersion`.
    ///
    /// # Errors
    /// What the library returns.
    pub fn version(&self) -> Result<i32, Failure> {
        let mut version = 0;
        // SAFETY: the pointer is to a live int.
        self.check("ncclGetVersion", unsafe { (self.get_version)(&mut version) })?;
        Ok(version)
    }

    /// `ncclGetUniqueId`.
    ///
    /// # Errors
    /// What the library returns.
    pub fn unique_id(&self) -> Result<UniqueId, Failure> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is to a live id.
        self.check("ncclGetUniqueId", unsafe { (self.get_unique_id)(&mut id) })?;
        Ok(id)
    }

    /// `ncclCommInitRank` on the current device; the handle is written to `comm`, which in a group happens
    /// at [`Nccl::group_end`].
    ///
    /// # Errors
    /// What the library returns.
    ///
    /// # Safety
    /// In a group, `comm` must stay where it is until the group has ended.
    pub unsafe fn init_rank(&self, comm: *mut Comm, nranks: usize, id: UniqueId, rank: usize) -> Result<(), Failure> {
        // SAFETY: the caller vouches for `comm`.
        self.check("ncclCommInitRank", unsafe { (self.init_rank)(comm, int(nranks), id, int(rank)) })
    }

    /// `ncclCommInitAll` on the devices 0 to n-1.
    ///
    /// # Errors
    /// What the library returns.
    pub fn init_all(&self, n: usize) -> Result<Vec<Comm>, Failure> {
        let mut comms = vec![Comm::NULL; n];
        // SAFETY: the array has room for n handles; NULL stands for the devices in order.
        let code = unsafe { (self.init_all)(comms.as_mut_ptr(), int(n), std::ptr::null()) };
        self.check("ncclCommInitAll", code)?;
        Ok(comms)
    }

    /// `ncclCommCount`.
    ///
    /// # Errors
    /// What the library returns.
    pub fn count(&self, comm: Comm) -> Result<i32, Failure> {
        let mut n = 0;
        // SAFETY: the library checks the handle; the pointer is to a live int.
        self.check("ncclCommCount", unsafe { (self.count)(comm, &mut n) })?;
        Ok(n)
    }

    /// `ncclCommGetAsyncError`: the communicator's state as a result code.
    ///
    /// # Errors
    /// What the query itself returns.
    pub fn async_error(&self, comm: Comm) -> Result<i32, Failure> {
        let mut state = 0;
        // SAFETY: the library checks the handle; the pointer is to a live int.
        self.check("ncclCommGetAsyncError", unsafe { (self.async_error)(comm, &mut state) })?;
        Ok(state)
    }

    /// Polls until nothing is under way; the communicator's state.
    ///
    /// # Panics
    /// If that takes longer than [`SETTLE`], or the handle is not one of a live communicator.
    pub fn settle(&self, comm: Comm) -> i32 {
        let until = Instant::now() + SETTLE;
        loop {
            match self.async_error(comm).expect("a live handle") {
                IN_PROGRESS => assert!(Instant::now() < until, "still in progress"),
                state => return state,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// `ncclCommFinalize`.
    ///
    /// # Errors
    /// What the library returns.
    pub fn finalize(&self, comm: Comm) -> Result<(), Failure> {
        // SAFETY: the library checks the handle.
        self.check("ncclCommFinalize", unsafe { (self.finalize)(comm) })
    }

    /// `ncclCommDestroy`.
    ///
    /// # Errors
    /// What the library returns.
    pub fn destroy(&self, comm: Comm) -> Result<(), Failure> {
        // SAFETY: the library checks the handle.
        self.check("ncclCommDestroy", unsafe { (self.destroy)(comm) })
    }

    /// `ncclCommAbort`.
    ///
    /// # Errors
    /// What the library returns.
    pub fn abort(&self, comm: Comm) -> Result<(), Failure> {
        // SAFETY: the library checks the handle.
        self.check("ncclCommAbort", unsafe { (self.abort)(comm) })
    }

    /// `ncclGroupStart`.
    ///
    /// # Errors
    /// What the library returns.
    pub fn group_start(&self) -> Result<(), Failure> {
        // SAFETY: no arguments.
        self.check("ncclGroupStart", unsafe { (self.group_start)() })
    }

    /// `ncclGroupEnd`.
    ///
    /// # Errors
    /// What the library returns.
    pub fn group_end(&self) -> Result<(), Failure> {
        // SAFETY: no arguments.
        self.check("ncclGroupEnd", unsafe { (self.group_end)() })
    }

    /// `ncclAllReduce` of `count` elements. The pointers are device addresses.
    ///
    /// # Errors
    /// What the library returns.
    ///
    /// # Safety
    /// Both must be good for `count` elements until the stream has done the work.
    pub unsafe fn all_reduce(
        &self,
        (send, recv): (u64, u64),
        count: usize,
        (dtype, op): (DataType, RedOp),
        comm: Comm,
        stream: *mut c_void,
    ) -> Result<(), Failure> {
        let (send, recv) = (send as *mut c_void, recv as *mut c_void);
        // SAFETY: the caller vouches for the buffers; the library checks the rest.
        let code = unsafe { (self.all_reduce)(send, recv, count, dtype as c_int, op as c_int, comm, stream) };
        self.check("ncclAllReduce", code)
    }

    /// `ncclMemAlloc`: a device address.
    ///
    /// # Errors
    /// What the library returns.
    pub fn mem_alloc(&self, bytes: usize) -> Result<u64, Failure> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        self.check("ncclMemAlloc", unsafe { (self.mem_alloc)(&mut pointer, bytes) })?;
        Ok(pointer as u64)
    }

    /// `ncclMemFree`.
    ///
    /// # Errors
    /// What the library returns.
    ///
    /// # Safety
    /// Nothing may use the memory any more.
    pub unsafe fn mem_free(&self, pointer: u64) -> Result<(), Failure> {
        // SAFETY: the caller vouches for the memory.
        self.check("ncclMemFree", unsafe { (self.mem_free)(pointer as *mut c_void) })
    }

    /// `ncclCommRegister`: a handle, 0 where nothing came of it.
    ///
    /// # Errors
    /// What the library returns.
    ///
    /// # Panics
    /// If the library has no such function.
    pub fn register(&self, comm: Comm, buffer: u64, bytes: usize) -> Result<usize, Failure> {
        let mut handle = std::ptr::null_mut();
        let register = self.register.expect("the library has ncclCommRegister");
        // SAFETY: the pointer is to a live handle; the buffer is only looked up.
        self.check("ncclCommRegister", unsafe { register(comm, buffer as *mut c_void, bytes, &mut handle) })?;
        Ok(handle as usize)
    }

    /// `ncclCommDeregister`.
    ///
    /// # Errors
    /// What the library returns.
    ///
    /// # Panics
    /// If the library has no such function.
    pub fn deregister(&self, comm: Comm, handle: usize) -> Result<(), Failure> {
        let deregister = self.deregister.expect("the library has ncclCommDeregister");
        // SAFETY: any handle may be given: what is none is refused.
        self.check("ncclCommDeregister", unsafe { deregister(comm, handle as *mut c_void) })
    }
}

fn int(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}
