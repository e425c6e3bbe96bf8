//! Per-thread default streams by name (`_ptsz`, `_ptds`) and by the flag of `cuGetProcAddress`.

mod common;

use common::api::{Api, ok};
use common::{library_dir, role, run_child};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

const NOT_READY: c_int = 600;
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

fn in_child(name: &str, body: impl FnOnce(&Api)) {
    match role() {
        Some(_) => {
            let api = Api::open();
            ok((api.init)(0));
            api.use_device(0);
            body(&api);
        }
        None => run_child(name, "run", &[]),
    }
}

fn open(name: &str) -> libloading::Library {
    // SAFETY: softcuda's own library.
    unsafe { libloading::Library::new(library_dir().join(name)) }.expect(name)
}

fn function<F: Copy>(library: &libloading::Library, name: &str) -> F {
    // SAFETY: each caller gives the type of NVIDIA's documentation.
    unsafe { *library.get::<F>(name.as_bytes()).expect("exported") }
}

type GetId = extern "C" fn(u64, *mut u64) -> c_int;

fn id(get: GetId, stream: u64) -> u64 {
    let mut id = 0;
    ok(get(stream, &mut id));
    id
}

#[test]
fn stream_zero_is_the_threads_own() {
    in_child("stream_zero_is_the_threads_own", |_| {
        for (library, name) in [
            ("libcuda.so.1", "cuStreamGetId"),
            ("libcudart.so.13", "cudaStreamGetId"),
            ("libcudart.so.12", "cudaStreamGetId"),
        ] {
            let library = open(library);
            let (plain, own): (GetId, GetId) = (function(&library, name), function(&library, &format!("{name}_ptsz")));
            assert_eq!(id(own, 0), id(plain, PER_THREAD), "{name}");
            assert_eq!((id(own, LEGACY), id(own, PER_THREAD)), (id(plain, 0), id(plain, PER_THREAD)), "{name}");
            assert_ne!(id(own, 0), id(plain, 0), "{name}");
            let here = id(own, 0);
            let mut context = 0;
            let current: extern "C" fn(*mut u64) -> c_int = function(&open("libcuda.so.1"), "cuCtxGetCurrent");
            let set: extern "C" fn(u64) -> c_int = function(&open("libcuda.so.1"), "cuCtxSetCurrent");
            ok(current(&mut context));
            let there = std::thread::spawn(move || {
                ok(set(context));
                id(own, 0)
            });
            assert_ne!(there.join().expect("no panic"), here, "{name}");
        }
    });
}

#[test]
fn work_goes_to_the_threads_own_stream() {
    in_child("work_goes_to_the_threads_own_stream", |api| {
        let driver = open("libcuda.so.1");
        let wait = api.function(api.module(), "wait_for");
        let mut word = std::ptr::null_mut();
        ok((api.host_alloc)(&mut word, 4, 0));
        // SAFETY: pinned memory of this process, never freed, used by atomics alone.
        let word = unsafe { &*word.cast::<AtomicU32>() };
        word.store(0, Ordering::SeqCst);
        type Launch =
            extern "C" fn(u64, u32, u32, u32, u32, u32, u32, u32, u64, *const *const c_void, *const c_void) -> c_int;
        let launch: Launch = function(&driver, "cuLaunchKernel_ptsz");
        let query: extern "C" fn(u64) -> c_int = function(&driver, "cuStreamQuery_ptsz");
        let (address, value) = (std::ptr::from_ref(word) as u64, 7u32);
        let arguments: [*const c_void; 2] = [std::ptr::from_ref(&address).cast(), std::ptr::from_ref(&value).cast()];
        ok(launch(wait, 1, 1, 1, 1, 1, 1, 0, 0, arguments.as_ptr(), std::ptr::null()));
        assert_eq!(((api.stream_query)(PER_THREAD), query(0)), (NOT_READY, NOT_READY));
        word.store(7, Ordering::SeqCst);
        ok((api.stream_synchronize)(PER_THREAD));
        ok(query(0));
    });
}

#[test]
fn the_flag_chooses_the_form() {
    in_child("the_flag_chooses_the_form", |_| {
        type Find = extern "C" fn(*const c_char, *mut usize, c_int, u64, *mut c_int) -> c_int;
        let driver = open("libcuda.so.1");
        let find: Find = function(&driver, "cuGetProcAddress_v2");
        let of = |name: &CStr, flags| {
            let (mut address, mut status) = (0, 9);
            ok(find(name.as_ptr(), &mut address, 13_000, flags, &mut status));
            address
        };
        let exported = |name: &str| function::<extern "C" fn()>(&driver, name) as usize;
        let cases = [
            (c"cuMemcpyHtoD", "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds"),
            (c"cuMemcpyAsync", "cuMemcpyAsync", "cuMemcpyAsync_ptsz"),
            (c"cuMemAlloc", "cuMemAlloc_v2", "cuMemAlloc_v2"),
        ];
        for (name, plain, own) in cases {
            assert_eq!(
                [of(name, 0), of(name, 1), of(name, 2)],
                [exported(plain), exported(plain), exported(own)],
                "{name:?}"
            );
        }
        let (mut address, mut status) = (0, 9);
        assert_eq!(find(c"cuInit".as_ptr(), &mut address, 13_000, 3, &mut status), 1, "both kinds at once");

        type Entry = extern "C" fn(*const c_char, *mut usize, u64, *mut c_int) -> c_int;
        let runtime = open("libcudart.so.13");
        let entry: Entry = function(&runtime, "cudaGetDriverEntryPoint_ptsz");
        ok(entry(c"cuMemcpyAsync".as_ptr(), &mut address, 0, &mut status));
        assert_eq!(address, exported("cuMemcpyAsync_ptsz"));
    });
}
