//! Virtual memory management under strain: many threads, every call failing once, nothing left behind.
//! (What each call answers is in `c/virtual_memory.c`.)

mod common;

use common::api::{Api, ok};
use common::{count, count_maps, library_dir, role, run_child};
use std::ffi::{c_int, c_void};

const GRAIN: usize = 2 << 20;
const OUT_OF_MEMORY: c_int = 2;

/// `CUmemAllocationProp` of pinned memory on device 0 that can be exported.
#[repr(C)]
struct Properties {
    kind: c_int,
    handles: c_int,
    location: [c_int; 2],
    win32: usize,
    flags: u64,
}

static ON_DEVICE_0: Properties = Properties { kind: 1, handles: 1, location: [1, 0], win32: 0, flags: 0 };
/// `CUmemAccessDesc`: device 0 reads and writes.
static ACCESS: [c_int; 3] = [1, 0, 3];

#[derive(Clone, Copy)]
struct Calls {
    create: extern "C" fn(*mut u64, usize, *const Properties, u64) -> c_int,
    release: extern "C" fn(u64) -> c_int,
    reserve: extern "C" fn(*mut u64, usize, usize, u64, u64) -> c_int,
    unreserve: extern "C" fn(u64, usize) -> c_int,
    map: extern "C" fn(u64, usize, usize, u64, u64) -> c_int,
    unmap: extern "C" fn(u64, usize) -> c_int,
    access: extern "C" fn(u64, usize, *const c_int, usize) -> c_int,
    export: extern "C" fn(*mut c_int, u64, c_int, u64) -> c_int,
    import: extern "C" fn(*mut u64, *mut c_void, c_int) -> c_int,
    retain: extern "C" fn(*mut u64, u64) -> c_int,
}

impl Calls {
    fn open() -> Calls {
        // SAFETY: softcuda's own library, and the types of NVIDIA's documentation. It is never unloaded.
        unsafe {
            let library = libloading::Library::new(library_dir().join("libcuda.so.1")).expect("softcuda's driver");
            Calls {
                create: *library.get(b"cuMemCreate\0").expect("exported"),
                release: *library.get(b"cuMemRelease\0").expect("exported"),
                reserve: *library.get(b"cuMemAddressReserve\0").expect("exported"),
                unreserve: *library.get(b"cuMemAddressFree\0").expect("exported"),
                map: *library.get(b"cuMemMap\0").expect("exported"),
                unmap: *library.get(b"cuMemUnmap\0").expect("exported"),
                access: *library.get(b"cuMemSetAccess\0").expect("exported"),
                export: *library.get(b"cuMemExportToShareableHandle\0").expect("exported"),
                import: *library.get(b"cuMemImportFromShareableHandle\0").expect("exported"),
                retain: *library.get(b"cuMemRetainAllocationHandle\0").expect("exported"),
            }
        }
    }

    /// An import of the memory by a descriptor, which is closed again.
    fn share(&self, handle: u64) -> Result<u64, c_int> {
        let (mut fd, mut imported) = (-1, 0);
        result((self.export)(&mut fd, handle, 1, 0))?;
        let status = (self.import)(&mut imported, fd as usize as *mut c_void, 1);
        // SAFETY: a descriptor that was made for us.
        unsafe { libc::close(fd) };
        result(status).map(|()| imported)
    }

    /// Maps the memory, lets `body` use it, and undoes everything, however far it came.
    fn with_mapping(&self, handle: u64, body: impl FnOnce(u64) -> Result<(), c_int>) -> Result<(), c_int> {
        let mut at = 0;
        result((self.reserve)(&mut at, GRAIN, 0, 0, 0))?;
        let mapped = result((self.map)(at, GRAIN, 0, handle, 0));
        let used = mapped.and_then(|()| result((self.access)(at, GRAIN, ACCESS.as_ptr(), 1))).and_then(|()| body(at));
        // What fails once works the second time.
        if mapped.is_ok() && (self.unmap)(at, GRAIN) != 0 {
            ok((self.unmap)(at, GRAIN));
        }
        if (self.unreserve)(at, GRAIN) != 0 {
            ok((self.unreserve)(at, GRAIN));
        }
        used
    }

    fn let_go(&self, handle: u64) {
        if (self.release)(handle) != 0 {
            ok((self.release)(handle));
        }
    }

    /// One life of memory, seen through two mappings.
    fn live(&self, api: &Api, value: u8) -> Result<(), c_int> {
        let mut handle = 0;
        result((self.create)(&mut handle, GRAIN, &ON_DEVICE_0, 0))?;
        let shared = self.share(handle);
        let done = shared.and_then(|shared| {
            self.with_mapping(handle, |one| {
                self.with_mapping(shared, |other| {
                    let (mut retained, mut seen) = (0, [0u8; 2]);
                    result((self.retain)(&mut retained, other))?;
                    self.let_go(retained);
                    result((api.set_d8_async)(one, value, GRAIN, 2))?;
                    result((api.stream_synchronize)(2))?;
                    ok((api.copy_from_async)(seen.as_mut_ptr().cast(), other + GRAIN as u64 - 2, 2, 2));
                    ok((api.stream_synchronize)(2));
                    assert_eq!(seen, [value; 2]);
                    Ok(())
                })
            })
        });
        shared.into_iter().for_each(|shared| self.let_go(shared));
        self.let_go(handle);
        done
    }
}

fn result(code: c_int) -> Result<(), c_int> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// Descriptors, mappings and free bytes.
fn state(api: &Api) -> (usize, usize, usize) {
    let (mut free, mut total) = (0, 0);
    ok((api.memory_info)(&mut free, &mut total));
    (count("/proc/self/fd"), count_maps(), free)
}

#[test]
fn many_threads_leave_nothing_behind() {
    if role().is_none() {
        return run_child("many_threads_leave_nothing_behind", "run", &[]);
    }
    let (api, calls) = (Api::open(), Calls::open());
    ok((api.init)(0));
    let context = api.use_device(0);
    assert_eq!(calls.live(&api, 1), Ok(()));
    let before = state(&api);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let api = &api;
            scope.spawn(move || {
                ok((api.context_set)(context));
                (0..50).for_each(|round| assert_eq!(calls.live(api, thread * 50 + round), Ok(())));
            });
        }
    });
    assert_eq!(state(&api), before);
}

/// Each call of a life fails once; what the client then gives back is all there is.
#[test]
fn every_failure_can_be_cleaned_up() {
    let names = ["Create", "Release", "AddressReserve", "AddressFree", "Map", "Unmap", "SetAccess"];
    let more = ["ExportToShareableHandle", "ImportFromShareableHandle", "RetainAllocationHandle", "setD8Async"];
    if role().is_some() {
        let (api, calls) = (Api::open(), Calls::open());
        ok((api.init)(0));
        api.use_device(0);
        ok((api.stream_synchronize)(2));
        let before = state(&api);
        // The second use may be in the second life; nothing fails in the third.
        let lives: Vec<_> = (1..4)
            .map(|value| {
                let end = calls.live(&api, value);
                assert_eq!(state(&api), before, "{end:?}");
                end
            })
            .collect();
        assert_eq!(lives[2], Ok(()), "{lives:?}");
        return;
    }
    for name in names.iter().chain(&more) {
        for nth in 1..3 {
            run_child("every_failure_can_be_cleaned_up", "run", &[("SOFTCUDA_FAULT", &format!("cuMem{name}:{nth}"))]);
        }
    }
}

#[test]
fn the_budget_is_the_devices() {
    if role().is_none() {
        return run_child("the_budget_is_the_devices", "run", &[("SOFTCUDA_MEMORY", "8M")]);
    }
    let (api, calls) = (Api::open(), Calls::open());
    ok((api.init)(0));
    api.use_device(0);
    let mut handles = [0; 4];
    handles.iter_mut().for_each(|handle| ok((calls.create)(handle, GRAIN, &ON_DEVICE_0, 0)));
    let (mut more, mut plain) = (0, 0);
    assert_eq!((calls.create)(&mut more, GRAIN, &ON_DEVICE_0, 0), OUT_OF_MEMORY);
    assert_eq!((api.alloc)(&mut plain, 1), OUT_OF_MEMORY);
    // An import is memory that is there already.
    let shared = calls.share(handles[0]).expect("it can be exported");
    ok((calls.release)(handles[0]));
    ok((api.alloc)(&mut plain, GRAIN));
    assert_eq!((calls.create)(&mut more, GRAIN, &ON_DEVICE_0, 0), OUT_OF_MEMORY);
    ok((calls.release)(shared));
}
