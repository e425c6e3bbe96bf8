//! Handles, contexts, pointers, versions: what the driver says to good and to bad questions.

mod common;

use common::api::{Api, ok};
use common::{role, run_child};
use std::ffi::{CStr, c_int, c_void};
use std::ptr;

fn in_child(name: &str, body: impl FnOnce(&Api)) {
    match role() {
        Some(_) => body(&Api::open()),
        None => run_child(name, "run", &[]),
    }
}

#[test]
fn nothing_before_init() {
    in_child("nothing_before_init", |api| {
        let (mut number, mut context) = (0, 0);
        assert_eq!((api.device_count)(&mut number), 3);
        assert_eq!((api.context_get)(&mut context), 3);
        assert_eq!((api.stream_synchronize)(0), 3);
        assert_eq!((api.init)(1), 1);
        ok((api.init)(0));
        ok((api.init)(0));
        // Initialised, but no context yet.
        assert_eq!((api.stream_synchronize)(0), 201);
        assert_eq!((api.alloc)(&mut context, 8), 201);
        assert_eq!((api.context_pop)(&mut context), 201);
    });
}

#[test]
fn invented_and_stale_handles() {
    in_child("invented_and_stale_handles", |api| {
        ok((api.init)(0));
        let context = api.use_device(0);
        let (stream, event) = (api.stream(0), api.event(0));
        ok((api.stream_destroy)(stream));
        ok((api.event_destroy)(event));
        let mut status = 0;
        for bad in [stream, event, context, 3, 0xdead_beef, u64::MAX, ptr::from_ref(&status) as u64] {
            assert_eq!((api.stream_synchronize)(bad), 400);
            assert_eq!((api.stream_query)(bad), 400);
            assert_eq!((api.stream_destroy)(bad), 400);
            assert_eq!((api.stream_is_capturing)(bad, &mut status), 400);
            assert_eq!((api.event_query)(bad), 400);
            assert_eq!((api.event_destroy)(bad), 400);
            assert_eq!((api.event_record)(bad, 0), 400);
            assert_eq!((api.module_unload)(bad), 400);
        }
        assert_eq!((api.stream_destroy)(0), 400);
        assert_eq!((api.context_destroy)(context), 201);
        assert_eq!((api.context_set)(stream), 201);
        // The slot is used again, under another handle.
        assert_ne!(api.stream(0), stream);
    });
}

#[test]
fn contexts_and_their_stack() {
    in_child("contexts_and_their_stack", |api| {
        ok((api.init)(0));
        let (mut first, mut second, mut seen) = (0, 0, 0);
        ok((api.context_create)(&mut first, 0, 1));
        ok((api.context_create)(&mut second, 0, 2));
        let mut device = 0;
        ok((api.context_device)(&mut device));
        assert_eq!(device, 2);
        let stream = api.stream(0);
        ok((api.context_pop)(&mut seen));
        assert_eq!(seen, second);
        ok((api.context_get)(&mut seen));
        assert_eq!(seen, first);
        ok((api.context_destroy)(second));
        assert_eq!((api.context_push)(second), 201);
        assert_eq!((api.stream_query)(stream), 400);
        // A context that goes while it is current on another thread.
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                ok((api.context_set)(first));
                ok((api.context_synchronize)());
                std::thread::park();
                assert_eq!((api.context_synchronize)(), 709);
            });
            while (api.context_synchronize)() != 0 {}
            std::thread::sleep(std::time::Duration::from_millis(30));
            ok((api.context_destroy)(first));
            other.thread().unpark();
        });
        assert_eq!((api.context_synchronize)(), 201);
        primary(api);
    });
}

fn primary(api: &Api) {
    let (mut flags, mut active) = (9, 9);
    ok((api.primary_state)(5, &mut flags, &mut active));
    assert_eq!((flags, active), (0, 0));
    assert_eq!((api.primary_release)(5), 201);
    let context = api.use_device(5);
    assert_eq!(api.use_device(5), context);
    let memory = api.memory(100);
    ok((api.primary_release)(5));
    ok((api.primary_state)(5, &mut flags, &mut active));
    assert_eq!(active, 1);
    ok((api.primary_release)(5));
    assert_eq!((api.context_synchronize)(), 709);
    assert_eq!(api.use_device(5), context);
    assert_eq!((api.free)(memory), 1);
}

#[test]
fn what_pointers_are() {
    in_child("what_pointers_are", |api| {
        ok((api.init)(0));
        let context = api.use_device(1);
        let memory = api.memory(1000);
        let get = |attribute, pointer| {
            let mut value = 0u64;
            let result = (api.pointer_attribute)(ptr::from_mut(&mut value).cast(), attribute, pointer);
            (result, value)
        };
        assert_eq!(get(1, memory + 7), (0, context));
        assert_eq!(get(2, memory), (0, 2));
        assert_eq!(get(3, memory + 7), (0, memory + 7));
        assert_eq!(get(4, memory).0, 1);
        assert_eq!(get(8, memory), (0, 0));
        assert_eq!(get(9, memory), (0, 1));
        assert_eq!(get(10, memory), (0, 1));
        assert_eq!(get(11, memory + 999), (0, memory));
        assert_eq!(get(12, memory + 999), (0, 1000));
        assert_eq!(get(12, memory + 1000).0, 1);
        assert_ne!(get(7, memory).1, get(7, api.memory(1)).1);
        let words = [0u64; 4];
        let host = words.as_ptr() as u64;
        assert_eq!(get(2, host).0, 1);
        let (mut kind, mut ordinal, mut device_pointer) = (9u32, 9i32, 9u64);
        let data: [*mut c_void; 3] = [
            ptr::from_mut(&mut kind).cast(),
            ptr::from_mut(&mut ordinal).cast(),
            ptr::from_mut(&mut device_pointer).cast(),
        ];
        ok((api.pointer_attributes)(3, [2, 9, 3].as_ptr(), data.as_ptr(), host));
        assert_eq!((kind, ordinal, device_pointer), (0, -2, 0));
        ok((api.host_register)(host as *mut c_void, 32, 2));
        assert_eq!((api.host_register)((host + 8) as *mut c_void, 8, 2), 712);
        assert_eq!(get(2, host + 8), (0, 1));
        assert_eq!(get(4, host + 8), (0, host + 8));
        ok((api.host_unregister)(host as *mut c_void));
        assert_eq!((api.host_unregister)(host as *mut c_void), 713);
        let (mut base, mut size) = (0, 0);
        ok((api.address_range)(&mut base, &mut size, memory + 10));
        assert_eq!((base, size), (memory, 1000));
    });
}

#[test]
fn copies_stay_in_bounds() {
    in_child("copies_stay_in_bounds", |api| {
        ok((api.init)(0));
        api.use_device(0);
        let memory = api.memory(100);
        let mut host = [7u8; 200];
        let data = host.as_mut_ptr().cast::<c_void>();
        assert_eq!((api.copy_to)(memory, data, 101), 1);
        assert_eq!((api.copy_to)(memory + 100, data, 1), 1);
        assert_eq!((api.copy_to)(data as u64, data, 1), 1);
        assert_eq!((api.copy_from)(ptr::null_mut(), memory, 1), 1);
        assert_eq!((api.copy_async)(memory + 50, data as u64, 51, 0), 1);
        assert_eq!((api.set_d8_async)(memory, 1, 101, 0), 1);
        assert_eq!((api.set_d32_async)(memory + 2, 1, 1, 0), 1);
        assert_eq!((api.set_d16)(memory + 1, 1, 1), 1);
        ok((api.copy_to)(memory, data, 0));
        ok((api.copy_to)(memory, data, 100));
        ok((api.set_2d_d32)(memory, 20, 0x0102_0304, 2, 5));
        ok((api.copy_from)(data, memory, 100));
        let row = [4, 3, 2, 1, 4, 3, 2, 1, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];
        assert!(host[..100].chunks(20).all(|seen| seen == row));
    });
}

#[test]
fn capture_modes_and_the_export_table() {
    in_child("capture_modes_and_the_export_table", |api| {
        ok((api.init)(0));
        api.use_device(0);
        let (mut status, mut mode) = (9, 2);
        ok((api.stream_is_capturing)(api.stream(0), &mut status));
        assert_eq!(status, 0);
        ok((api.exchange_capture_mode)(&mut mode));
        assert_eq!(mode, 0);
        ok((api.exchange_capture_mode)(&mut mode));
        assert_eq!(mode, 2);
        mode = 3;
        assert_eq!((api.exchange_capture_mode)(&mut mode), 1);
        let stream = api.stream(0);
        assert_eq!((api.stream_begin_capture)(stream, 3), 1);
        ok((api.stream_begin_capture)(stream, 0));
        ok((api.stream_is_capturing)(stream, &mut status));
        assert_eq!(status, 1);
        let mut table = ptr::null();
        assert_eq!((api.export_table)(&mut table, ptr::null()), 500);
    });
}

#[test]
fn functions_by_name_and_version() {
    in_child("functions_by_name_and_version", |api| {
        let find = |name: &CStr, version: c_int| {
            let (mut address, mut status) = (ptr::null_mut(), 9);
            let result = (api.proc_address)(name.as_ptr(), &mut address, version, 0, &mut status);
            (result, status, address as usize)
        };
        // Before cuInit, as the runtime does.
        assert_eq!(find(c"cuMemAlloc", 12000), (0, 0, api.alloc as usize));
        assert_eq!(find(c"cuCtxCreate", 11000), (0, 0, api.context_create as usize));
        assert_ne!(find(c"cuCtxCreate", 12050).2, find(c"cuCtxCreate", 11040).2);
        assert_eq!(find(c"cuMemAllocAsync", 11000), (500, 2, 0));
        assert_eq!(find(c"cuNoSuchFunction", 13000), (500, 1, 0));
        assert_eq!((api.proc_address)(ptr::null(), ptr::null_mut(), 12000, 0, ptr::null_mut()), 1);
    });
}
