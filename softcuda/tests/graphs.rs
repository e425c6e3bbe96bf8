//! Graphs that run at the same time: branches that wait for each other, graphs that do, threads that launch. Each test
//! runs in a child process, once with the operations delayed.

mod common;

use common::api::{Api, ok};
use common::{DEADLINE, role, run_child};
use std::ffi::c_void;
use std::thread;
use std::time::{Duration, Instant};

const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

fn in_children(name: &str, body: impl FnOnce(&Api)) {
    if role().is_some() {
        return body(&Api::ready());
    }
    run_child(name, "run", &[]);
    run_child(name, "run", &[("SOFTCUDA_DELAY_US", "200")]);
}

/// What is captured from a stream while `work` runs, ready to be launched.
fn captured(api: &Api, stream: u64, mode: i32, work: impl FnOnce()) -> u64 {
    let (mut graph, mut exec) = (0, 0);
    ok((api.stream_begin_capture)(stream, mode));
    work();
    ok((api.stream_end_capture)(stream, &mut graph));
    ok((api.graph_instantiate)(&mut exec, graph, 0));
    ok((api.graph_destroy)(graph));
    exec
}

/// Forks `side` off `stream`, or joins it again.
fn order(api: &Api, from: u64, to: u64) {
    let event = api.event(DISABLE_TIMING);
    ok((api.event_record)(event, from));
    ok((api.stream_wait_event)(to, event, 0));
    ok((api.event_destroy)(event));
}

#[test]
fn branches_that_wait_for_each_other() {
    in_children("branches_that_wait_for_each_other", |api| {
        const BRANCHES: usize = 12;
        let main = api.stream(NON_BLOCKING);
        let sides: Vec<u64> = (0..BRANCHES).map(|_| api.stream(NON_BLOCKING)).collect();
        let (flags, sum) = (api.memory(4 * BRANCHES), api.memory(8));
        let module = api.module();
        let [add, set, wait] = ["add", "set", "wait_for"].map(|name| api.function(module, name));
        let flag = |n: usize| flags + 4 * n as u64;
        let exec = captured(api, main, THREAD_LOCAL, || {
            ok((api.set_d32_async)(flags, 0, BRANCHES, main));
            for (n, side) in sides.iter().enumerate() {
                order(api, main, *side);
                // The last branch starts it; each waits for the one after it.
                if n + 1 < BRANCHES {
                    api.run(wait, *side, &[flag(n + 1), 1]);
                }
                api.run(set, *side, &[flag(n), 1]);
            }
            sides.iter().for_each(|side| order(api, *side, main));
            api.run(add, main, &[sum, 1]);
        });
        for _ in 0..20 {
            ok((api.graph_launch)(exec, main));
        }
        ok((api.stream_synchronize)(main));
        assert_eq!(api.read_u64(sum), 20);
        ok((api.exec_destroy)(exec));
    });
}

#[test]
fn graphs_that_wait_for_each_other() {
    in_children("graphs_that_wait_for_each_other", |api| {
        let (a, b, flags) = (api.stream(NON_BLOCKING), api.stream(NON_BLOCKING), api.memory(8));
        let module = api.module();
        let [set, wait] = ["set", "wait_for"].map(|name| api.function(module, name));
        // Ping and pong, as kernels of two ranks do.
        let ping = captured(api, a, RELAXED, || {
            api.run(set, a, &[flags, 1]);
            api.run(wait, a, &[flags + 4, 1]);
            api.run(set, a, &[flags + 4, 0]);
        });
        let pong = captured(api, b, RELAXED, || {
            api.run(wait, b, &[flags, 1]);
            api.run(set, b, &[flags, 0]);
            api.run(set, b, &[flags + 4, 1]);
        });
        for _ in 0..50 {
            ok((api.graph_launch)(ping, a));
            ok((api.graph_launch)(pong, b));
            ok((api.stream_synchronize)(a));
        }
        ok((api.stream_synchronize)(b));
    });
}

#[test]
fn nobody_waits_and_the_graph_runs() {
    in_children("nobody_waits_and_the_graph_runs", |api| {
        let (stream, side, sum) = (api.stream(NON_BLOCKING), api.stream(NON_BLOCKING), api.memory(16));
        let add = api.function(api.module(), "add");
        let exec = captured(api, stream, RELAXED, || {
            order(api, stream, side);
            api.run(add, stream, &[sum, 1]);
            api.run(add, side, &[sum + 8, 1]);
            order(api, side, stream);
        });
        let event = api.event(DISABLE_TIMING);
        for _ in 0..5 {
            ok((api.graph_launch)(exec, stream));
        }
        ok((api.event_record)(event, stream));
        // Asked rarely: the workers have to get there by themselves.
        let start = Instant::now();
        while (api.event_query)(event) != 0 {
            assert!(start.elapsed() < DEADLINE);
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!((api.read_u64(sum), api.read_u64(sum + 8)), (5, 5));
    });
}

#[test]
fn more_nodes_than_a_stream_may_have_pending() {
    in_children("more_nodes_than_a_stream_may_have_pending", |api| {
        let delayed = std::env::var_os("SOFTCUDA_DELAY_US").is_some();
        let (nodes, rounds) = if delayed { (4200, 1) } else { (6000, 5) };
        let (stream, sum) = (api.stream(NON_BLOCKING), api.memory(8));
        let add = api.function(api.module(), "add");
        let mut graph = 0;
        ok((api.stream_begin_capture)(stream, RELAXED));
        (0..nodes).for_each(|_| api.run(add, stream, &[sum, 1]));
        ok((api.stream_end_capture)(stream, &mut graph));
        let mut count = 0;
        ok((api.graph_nodes)(graph, std::ptr::null_mut(), &mut count));
        assert_eq!(count, nodes);
        let mut exec = 0;
        ok((api.graph_instantiate)(&mut exec, graph, 0));
        (0..rounds).for_each(|_| ok((api.graph_launch)(exec, stream)));
        assert_eq!(api.read_u64(sum), (nodes * rounds) as u64);
    });
}

/// Threads that launch one graph into streams of their own, while another updates it and one makes graphs and throws
/// them away.
#[test]
fn many_threads() {
    in_children("many_threads", |api| {
        const THREADS: usize = 6;
        const ROUNDS: usize = 40;
        let (module, sum) = (api.module(), api.memory(16));
        let add = api.function(module, "add");
        let capture = api.stream(NON_BLOCKING);
        let graph_of = |value: u64| {
            let mut graph = 0;
            ok((api.stream_begin_capture)(capture, THREAD_LOCAL));
            api.run(add, capture, &[sum, value]);
            api.run(add, capture, &[sum, value]);
            ok((api.stream_end_capture)(capture, &mut graph));
            graph
        };
        let (first, second) = (graph_of(1), graph_of(1));
        let mut exec = 0;
        ok((api.graph_instantiate)(&mut exec, first, 0));
        let mut context = 0;
        ok((api.context_get)(&mut context));
        let launcher = || {
            ok((api.context_set)(context));
            let stream = api.stream(NON_BLOCKING);
            (0..ROUNDS).for_each(|_| ok((api.graph_launch)(exec, stream)));
            ok((api.stream_synchronize)(stream));
            ok((api.stream_destroy)(stream));
        };
        let updater = || {
            ok((api.context_set)(context));
            let mut info = [0u64; 3];
            (0..ROUNDS).for_each(|_| ok((api.graph_update)(exec, second, info.as_mut_ptr().cast::<c_void>())));
        };
        let maker = || {
            ok((api.context_set)(context));
            let stream = api.stream(NON_BLOCKING);
            for _ in 0..ROUNDS {
                let own = captured(api, stream, THREAD_LOCAL, || api.run(add, stream, &[sum + 8, 1]));
                ok((api.graph_launch)(own, stream));
                // Perhaps before it has run.
                ok((api.exec_destroy)(own));
            }
            ok((api.stream_synchronize)(stream));
        };
        thread::scope(|scope| {
            (0..THREADS).for_each(|_| drop(scope.spawn(launcher)));
            scope.spawn(updater);
            scope.spawn(maker);
        });
        // The additions are not atomic: launches of one graph come one after the other, whatever the stream.
        assert_eq!(api.read_u64(sum), (2 * THREADS * ROUNDS) as u64);
        assert_eq!(api.read_u64(sum + 8), ROUNDS as u64);
    });
}

#[test]
fn streams_wait_for_graphs_and_graphs_for_streams() {
    in_children("streams_wait_for_graphs_and_graphs_for_streams", |api| {
        let (graphs, plain, sum) = (api.stream(0), api.stream(NON_BLOCKING), api.memory(8));
        let add = api.function(api.module(), "add");
        let exec = captured(api, graphs, RELAXED, || {
            api.run(add, graphs, &[sum, 1]);
            api.run(add, graphs, &[sum, 1]);
        });
        for _ in 0..50 {
            api.run(add, graphs, &[sum, 1]);
            ok((api.graph_launch)(exec, graphs));
            api.run(add, graphs, &[sum, 1]);
            // The legacy stream waits for the blocking stream, graph and all, and so does another graph in it.
            api.run(add, 0, &[sum, 1]);
            ok((api.graph_launch)(exec, 0));
            order(api, 0, plain);
            api.run(add, plain, &[sum, 1]);
            order(api, plain, graphs);
        }
        assert_eq!(api.read_u64(sum), 50 * 8);
    });
}
