//! Streams, events, and who executes what when. Each test runs in a child process, once with the operations delayed:
//! what is missing in the ordering shows then.

mod common;

use common::api::{Api, ok};
use common::{role, run_child, until};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

const NOT_READY: c_int = 600;
const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;

/// The test's body in a child, as it is and with delays; or, in the child, here.
fn in_children(name: &str, body: impl FnOnce(&Api)) {
    if role().is_some() {
        return body(&Api::ready());
    }
    run_child(name, "run", &[]);
    run_child(name, "run", &[("SOFTCUDA_DELAY_US", "500")]);
}

#[test]
fn a_stream_keeps_its_order() {
    in_children("a_stream_keeps_its_order", |api| {
        let (stream, memory) = (api.stream(NON_BLOCKING), api.memory(8));
        let add = api.function(api.module(), "add");
        for n in 0..200 {
            api.run(add, stream, &[memory, n]);
        }
        ok((api.stream_synchronize)(stream));
        assert_eq!(api.read_u64(memory), 199 * 200 / 2);
    });
}

#[test]
fn arguments_are_copied_at_launch() {
    in_children("arguments_are_copied_at_launch", |api| {
        let (stream, memory) = (api.stream(NON_BLOCKING), api.memory(8));
        let sum = api.function(api.module(), "sum_large");
        let mut words = [1u32; 512];
        for round in 0..10 {
            let pointers: [*const c_void; 2] = [words.as_ptr().cast(), ptr::from_ref(&memory).cast()];
            ok((api.launch)(sum, 1, 1, 1, 1, 1, 1, 0, stream, pointers.as_ptr(), ptr::null()));
            words.fill(round + 2);
        }
        ok((api.stream_synchronize)(stream));
        assert_eq!(api.read_u64(memory), 512 * 55);
    });
}

#[test]
fn packed_arguments() {
    in_children("packed_arguments", |api| {
        let (stream, memory) = (api.stream(NON_BLOCKING), api.memory(8));
        let add = api.function(api.module(), "add");
        let mut packed = [memory, 42];
        let mut size = 16usize;
        let extra: [*const c_void; 5] = [
            ptr::without_provenance(1),
            packed.as_ptr().cast(),
            ptr::without_provenance(2),
            ptr::from_ref(&size).cast(),
            ptr::null(),
        ];
        ok((api.launch)(add, 1, 1, 1, 1, 1, 1, 0, stream, ptr::null(), extra.as_ptr()));
        packed.fill(7);
        size = 8;
        std::hint::black_box(&packed);
        let short = (api.launch)(add, 1, 1, 1, 1, 1, 1, 0, stream, ptr::null(), extra.as_ptr());
        assert_eq!((short, size), (1, 8));
        ok((api.stream_synchronize)(stream));
        assert_eq!(api.read_u64(memory), 42);
    });
}

#[test]
fn events_order_streams() {
    in_children("events_order_streams", |api| {
        let (a, b, memory) = (api.stream(NON_BLOCKING), api.stream(NON_BLOCKING), api.memory(8));
        let (add, module) = (api.function(api.module(), "add"), api.event(DISABLE_TIMING));
        for round in 0..100 {
            // To and fro between the streams; each waits for the other's last record.
            let (from, to) = if round % 2 == 0 { (a, b) } else { (b, a) };
            api.run(add, from, &[memory, 1]);
            ok((api.event_record)(module, from));
            ok((api.stream_wait_event)(to, module, 0));
        }
        ok((api.stream_synchronize)(a));
        assert_eq!(api.read_u64(memory), 100);
    });
}

#[test]
fn the_legacy_stream_is_a_barrier() {
    in_children("the_legacy_stream_is_a_barrier", |api| {
        let (a, b, apart) = (api.stream(0), api.stream(0), api.stream(NON_BLOCKING));
        let (memory, flag) = (api.memory(8), api.memory(4));
        let module = api.module();
        let (add, wait) = (api.function(module, "add"), api.function(module, "wait_for"));
        // A non-blocking stream that is stuck holds nobody up.
        api.run(wait, apart, &[flag, 1]);
        for _ in 0..30 {
            api.run(add, a, &[memory, 1]);
            api.run(add, 0, &[memory, 1]);
            api.run(add, b, &[memory, 1]);
            api.run(add, 1, &[memory, 1]);
        }
        // A wait for the legacy stream is one for the blocking streams.
        ok((api.stream_synchronize)(0));
        ok((api.stream_query)(a));
        ok((api.stream_query)(b));
        assert_eq!((api.stream_query)(apart), NOT_READY);
        ok((api.set_d32_async)(flag, 1, 1, api.stream(NON_BLOCKING)));
        assert_eq!(api.read_u64(memory), 120);
    });
}

#[test]
fn the_per_thread_stream_is_the_threads_own() {
    in_children("the_per_thread_stream_is_the_threads_own", |api| {
        let module = api.module();
        let (add, wait) = (api.function(module, "add"), api.function(module, "wait_for"));
        let (memory, flag) = (api.memory(8), api.memory(4));
        let mut context = 0;
        ok((api.context_get)(&mut context));
        api.run(wait, 2, &[flag, 1]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ok((api.context_set)(context));
                api.run(add, 2, &[memory, 5]);
                ok((api.stream_synchronize)(2));
            });
        });
        assert_eq!((api.stream_query)(2), NOT_READY);
        ok((api.set_d32_async)(flag, 1, 1, api.stream(NON_BLOCKING)));
        assert_eq!(api.read_u64(memory), 5);
    });
}

/// The kernel on one stream waits for what the kernel on another stores: whichever is waited for first, the other one
/// must run as well.
#[test]
fn waiting_for_one_stream_runs_the_others() {
    in_children("waiting_for_one_stream_runs_the_others", |api| {
        let module = api.module();
        let (wait, set) = (api.function(module, "wait_for"), api.function(module, "set"));
        let (a, b, flag) = (api.stream(NON_BLOCKING), api.stream(NON_BLOCKING), api.memory(4));
        for round in 1..50 {
            api.run(wait, a, &[flag, round]);
            api.run(set, b, &[flag, round]);
            let order = if round % 2 == 0 { [a, b] } else { [b, a] };
            order.into_iter().for_each(|stream| ok((api.stream_synchronize)(stream)));
        }
        // On another device, and launched only after the wait has begun.
        let started = AtomicU32::new(0);
        std::thread::scope(|scope| {
            api.run(wait, a, &[flag, 1000]);
            scope.spawn(|| {
                api.use_device(1);
                let set = api.function(api.module(), "set");
                while started.load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
                api.run(set, api.stream(NON_BLOCKING), &[flag, 1000]);
            });
            started.store(1, Ordering::Release);
            ok((api.stream_synchronize)(a));
        });
    });
}

/// Nobody waits: the worker starts by itself. A query says that there is work, and sees to it that it is done.
#[test]
fn work_is_done_without_a_waiter() {
    in_children("work_is_done_without_a_waiter", |api| {
        let module = api.module();
        let (set, stream) = (api.function(module, "set"), api.stream(NON_BLOCKING));
        let word = AtomicU32::new(0);
        for round in 1..20 {
            api.run(set, stream, &[ptr::from_ref(&word) as u64, round]);
            until("the worker", || u64::from(word.load(Ordering::Acquire)) == round);
            api.run(set, stream, &[ptr::from_ref(&word) as u64, 0]);
            until("the query", || (api.stream_query)(stream) == 0);
            assert_eq!(word.load(Ordering::Acquire), 0);
        }
    });
}

/// What a host function saw.
struct Seen {
    /// The thread that waits for the stream.
    waiter: ThreadId,
    /// Runs on the worker and on the waiter.
    runs: [AtomicU64; 2],
}

/// Host function: where it runs. On the worker it takes its time.
extern "C" fn see(seen: *mut c_void) {
    // SAFETY: the test's object, which lives until the stream is done.
    let seen = unsafe { &*seen.cast::<Seen>() };
    let by_waiter = thread::current().id() == seen.waiter;
    if !by_waiter {
        thread::sleep(Duration::from_millis(10));
    }
    seen.runs[usize::from(by_waiter)].fetch_add(1, Ordering::SeqCst);
}

/// The worker has begun with a long queue: a thread that waits for the end of it goes on in its place, and what is
/// submitted afterwards is the worker's again.
#[test]
fn who_waits_takes_over_from_the_worker() {
    in_children("who_waits_takes_over_from_the_worker", |api| {
        let stream = api.stream(NON_BLOCKING);
        let seen = Seen { waiter: thread::current().id(), runs: Default::default() };
        let data = ptr::from_ref(&seen).cast_mut().cast();
        let runs = |by: usize| seen.runs[by].load(Ordering::SeqCst);
        (0..200).for_each(|_| ok((api.launch_host)(stream, see, data)));
        until("the worker", || runs(0) > 0);
        ok((api.stream_synchronize)(stream));
        assert_eq!(runs(0) + runs(1), 200);
        assert!(runs(1) > 0, "the worker did all of it");
        let by_waiter = runs(1);
        ok((api.launch_host)(stream, see, data));
        until("the worker's next", || runs(0) + runs(1) == 201);
        assert_eq!(runs(1), by_waiter);
    });
}

#[test]
fn a_destroyed_stream_does_its_work() {
    in_children("a_destroyed_stream_does_its_work", |api| {
        let add = api.function(api.module(), "add");
        let memory = api.memory(8);
        for _ in 0..50 {
            let stream = api.stream(NON_BLOCKING);
            for _ in 0..5 {
                api.run(add, stream, &[memory, 1]);
            }
            // One at a time: the kernel's addition is not atomic.
            let end = api.event(DISABLE_TIMING);
            ok((api.event_record)(end, stream));
            ok((api.stream_destroy)(stream));
            assert_eq!((api.stream_query)(stream), 400);
            ok((api.event_synchronize)(end));
            ok((api.event_destroy)(end));
        }
        assert_eq!(api.read_u64(memory), 250);
    });
}

extern "C" fn note(data: *mut c_void) {
    // SAFETY: the test passes a counter that lives until it has synchronised.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn note_callback(_stream: u64, status: c_int, data: *mut c_void) {
    assert_eq!(status, 0);
    note(data);
}

#[test]
fn host_functions_run_in_order() {
    in_children("host_functions_run_in_order", |api| {
        let module = api.module();
        let (wait, stream, flag) = (api.function(module, "wait_for"), api.stream(NON_BLOCKING), api.memory(4));
        let count = AtomicU32::new(0);
        let data = ptr::from_ref(&count).cast_mut().cast();
        api.run(wait, stream, &[flag, 1]);
        ok((api.launch_host)(stream, note, data));
        ok((api.stream_callback)(stream, note_callback, data, 0));
        assert_eq!((api.stream_callback)(stream, note_callback, data, 1), 1);
        assert_eq!(count.load(Ordering::SeqCst), 0);
        let other = api.stream(NON_BLOCKING);
        ok((api.stream_write_32)(other, flag, 1, 0));
        ok((api.stream_wait_32)(other, flag, 1, 1));
        ok((api.stream_synchronize)(stream));
        assert_eq!(count.load(Ordering::SeqCst), 2);
        ok((api.stream_synchronize)(other));
    });
}

#[test]
fn events_tell_times() {
    in_children("events_tell_times", |api| {
        let (stream, start, end, plain) =
            (api.stream(NON_BLOCKING), api.event(0), api.event(0), api.event(DISABLE_TIMING));
        let count_running = api.function(api.module(), "count_running");
        let words = api.memory(12);
        let mut milliseconds = -1.0;
        // Never recorded: complete, but there is no time to tell.
        ok((api.event_query)(start));
        assert_eq!((api.event_elapsed)(&mut milliseconds, start, end), 400);
        ok((api.event_record)(start, stream));
        api.run(count_running, stream, &[words]);
        ok((api.event_record)(end, stream));
        ok((api.event_synchronize)(end));
        ok((api.event_elapsed)(&mut milliseconds, start, end));
        assert!((1.9..60_000.0).contains(&milliseconds), "{milliseconds}");
        ok((api.event_record)(plain, stream));
        assert_eq!((api.event_elapsed)(&mut milliseconds, start, plain), 400);
    });
}

/// Two threads launch and wait; a third gives events to wait for. Nothing is lost, nobody hangs.
#[test]
fn many_threads_share_streams() {
    in_children("many_threads_share_streams", |api| {
        let module = api.module();
        let nothing = api.function(module, "nothing");
        let (a, b) = (api.stream(NON_BLOCKING), api.stream(0));
        let mut context = 0;
        ok((api.context_get)(&mut context));
        let rounds = if std::env::var("SOFTCUDA_DELAY_US").is_ok() { 40 } else { 3000 };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    ok((api.context_set)(context));
                    let event = api.event(DISABLE_TIMING);
                    for round in 0..rounds {
                        let (from, to) = if (round + thread) % 2 == 0 { (a, b) } else { (b, a) };
                        api.run(nothing, from, &[]);
                        ok((api.event_record)(event, from));
                        ok((api.stream_wait_event)(to, event, 0));
                        if round % 3 == 0 {
                            ok((api.stream_synchronize)(to));
                        }
                        if round % 50 == 0 {
                            ok((api.context_synchronize)());
                        }
                    }
                });
            }
        });
        ok((api.context_synchronize)());
        ok((api.stream_query)(a));
        ok((api.stream_query)(b));
    });
}

/// Waits and writes of a batch are done in its order; a batch with a fault in it is not done at all.
#[test]
fn batches_of_memory_operations() {
    const INVALID_VALUE: c_int = 1;
    const BARRIER: [u64; 6] = [6, 0, 0, 0, 0, 0];
    in_children("batches_of_memory_operations", |api| {
        let (stream, other, memory) = (api.stream(NON_BLOCKING), api.stream(NON_BLOCKING), api.memory(64));
        let wait_32 = |at: u64, value: u64| [1, at, value, 1, 0, 0]; // until equal
        let write_32 = |at: u64, value: u64| [2, at, value, 0, 0, 0];
        let wait_64 = |at: u64, value: u64| [4, at, value, 0, 0, 0]; // until at least
        let write_64 = |at: u64, value: u64| [5, at, value, 0, 0, 0];
        let high = 5 << 40;
        let batch = [
            wait_32(memory, 7),
            wait_64(memory + 8, high),
            BARRIER,
            write_64(memory + 16, high + 1),
            write_32(memory + 24, 9),
        ];
        ok((api.stream_batch)(stream, 5, batch.as_ptr(), 0));
        assert_eq!((api.stream_query)(stream), NOT_READY);
        for faulty in [[9, 0, 0, 0, 0, 0], write_32(memory + 2, 1), write_32(16, 1), wait_32(memory, 1).map(|w| w | 8)]
        {
            let batch = [write_32(memory, 7), faulty];
            assert_eq!((api.stream_batch)(other, 2, batch.as_ptr(), 0), INVALID_VALUE);
        }
        assert_eq!((api.stream_batch)(other, 257, batch.as_ptr(), 0), INVALID_VALUE);
        assert_eq!((api.stream_batch)(other, 1, batch.as_ptr(), 1), INVALID_VALUE);
        ok((api.stream_synchronize)(other));
        assert_eq!((api.stream_query)(stream), NOT_READY);
        ok((api.stream_batch)(other, 2, [write_64(memory + 8, high + 9), write_32(memory, 7)].as_ptr(), 0));
        ok((api.stream_synchronize)(stream));
        assert_eq!((api.read_u64(memory + 16), api.read_u64(memory + 24)), (high + 1, 9));
    });
}
