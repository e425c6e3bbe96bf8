//! Implicit synchronisation: which calls that manage memory wait for the device's work, and which do not.

mod common;

use common::api::{Api, ok};
use common::{role, run_child};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const NON_BLOCKING: u32 = 1;
const NOT_READY: i32 = 600;
/// A call that waits is seen to do so for this long.
const WAITS: Duration = Duration::from_millis(20);
/// A call that does not has this long to return.
const RETURNS: Duration = Duration::from_secs(10);

/// A kernel on device 0 that runs until it is told to end.
struct Stuck<'a> {
    api: &'a Api,
    stream: u64,
    flag: &'static AtomicU32,
    wait: u64,
}

impl<'a> Stuck<'a> {
    fn new(api: &'a Api) -> Stuck<'a> {
        let mut word = ptr::null_mut();
        ok((api.host_alloc)(&mut word, 4, 0));
        // SAFETY: pinned memory of this process, never freed, used by atomics alone.
        let flag = unsafe { &*word.cast::<AtomicU32>() };
        Stuck { api, stream: api.stream(NON_BLOCKING), flag, wait: api.function(api.module(), "wait_for") }
    }

    fn start(&self) {
        self.flag.store(0, Ordering::SeqCst);
        self.api.run(self.wait, self.stream, &[ptr::from_ref(self.flag) as u64, 1]);
    }

    fn end(&self) {
        self.flag.store(1, Ordering::SeqCst);
    }

    /// Makes the call while the kernel runs, and checks whether it waits for it.
    fn check(&self, name: &str, waits: bool, call: impl FnOnce()) {
        self.start();
        let returned = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let until = Instant::now() + if waits { WAITS } else { RETURNS };
                while !returned.load(Ordering::SeqCst) && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let did_return = returned.load(Ordering::SeqCst);
                self.end();
                did_return
            });
            call();
            returned.store(true, Ordering::SeqCst);
            assert_eq!(
                watcher.join().expect("the watcher"),
                !waits,
                "{name}: whether it returned while the kernel ran"
            );
        });
        ok((self.api.stream_synchronize)(self.stream));
    }
}

/// The body in a child, for one value of `SOFTCUDA_ALLOC_WAITS`.
fn in_child(name: &str, value: &str, body: impl FnOnce(&Api)) {
    match role() {
        Some(given) if given == value => body(&Api::ready()),
        Some(_) => {}
        None => run_child(name, value, &[("SOFTCUDA_ALLOC_WAITS", value)]),
    }
}

/// Checks every call, first those that allocate, then those that take the memory away.
fn check_all(api: &Api, allocations_wait: bool) {
    let stuck = Stuck::new(api);
    let (mut device, mut managed, mut pitched, mut pitch) = (0, 0, 0, 0);
    let (mut pinned, mut locked) = (ptr::null_mut(), ptr::null_mut());
    let mut own = vec![0u8; 8192];
    let own: *mut c_void = own.as_mut_ptr().cast();
    stuck.check("cuMemAlloc", allocations_wait, || ok((api.alloc)(&mut device, 64)));
    stuck.check("cuMemAllocManaged", allocations_wait, || ok((api.alloc_managed)(&mut managed, 64, 1)));
    stuck.check("cuMemAllocPitch", allocations_wait, || ok((api.alloc_pitch)(&mut pitched, &mut pitch, 64, 2, 4)));
    stuck.check("cuMemHostAlloc", allocations_wait, || ok((api.host_alloc)(&mut pinned, 64, 0)));
    stuck.check("cuMemAllocHost", allocations_wait, || ok((api.alloc_host)(&mut locked, 64)));
    stuck.check("cuMemHostRegister", allocations_wait, || ok((api.host_register)(own, 8192, 0)));
    stuck.check("cuMemHostUnregister", true, || ok((api.host_unregister)(own)));
    stuck.check("cuMemFree", true, || ok((api.free)(device)));
    stuck.check("cuMemFree of managed memory", true, || ok((api.free)(managed)));
    stuck.check("cuMemFree of pitched memory", true, || ok((api.free)(pitched)));
    stuck.check("cuMemFreeHost", true, || ok((api.host_free)(pinned)));
    stuck.check("cuMemFreeHost of cuMemAllocHost's", true, || ok((api.host_free)(locked)));
}

#[test]
fn what_manages_memory_waits_for_the_device() {
    in_child("what_manages_memory_waits_for_the_device", "1", |api| check_all(api, true));
}

/// The setting concerns what allocates; what takes memory away waits in any case, since work may use it.
#[test]
fn allocations_can_be_told_not_to_wait() {
    in_child("allocations_can_be_told_not_to_wait", "0", |api| check_all(api, false));
}

/// Stream-ordered allocation is made for this, another device has nothing to do with it, and bad calls need no device.
#[test]
fn others_do_not_wait() {
    in_child("others_do_not_wait", "1", |api| {
        let stuck = Stuck::new(api);
        let (other, mut memory) = (api.stream(NON_BLOCKING), 0);
        stuck.start();
        ok((api.alloc_async)(&mut memory, 64, other));
        ok((api.free_async)(memory, other));
        ok((api.stream_synchronize)(other));
        let (mut free, mut total) = (0, 0);
        ok((api.memory_info)(&mut free, &mut total));
        let mut host = ptr::null_mut();
        assert_ne!((api.host_alloc)(&mut host, 64, 99), 0, "unknown flags");
        assert_ne!((api.free)(memory + 64), 0, "not an allocation");
        api.use_device(1);
        ok((api.alloc)(&mut memory, 64));
        ok((api.host_alloc)(&mut host, 64, 0));
        ok((api.free)(memory));
        ok((api.host_free)(host));
        assert_eq!((api.stream_query)(stuck.stream), NOT_READY);
        stuck.end();
        ok((api.stream_synchronize)(stuck.stream));
    });
}
