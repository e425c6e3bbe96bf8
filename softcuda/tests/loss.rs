//! Devices that are lost on request: what is said afterwards, what becomes of the work, and who need not hang.

mod common;

use common::api::{Api, ok};
use common::{library_dir, role, run_child, until};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

const LAUNCH_FAILED: c_int = 719;
const ECC: c_int = 214;
const NOT_READY: c_int = 600;
const NON_BLOCKING: u32 = 1;
const BY_CALL: (&str, &str) = ("SOFTCUDA_FAULT", "lose@call");

fn in_child(name: &str, settings: &[(&str, &str)], body: impl FnOnce(&'static Api)) {
    match role() {
        Some(_) => body(Box::leak(Box::new(Api::ready()))),
        None => run_child(name, "run", settings),
    }
}

fn library(name: &str) -> libloading::Library {
    // SAFETY: softcuda's own library.
    unsafe { libloading::Library::new(library_dir().join(name)) }.expect(name)
}

fn function<F: Copy>(library: &libloading::Library, name: &str) -> F {
    // SAFETY: each caller gives the type of NVIDIA's documentation, or of softcuda.h.
    unsafe { *library.get::<F>(name.as_bytes()).expect("exported") }
}

fn lose(device: c_int, code: c_int) -> c_int {
    function::<extern "C" fn(c_int, c_int) -> c_int>(&library("libcuda.so.1"), "softcudaLoseDevice")(device, code)
}

/// A word of pinned memory, never freed.
fn word(api: &Api) -> &'static AtomicU32 {
    let mut word = ptr::null_mut();
    ok((api.host_alloc)(&mut word, 4, 0));
    // SAFETY: pinned memory of this process, never freed, used by atomics alone.
    unsafe { &*word.cast::<AtomicU32>() }
}

fn address(word: &'static AtomicU32) -> u64 {
    ptr::from_ref(word) as u64
}

fn context(api: &Api) -> u64 {
    let mut context = 0;
    ok((api.context_get)(&mut context));
    context
}

/// A thread that makes a call which waits.
fn waiter(
    context: u64,
    api: &'static Api,
    call: impl FnOnce() -> c_int + Send + 'static,
) -> std::thread::JoinHandle<c_int> {
    std::thread::spawn(move || {
        ok((api.context_set)(context));
        call()
    })
}

/// Every kind of wait ends, although the kernel never does, and says why.
#[test]
fn nobody_waits_for_a_lost_device() {
    in_child("nobody_waits_for_a_lost_device", &[BY_CALL], |api| {
        let (stuck, flag, context) = (api.stream(NON_BLOCKING), word(api), context(api));
        let wait_for = api.function(api.module(), "wait_for");
        let (event, memory, behind) = (api.event(0), api.memory(1 << 20), api.stream(NON_BLOCKING));
        api.run(wait_for, stuck, &[address(flag), 1]);
        ok((api.event_record)(event, stuck));
        ok((api.stream_wait_event)(behind, event, 0));
        ok((api.stream_wait_32)(behind, address(flag), 2, 1));
        api.use_device(1);
        let (elsewhere, set) = (api.stream(NON_BLOCKING), api.function(api.module(), "set"));
        ok((api.stream_wait_event)(elsewhere, event, 0));
        api.run(set, elsewhere, &[address(flag), 7]);
        ok((api.context_set)(context));
        let mut host = vec![0u8; 1 << 20];
        let to = host.as_mut_ptr() as usize;
        let waiters = [
            waiter(context, api, move || (api.stream_synchronize)(stuck)),
            waiter(context, api, move || (api.stream_synchronize)(behind)),
            waiter(context, api, move || (api.event_synchronize)(event)),
            waiter(context, api, move || (api.context_synchronize)()),
            waiter(context, api, move || (api.free)(memory)),
            waiter(context, api, move || (api.copy_from_async)(to as *mut c_void, memory, 1 << 20, stuck)),
        ];
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        ok(lose(0, LAUNCH_FAILED));
        for waiter in waiters {
            assert_eq!(waiter.join().expect("no panic"), LAUNCH_FAILED);
        }
        // The other device's stream goes on.
        ok((api.stream_synchronize)(elsewhere));
        assert_eq!(flag.load(Ordering::SeqCst), 7);
        drop(host);
    });
}

static CALLED: AtomicI32 = AtomicI32::new(-1);
static RUN: AtomicI32 = AtomicI32::new(0);

extern "C" fn callback(_stream: u64, status: c_int, _data: *mut c_void) {
    CALLED.store(status, Ordering::SeqCst);
}

extern "C" fn host_function(_data: *mut c_void) {
    RUN.fetch_add(1, Ordering::SeqCst);
}

/// What was queued is not done, not even when the kernel ahead of it ends.
#[test]
fn queued_work_is_dropped() {
    in_child("queued_work_is_dropped", &[BY_CALL], |api| {
        let (stream, flag, result, module) = (api.stream(NON_BLOCKING), word(api), word(api), api.module());
        let memory = api.memory(64);
        api.run(api.function(module, "wait_for"), stream, &[address(flag), 1]);
        api.run(api.function(module, "set"), stream, &[address(result), 5]);
        ok((api.stream_write_32)(stream, address(result), 6, 0));
        ok((api.launch_host)(stream, host_function, ptr::null_mut()));
        ok((api.set_d32_async)(memory, 9, 4, stream));
        ok((api.stream_callback)(stream, callback, ptr::null_mut(), 0));
        assert_eq!((api.stream_query)(stream), NOT_READY);
        ok(lose(0, ECC));
        assert_eq!((api.stream_synchronize)(stream), ECC);
        flag.store(1, Ordering::SeqCst);
        until("the callback hears of it", || CALLED.load(Ordering::SeqCst) == ECC);
        assert_eq!((RUN.load(Ordering::SeqCst), result.load(Ordering::SeqCst)), (0, 0));
    });
}

/// Every call on the device's objects, from a thread where its context is current and from one where it is not.
fn check_calls(api: &Api, code: c_int) {
    let (mut pointer, mut other, mut host, mut device) = (0u64, 0, ptr::null_mut(), 0);
    let (mut free, mut total) = (0, 0);
    let without: [(&str, c_int); 14] = [
        ("alloc", (api.alloc)(&mut pointer, 64)),
        ("host_alloc", (api.host_alloc)(&mut host, 64, 0)),
        ("host_register", (api.host_register)(ptr::from_mut(&mut total).cast(), 8, 0)),
        ("memory_info", (api.memory_info)(&mut free, &mut total)),
        ("stream_create", (api.stream_create)(&mut pointer, 0)),
        ("event_create", (api.event_create)(&mut pointer, 0)),
        ("load_image", (api.load_image)(&mut pointer, &common::image::IMAGE)),
        ("context_synchronize", (api.context_synchronize)()),
        ("stream_synchronize", (api.stream_synchronize)(0)),
        ("stream_query", (api.stream_query)(2)),
        ("primary_retain", (api.primary_retain)(&mut pointer, 0)),
        ("primary_release", (api.primary_release)(0)),
        ("context_create", (api.context_create)(&mut other, 0, 0)),
        ("alloc_async", (api.alloc_async)(&mut pointer, 64, 0)),
    ];
    without.iter().for_each(|(name, answer)| assert_eq!(*answer, code, "{name}"));
    ok((api.context_device)(&mut device));
}

struct Objects {
    stream: u64,
    event: u64,
    memory: u64,
    module: u64,
    function: u64,
    own: u64,
    host: *mut c_void,
    registered: Vec<u8>,
}

impl Objects {
    fn make(api: &Api) -> Objects {
        let (mut own, mut host, mut registered, module) = (0, ptr::null_mut(), vec![3u8; 4096], api.module());
        ok((api.host_alloc)(&mut host, 8, 0));
        ok((api.host_register)(registered.as_mut_ptr().cast(), 4096, 0));
        let (stream, event, memory) = (api.stream(0), api.event(0), api.memory(64));
        ok((api.event_record)(event, stream));
        ok((api.context_create)(&mut own, 0, 0));
        ok((api.context_pop)(&mut own));
        Objects { stream, event, memory, module, function: api.function(module, "nothing"), own, host, registered }
    }

    fn check(&mut self, api: &Api, code: c_int) {
        let (mut value, mut number, mut graph) = (0u64, 0, 0);
        let at = ptr::from_mut(&mut value).cast::<c_void>();
        let answers: [(&str, c_int); 19] = [
            ("launch", api.try_run(self.function, self.stream, (1, 1), &[])),
            ("stream_query", (api.stream_query)(self.stream)),
            ("stream_synchronize", (api.stream_synchronize)(self.stream)),
            ("stream_destroy", (api.stream_destroy)(self.stream)),
            ("stream_wait_event", (api.stream_wait_event)(self.stream, self.event, 0)),
            ("stream_begin_capture", (api.stream_begin_capture)(self.stream, 0)),
            ("stream_end_capture", (api.stream_end_capture)(self.stream, &mut graph)),
            ("event_record", (api.event_record)(self.event, self.stream)),
            ("event_query", (api.event_query)(self.event)),
            ("event_synchronize", (api.event_synchronize)(self.event)),
            ("event_destroy", (api.event_destroy)(self.event)),
            ("copy_from_async", (api.copy_from_async)(at, self.memory, 8, self.stream)),
            ("set_d8_async", (api.set_d8_async)(self.memory, 1, 8, self.stream)),
            ("free", (api.free)(self.memory)),
            ("host_free", (api.host_free)(self.host)),
            ("host_unregister", (api.host_unregister)(self.registered.as_mut_ptr().cast())),
            ("pointer_attribute", (api.pointer_attribute)(at, 7, self.memory)),
            ("function_attribute", (api.function_attribute)(&mut number, 0, self.function)),
            ("module_unload", (api.module_unload)(self.module)),
        ];
        answers.iter().for_each(|(name, answer)| assert_eq!(*answer, code, "{name}"));
        assert_eq!((api.context_destroy)(self.own), code);
        // SAFETY: pinned memory, which nothing could free.
        assert_eq!(unsafe { self.host.cast::<u64>().read_volatile() }, 77);
    }
}

#[test]
fn every_call_says_so() {
    in_child("every_call_says_so", &[BY_CALL], |api| {
        let lost = context(api);
        let mut objects = Objects::make(api);
        // SAFETY: pinned memory of 8 bytes.
        unsafe { objects.host.cast::<u64>().write(77) };
        let other = api.use_device(1);
        let (stream, memory) = (api.stream(0), api.memory(64));
        assert_eq!(lose(99, 719), 101);
        assert_eq!(lose(0, 0), 1);
        ok(lose(0, ECC));
        ok(lose(0, LAUNCH_FAILED));
        objects.check(api, ECC);
        assert_eq!((api.primary_reset)(0), ECC);
        // This device has nothing to do with it, and contexts can be made current.
        ok((api.set_d8_async)(memory, 1, 64, stream));
        ok((api.context_synchronize)());
        // It can no longer reach the memory there, but what is pinned is the host's.
        assert_eq!((api.copy_async)(memory, objects.memory, 8, stream), ECC);
        assert_eq!((api.copy_async)(objects.memory, memory, 8, stream), ECC);
        ok((api.copy_async)(memory, objects.host as u64, 8, stream));
        ok((api.stream_synchronize)(stream));
        ok((api.context_push)(lost));
        check_calls(api, ECC);
        objects.check(api, ECC);
        let mut popped = 0;
        ok((api.context_pop)(&mut popped));
        assert_eq!((popped, context(api)), (lost, other));
        ok((api.free)(memory));
        ok((api.stream_destroy)(stream));
    });
}

/// Waits are made so that they can end only where it is announced.
#[test]
fn not_without_announcement() {
    in_child("not_without_announcement", &[], |api| {
        assert_eq!(lose(0, LAUNCH_FAILED), 800);
        ok((api.context_synchronize)());
    });
}

/// By the use of an entry point, with a code.
#[test]
fn with_the_third_launch() {
    in_child("with_the_third_launch", &[("SOFTCUDA_FAULT", "lose0@cuLaunchKernel:3:214")], |api| {
        let (stream, nothing) = (api.stream(0), api.function(api.module(), "nothing"));
        let answers: Vec<_> = (0..4).map(|_| api.try_run(nothing, stream, (1, 1), &[])).collect();
        assert_eq!(answers, [0, 0, ECC, ECC]);
        assert_eq!((api.stream_synchronize)(stream), ECC);
        api.use_device(1);
        api.run(api.function(api.module(), "nothing"), 0, &[]);
        ok((api.context_synchronize)());
    });
}

/// Calls that lead to a wait for a kernel that never ends. Error: the answer of the first one that fails.
fn wait_for_ever(api: &Api) -> Result<(), c_int> {
    let (mut context, mut stream, mut module, mut wait_for, mut flag) = (0, 0, 0, 0, 0);
    let check = |code| if code == 0 { Ok(()) } else { Err(code) };
    check((api.primary_retain)(&mut context, 0))?;
    check((api.context_set)(context))?;
    check((api.stream_create)(&mut stream, 0))?;
    check((api.load_image)(&mut module, &common::image::IMAGE))?;
    check((api.module_function)(&mut wait_for, module, c"wait_for".as_ptr()))?;
    check((api.alloc)(&mut flag, 64))?;
    check(api.try_run(wait_for, stream, (1, 1), &[flag, 1]))?;
    check((api.stream_synchronize)(stream))
}

/// By time, as a rule while a thread waits for a kernel that never ends; then the process ends.
#[test]
fn after_some_time() {
    if role().is_none() {
        return run_child("after_some_time", "run", &[("SOFTCUDA_FAULT", "lose0@100ms")]);
    }
    let api = Api::open();
    ok((api.init)(0));
    assert_eq!(wait_for_ever(&api), Err(LAUNCH_FAILED));
    std::process::exit(0);
}

/// The runtime says the same, for this device alone.
#[test]
fn by_the_runtime() {
    in_child("by_the_runtime", &[BY_CALL], |_| {
        let runtime = library("libcudart.so.13");
        let malloc: extern "C" fn(*mut u64, usize) -> c_int = function(&runtime, "cudaMalloc");
        let simple = |name: &str| function::<extern "C" fn() -> c_int>(&runtime, name);
        let device: extern "C" fn(c_int) -> c_int = function(&runtime, "cudaSetDevice");
        let mut pointer = 0;
        ok(device(0));
        ok(malloc(&mut pointer, 64));
        ok(lose(0, LAUNCH_FAILED));
        assert_eq!(malloc(&mut pointer, 64), LAUNCH_FAILED);
        assert_eq!(simple("cudaDeviceSynchronize")(), LAUNCH_FAILED);
        assert_eq!(simple("cudaDeviceReset")(), LAUNCH_FAILED);
        ok(device(1));
        ok(malloc(&mut pointer, 64));
        ok(device(0));
        assert_eq!(malloc(&mut pointer, 64), LAUNCH_FAILED);
    });
}
