//! Times of the operations that collective communication leans on, in one process: run with `--release`.

#[path = "../tests/common/mod.rs"]
mod common;

use common::api::{Api, ok};
use std::ptr;
use std::time::Instant;

/// Runs `body` many times; the median over rounds of microseconds per run.
fn time(name: &str, mut body: impl FnMut()) {
    const ROUNDS: usize = 31;
    const RUNS: u32 = 5000;
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..RUNS).for_each(|_| body());
            start.elapsed().as_secs_f64() * 1e6 / f64::from(RUNS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name:44} {:8.3} us (best {:.3})", rounds[ROUNDS / 2], rounds[0]);
}

fn main() {
    let api = Api::ready();
    let module = api.module();
    let (nothing, large) = (api.function(module, "nothing"), api.function(module, "sum_large"));
    let (stream, other) = (api.stream(1), api.stream(1));
    let (plain, timed) = (api.event(2), api.event(0));
    let memory = api.memory(4096);
    let words = [1u32; 512];
    let pointers: [*const std::ffi::c_void; 2] = [words.as_ptr().cast(), ptr::from_ref(&memory).cast()];
    let sync = || ok((api.stream_synchronize)(stream));
    time("launch + synchronize", || {
        api.run(nothing, stream, &[]);
        sync();
    });
    time("launch + synchronize, legacy stream", || {
        api.run(nothing, 0, &[]);
        ok((api.stream_synchronize)(0));
    });
    time("launch with 2 KiB of arguments + synchronize", || {
        ok((api.launch)(large, 1, 1, 1, 1, 1, 1, 0, stream, pointers.as_ptr(), ptr::null()));
        sync();
    });
    time("launch + record + event synchronize", || {
        api.run(nothing, stream, &[]);
        ok((api.event_record)(plain, stream));
        ok((api.event_synchronize)(plain));
    });
    time("launch + timed record + event synchronize", || {
        api.run(nothing, stream, &[]);
        ok((api.event_record)(timed, stream));
        ok((api.event_synchronize)(timed));
    });
    time("record, wait on other stream, launch, sync", || {
        api.run(nothing, stream, &[]);
        ok((api.event_record)(plain, stream));
        ok((api.stream_wait_event)(other, plain, 0));
        api.run(nothing, other, &[]);
        ok((api.stream_synchronize)(other));
    });
    time("event record + query", || {
        ok((api.event_record)(plain, stream));
        ok((api.event_query)(plain));
    });
    time("8 byte copy to device, synchronous", || {
        ok((api.copy_to)(memory, ptr::from_ref(&memory).cast(), 8));
    });
    time("launch of 2 blocks + synchronize", || {
        ok(api.try_run(nothing, stream, (2, 1), &[]));
        sync();
    });
}
