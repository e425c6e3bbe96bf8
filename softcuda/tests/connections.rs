//! Hardware queues: streams that share one start their operations in the order of submission.

mod common;

use common::api::{Api, ok};
use common::{role, run_child};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const NON_BLOCKING: u32 = 1;
const NOT_READY: i32 = 600;
/// Long enough for what may start to have started.
const A_WHILE: Duration = Duration::from_millis(60);

fn in_child(name: &str, connections: &str, body: impl FnOnce(&Api)) {
    match role() {
        Some(given) if given == connections => {
            let api = Api::open();
            ok((api.init)(0));
            api.use_device(0);
            body(&api);
        }
        Some(_) => {}
        None => run_child(name, connections, &[("SOFTCUDA_CONNECTIONS", connections)]),
    }
}

/// A word that host and kernels see.
fn shared_word(api: &Api) -> &'static AtomicU32 {
    let mut word = std::ptr::null_mut();
    ok((api.host_alloc)(&mut word, 4, 0));
    // SAFETY: pinned memory of this process, never freed, used by atomics alone.
    let word = unsafe { &*word.cast::<AtomicU32>() };
    word.store(0, Ordering::SeqCst);
    word
}

fn address(word: &AtomicU32) -> u64 {
    std::ptr::from_ref(word) as u64
}

#[test]
fn who_waits_at_the_head_keeps_others_back() {
    in_child("who_waits_at_the_head_keeps_others_back", "1", |api| {
        let module = api.module();
        let (wait, set) = (api.function(module, "wait_for"), api.function(module, "set"));
        let (flag, first, second) = (shared_word(api), shared_word(api), shared_word(api));
        let (a, b) = (api.stream(NON_BLOCKING), api.stream(NON_BLOCKING));
        api.run(wait, a, &[address(flag), 1]);
        api.run(set, a, &[address(first), 1]); // waits for the kernel before it, at the head of the queue
        api.run(set, b, &[address(second), 1]); // stands behind it
        assert_eq!((api.stream_query)(b), NOT_READY);
        std::thread::sleep(A_WHILE);
        assert_eq!(((api.stream_query)(b), second.load(Ordering::SeqCst)), (NOT_READY, 0));
        flag.store(1, Ordering::SeqCst);
        ok((api.stream_synchronize)(b));
        assert_eq!(second.load(Ordering::SeqCst), 1);
        ok((api.stream_synchronize)(a));
        assert_eq!(first.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn with_queues_of_their_own_they_do_not() {
    in_child("with_queues_of_their_own_they_do_not", "0", |api| {
        let module = api.module();
        let (wait, set) = (api.function(module, "wait_for"), api.function(module, "set"));
        let (flag, first, second) = (shared_word(api), shared_word(api), shared_word(api));
        let (a, b) = (api.stream(NON_BLOCKING), api.stream(NON_BLOCKING));
        api.run(wait, a, &[address(flag), 1]);
        api.run(set, a, &[address(first), 1]);
        api.run(set, b, &[address(second), 1]);
        ok((api.stream_synchronize)(b));
        assert_eq!((api.stream_query)(a), NOT_READY);
        flag.store(1, Ordering::SeqCst);
        ok((api.stream_synchronize)(a));
    });
}

/// What has started keeps nobody back: a kernel may wait for one behind it in the queue.
#[test]
fn who_has_started_keeps_nobody_back() {
    in_child("who_has_started_keeps_nobody_back", "1", |api| {
        let module = api.module();
        let (wait, set) = (api.function(module, "wait_for"), api.function(module, "set"));
        for round in 1..20 {
            let flag = shared_word(api);
            let (a, b) = (api.stream(NON_BLOCKING), api.stream(NON_BLOCKING));
            api.run(wait, a, &[address(flag), round]);
            api.run(set, b, &[address(flag), round]);
            // Who waits for the second must not get stuck in the first.
            ok((api.stream_synchronize)(if round % 2 == 0 { a } else { b }));
            ok((api.context_synchronize)());
            ok((api.stream_destroy)(a));
            ok((api.stream_destroy)(b));
        }
    });
}

/// As many streams as there are queues are independent, also when others have come and gone before.
#[test]
fn eight_streams_are_independent() {
    in_child("eight_streams_are_independent", "8", |api| {
        let module = api.module();
        let (wait, set) = (api.function(module, "wait_for"), api.function(module, "set"));
        for _ in 0..20 {
            let gone = api.stream(NON_BLOCKING);
            api.run(set, gone, &[address(shared_word(api)), 1]);
            ok((api.stream_synchronize)(gone));
            ok((api.stream_destroy)(gone));
        }
        let (flag, other) = (shared_word(api), shared_word(api));
        let streams: Vec<u64> = (0..8).map(|_| api.stream(NON_BLOCKING)).collect();
        for stream in &streams[..7] {
            api.run(wait, *stream, &[address(flag), 1]);
            api.run(set, *stream, &[address(other), 1]);
        }
        api.run(set, streams[7], &[address(flag), 1]);
        ok((api.context_synchronize)());
    });
}

/// Many streams on few queues, with events to and fro: slower, but everything is done, in order.
#[test]
fn many_streams_on_two_queues() {
    in_child("many_streams_on_two_queues", "2", |api| {
        const STREAMS: usize = 12;
        const ROUNDS: usize = 60;
        let add = api.function(api.module(), "add");
        let streams: Vec<u64> = (0..STREAMS).map(|_| api.stream(NON_BLOCKING)).collect();
        let events: Vec<u64> = (0..STREAMS).map(|_| api.event(2)).collect();
        let sum = api.memory(8);
        // One token that goes round: not atomic, so that the sum is right only if order was kept.
        for step in 0..STREAMS * ROUNDS {
            let (now, next) = (step % STREAMS, (step * 5 + 1) % STREAMS);
            ok((api.stream_wait_event)(streams[now], events[(now + STREAMS - 1) % STREAMS], 0));
            api.run(add, streams[now], &[sum, 1]);
            ok((api.event_record)(events[now], streams[now]));
            if step % 7 == 0 {
                let _ = (api.stream_query)(streams[next]);
            }
            if step % 31 == 0 {
                ok((api.stream_synchronize)(streams[next]));
            }
        }
        assert_eq!(api.read_u64(sum), (STREAMS * ROUNDS) as u64);
    });
}
