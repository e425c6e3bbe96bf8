//! The C interface as it is: plain numbers for handles, pointers and enums, so that anything can be passed.

use std::ffi::{CStr, c_int, c_void};

use libloading::Library;

use crate::common::abi::{self, Comm, Config, SUCCESS, UniqueId};
use crate::common::cuda::{Cuda, Stream};
use crate::common::nccl::{open, symbol};
use crate::common::profile_dir;

/// `ncclInt32`, `ncclFloat64`, `ncclSum`.
pub const INT32: i32 = 2;
pub const FLOAT64: i32 = 8;
pub const SUM: i32 = 0;

/// What a call returned, and `ncclGetLastError` after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub code: i32,
    pub text: String,
}

impl Answer {
    /// Fails unless the code is this one and the text has all these parts.
    #[track_caller]
    pub fn is(&self, code: i32, parts: &[&str]) -> &Answer {
        assert_eq!(self.code, code, "{self:?}");
        for part in parts {
            assert!(self.text.contains(part), "`{part}` is missing in {self:?}");
        }
        self
    }

    #[track_caller]
    pub fn ok(&self) {
        self.is(SUCCESS, &[]);
    }
}

/// The library.
#[derive(Clone, Copy)]
pub struct Lib(&'static Library);

/// A pointer of any value.
pub fn pointer(number: u64) -> *mut c_void {
    number as *mut c_void
}

impl Lib {
    /// The library that this build made; it need not find a driver.
    pub fn load() -> Lib {
        Lib(open(profile_dir().join("libnccl.so.2")).expect("libnccl.so.2 loads"))
    }

    /// A function by its name. Every call of it is the caller's risk: that is what is tested.
    pub fn get<T: Copy>(&self, name: &str) -> T {
        // SAFETY: callers name the function's type; a wrong one would be an error of the test.
        unsafe { symbol(self.0, name) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The code with the text of the last error.
    pub fn answer(&self, code: c_int) -> Answer {
        let last: abi::GetLastError = self.get("ncclGetLastError");
        // SAFETY: any handle is allowed; the answer is a C string of the library.
        let text = unsafe { CStr::from_ptr(last(Comm::NULL)) }.to_string_lossy().into_owned();
        Answer { code, text }
    }

    /// A function of a handle alone.
    pub fn simple(&self, name: &str, comm: usize) -> Answer {
        let call: abi::OfComm = self.get(name);
        // SAFETY: the library must cope with any number.
        self.answer(unsafe { call(Comm::from_number(comm)) })
    }

    pub fn destroy(&self, comm: usize) -> Answer {
        self.simple("ncclCommDestroy", comm)
    }

    pub fn abort(&self, comm: usize) -> Answer {
        self.simple("ncclCommAbort", comm)
    }

    /// A question about a handle that is answered by an int.
    pub fn query(&self, name: &str, comm: usize) -> (Answer, i32) {
        let call: abi::CommQuery = self.get(name);
        let mut value = -77;
        // SAFETY: the library must cope with any handle; the pointer is to a live int.
        let code = unsafe { call(Comm::from_number(comm), &mut value) };
        (self.answer(code), value)
    }

    pub fn count(&self, comm: usize) -> Answer {
        self.query("ncclCommCount", comm).0
    }

    /// What `ncclCommGetAsyncError` says of the communicator.
    #[track_caller]
    pub fn state(&self, comm: usize) -> i32 {
        let (answer, state) = self.query("ncclCommGetAsyncError", comm);
        answer.ok();
        state
    }

    pub fn unique_id(&self) -> (Answer, UniqueId) {
        let call: abi::GetUniqueId = self.get("ncclGetUniqueId");
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is to a live id.
        let code = unsafe { call(&mut id) };
        (self.answer(code), id)
    }

    /// An id that must come.
    #[track_caller]
    pub fn id(&self) -> UniqueId {
        let (answer, id) = self.unique_id();
        answer.ok();
        id
    }

    /// `ncclCommInitRank`.
    pub fn init(&self, nranks: i32, id: UniqueId, rank: i32) -> (Answer, usize) {
        let call: abi::CommInitRank = self.get("ncclCommInitRank");
        let mut comm = Comm::from_number(usize::MAX);
        // SAFETY: the pointer is to a live handle.
        let code = unsafe { call(&mut comm, nranks, id, rank) };
        (self.answer(code), comm.0 as usize)
    }

    /// `ncclCommInitRank` inside a group.
    ///
    /// # Safety
    /// `comm` must stay where it is until the group has ended.
    pub unsafe fn init_in_group(&self, comm: *mut Comm, nranks: i32, id: UniqueId, rank: i32) -> Answer {
        let call: abi::CommInitRank = self.get("ncclCommInitRank");
        // SAFETY: by the contract.
        self.answer(unsafe { call(comm, nranks, id, rank) })
    }

    /// `ncclCommInitRankConfig`.
    pub fn init_config(&self, nranks: i32, id: UniqueId, rank: i32, config: Config) -> (Answer, usize) {
        let call: abi::CommInitRankConfig = self.get("ncclCommInitRankConfig");
        let mut comm = Comm::from_number(usize::MAX);
        // SAFETY: the pointers are to live objects; without blocking the handle is written before the return.
        let code = unsafe { call(&mut comm, nranks, id, rank, &config) };
        (self.answer(code), comm.0 as usize)
    }

    /// `ncclCommInitAll`; the devices in order without a list.
    pub fn init_all(&self, ndev: i32, list: Option<&[i32]>) -> (Answer, Vec<usize>) {
        let call: abi::CommInitAll = self.get("ncclCommInitAll");
        let mut comms = vec![Comm::NULL; 64];
        // SAFETY: the array has room for more devices than there are; the list is as long as it says.
        let code = unsafe { call(comms.as_mut_ptr(), ndev, list.map_or(std::ptr::null(), <[i32]>::as_ptr)) };
        comms.truncate(usize::try_from(ndev).unwrap_or(0));
        (self.answer(code), comms.into_iter().map(|comm| comm.0 as usize).collect())
    }

    pub fn all_reduce(
        &self,
        (send, recv): (u64, u64),
        count: usize,
        (dt, op): (i32, i32),
        comm: usize,
        stream: usize,
    ) -> Answer {
        let call: abi::Reducing = self.get("ncclAllReduce");
        // SAFETY: callers pass memory of the device, or what the library must refuse.
        self.answer(unsafe {
            call(pointer(send), pointer(recv), count, dt, op, Comm::from_number(comm), pointer(stream as u64))
        })
    }

    pub fn group_start(&self) {
        let call: abi::Group = self.get("ncclGroupStart");
        // SAFETY: no arguments.
        self.answer(unsafe { call() }).ok();
    }

    pub fn group_end(&self) -> Answer {
        let call: abi::Group = self.get("ncclGroupEnd");
        // SAFETY: no arguments.
        self.answer(unsafe { call() })
    }
}

/// Memory and a stream of a device, for a rank's sums.
pub struct Bench {
    pub cuda: Cuda,
    pub stream: Stream,
    pub send: u64,
    pub recv: u64,
}

/// Elements of a sum.
pub const ELEMENTS: usize = 3000;

impl Bench {
    /// On a device, whose context becomes current.
    pub fn new(cuda: Cuda, device: usize) -> Bench {
        cuda.use_device(device).expect("a context");
        let bytes = 4 * ELEMENTS;
        let (send, recv) = (cuda.alloc(bytes).expect("memory"), cuda.alloc(bytes).expect("memory"));
        Bench { cuda, stream: cuda.stream().expect("a stream"), send, recv }
    }

    fn raw(&self) -> usize {
        self.stream.0 as usize
    }

    /// Begins to sum `(rank + 1) * (i + 1)` over all ranks.
    pub fn begin(&self, lib: Lib, comm: usize, rank: usize) {
        self.try_begin(lib, comm, rank).ok();
    }

    /// The same; what the call answers.
    pub fn try_begin(&self, lib: Lib, comm: usize, rank: usize) -> Answer {
        let input: Vec<u8> = (0..ELEMENTS).flat_map(|i| (((rank + 1) * (i + 1)) as i32).to_ne_bytes()).collect();
        self.cuda.copy_to_device(self.send, &input).expect("a copy");
        self.cuda.fill(self.recv, 0xee, 4 * ELEMENTS).expect("a fill");
        // A fill of device memory does not wait for its end.
        self.cuda.wait(Stream(std::ptr::null_mut())).expect("the fill");
        lib.all_reduce((self.send, self.recv), ELEMENTS, (INT32, SUM), comm, self.raw())
    }

    /// Sums what is there.
    pub fn again(&self, lib: Lib, comm: usize) {
        lib.all_reduce((self.send, self.recv), ELEMENTS, (INT32, SUM), comm, self.raw()).ok();
    }

    /// Waits for the sum and checks it.
    pub fn check(&self, nranks: usize) {
        self.cuda.wait(self.stream).expect("the work");
        let mut output = vec![0; 4 * ELEMENTS];
        self.cuda.copy_to_host(&mut output, self.recv).expect("a copy");
        let ranks = (nranks * (nranks + 1) / 2) as i32;
        for (i, got) in output.chunks(4).enumerate() {
            let want = ranks * (i as i32 + 1);
            assert_eq!(got, want.to_ne_bytes(), "element {i} should be {want}");
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.cuda.destroy_stream(self.stream);
        for pointer in [self.send, self.recv] {
            // SAFETY: the stream's work has ended, and nothing else uses the memory.
            let _ = unsafe { self.cuda.free(pointer) };
        }
    }
}
