//! Blocks, threads, multiprocessors, and what a launch refuses.

mod common;

use common::api::{Api, ok};
use common::image::{IMAGE, Image};
use common::{role, run_child};
use std::ffi::c_int;
use std::ptr;

const INVALID_VALUE: c_int = 1;
const INVALID_HANDLE: c_int = 400;

fn in_child(name: &str, variables: &[(&str, &str)], body: impl FnOnce(&Api)) {
    match role() {
        Some(_) => body(&Api::ready()),
        None => run_child(name, "run", variables),
    }
}

fn words(api: &Api, memory: u64) -> [u32; 3] {
    let mut words = [0u32; 3];
    ok((api.context_synchronize)());
    ok((api.copy_from)(words.as_mut_ptr().cast(), memory, 12));
    words
}

#[test]
fn all_threads_of_a_block_run_at_once() {
    in_child("all_threads_of_a_block_run_at_once", &[], |api| {
        let (meet, memory) = (api.function(api.module(), "meet"), api.memory(8));
        ok(api.try_run(meet, 0, (5, 8), &[memory]));
        ok(api.try_run(meet, 0, (1, 3), &[memory]));
        assert_eq!(api.read_u64(memory), 5 * 8 * 3 + 9);
    });
}

/// Six blocks on two SMs, and single ones from other streams beside them.
#[test]
fn no_more_blocks_than_multiprocessors() {
    in_child("no_more_blocks_than_multiprocessors", &[("SOFTCUDA_SMS", "2")], |api| {
        let (count_running, memory) = (api.function(api.module(), "count_running"), api.memory(12));
        for _ in 0..3 {
            ok(api.try_run(count_running, api.stream(1), (6, 1), &[memory]));
            ok(api.try_run(count_running, api.stream(1), (1, 1), &[memory]));
        }
        let [now, most, all] = words(api, memory);
        assert_eq!((now, all), (0, 21));
        assert!(most <= 2, "{most} blocks at once");
        let mut count = 0;
        ok((api.device_attribute)(&mut count, 16, 0));
        assert_eq!(count, 2);
    });
}

#[test]
fn bad_launches_are_refused() {
    in_child("bad_launches_are_refused", &[], |api| {
        let module = api.module();
        let (count_running, add, memory) =
            (api.function(module, "count_running"), api.function(module, "add"), api.memory(12));
        let bad = |function, shape| api.try_run(function, 0, shape, &[memory, 1]);
        assert_eq!(bad(count_running, (0, 1)), INVALID_VALUE);
        assert_eq!(bad(count_running, (1, 0)), INVALID_VALUE);
        assert_eq!(bad(count_running, (1, 65)), INVALID_VALUE);
        assert_eq!(bad(add, (1, 2)), INVALID_VALUE);
        assert_eq!(bad(memory, (1, 1)), INVALID_HANDLE);
        assert_eq!(api.try_run(add, 0xdead_0000, (1, 1), &[memory, 1]), INVALID_HANDLE);
        let none = (api.launch)(add, 1, 1, 1, 1, 1, 1, 0, 0, ptr::null(), ptr::null());
        assert_eq!(none, INVALID_VALUE);
        let much =
            (api.launch)(api.function(module, "nothing"), 1, 1, 1, 1, 1, 1, 1 << 20, 0, ptr::null(), ptr::null());
        assert_eq!(much, INVALID_VALUE);
        let mut most = 0;
        ok((api.function_attribute)(&mut most, 0, count_running));
        assert_eq!(most, 64);
        // A function of one device's context is none of another's.
        api.use_device(1);
        assert_eq!(api.try_run(add, api.stream(0), (1, 1), &[memory, 1]), INVALID_HANDLE);
        api.use_device(0);
        ok((api.module_unload)(module));
        assert_eq!((api.module_unload)(module), INVALID_HANDLE);
        assert_eq!(bad(add, (1, 1)), INVALID_HANDLE);
    });
}

#[test]
fn bad_images_are_refused() {
    in_child("bad_images_are_refused", &[], |api| {
        let mut module = 0;
        let image = |magic, version| Image { magic, version, functions: 1, reserved: 0, table: IMAGE.table };
        assert_eq!((api.load_image)(&mut module, ptr::null()), INVALID_VALUE);
        assert_eq!((api.load_image)(ptr::null_mut(), &IMAGE), INVALID_VALUE);
        assert_eq!((api.load_image)(&mut module, &image(1, 1)), 200);
        assert_eq!((api.load_image)(&mut module, &image(IMAGE.magic, 2)), 200);
        let null = Image { table: ptr::null(), ..image(IMAGE.magic, 1) };
        assert_eq!((api.load_image)(&mut module, &null), INVALID_VALUE);
        assert_eq!((api.load_data)(&mut module, b"\x50\xed\x55\xba fatbin".as_ptr().cast()), 209);
        ok((api.load_image)(&mut module, &IMAGE));
        let mut function = 0;
        assert_eq!((api.module_function)(&mut function, module, c"no such".as_ptr()), 500);
        assert_eq!((api.module_function)(&mut function, module + 16, c"add".as_ptr()), INVALID_HANDLE);
    });
}
