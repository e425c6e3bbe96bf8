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

/// Wake-ups of the library's threads so far, and the time that they have run.
fn helpers() -> (u64, f64) {
    let mut sum = (0, 0.0);
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        if read("comm").starts_with("softcuda-") {
            let field = |text: String, name| -> u64 {
                let line = text.lines().find_map(|line| line.strip_prefix(name).map(str::trim).map(str::to_owned));
                line.and_then(|value| value.parse().ok()).unwrap_or(0)
            };
            sum.0 += field(read("status"), "voluntary_ctxt_switches:");
            let ran = read("schedstat").split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
            sum.1 += ran.unwrap_or(0.0) / 1e9;
        }
    }
    sum
}

/// What the library's threads do meanwhile.
fn watch(name: &str, body: impl FnOnce()) {
    let (before, start) = (helpers(), Instant::now());
    body();
    let (after, seconds) = (helpers(), start.elapsed().as_secs_f64());
    // A thread that ended meanwhile takes its count along.
    let (wakes, ran) = (after.0.saturating_sub(before.0) as f64, (after.1 - before.1).max(0.0));
    println!("{name:44} {:8.0} wake-ups/s, {:.2} % of a core", wakes / seconds, 100.0 * ran / seconds);
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
    watch("library threads: launch + synchronize", || {
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < 1.0 {
            api.run(nothing, stream, &[]);
            sync();
        }
    });
    watch("library threads: idle", || std::thread::sleep(std::time::Duration::from_secs(2)));
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
