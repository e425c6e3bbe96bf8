//! Graphs and what they need to live: memory of work items, communicators that end, captures that come to nothing,
//! other threads' captures, the runtime's calls.

use std::ffi::{c_int, c_uint, c_void};
use std::thread;
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::common::abi::INVALID_ARGUMENT;
use crate::common::contract::Func;
use crate::common::cuda::Stream;
use crate::common::graph::{CaptureMode, Exec};
use crate::common::launch;
use crate::common::nccl::{Comm, open, symbol};
use crate::common::oracle::DataType;
use crate::common::resources::Resources;
use crate::graphs::{Replay, everywhere, mode, under};
use crate::member::{Api, Item, Member, Submission};
use crate::setup::{self, Setup, Transport, seeded_rng};

/// How long something is watched that must not happen.
const WHILE: Duration = Duration::from_millis(300);

/// The captured calls of one case.
fn replay_of(member: &mut Member, case: Case) -> Replay {
    let calls = vec![case.prepare(member)];
    Replay::capture(member, calls, Submission::Queued)
}

/// A direct call with a comparison.
fn direct(member: &mut Member, count: usize) {
    member.run(&[Item::Collective(Case::of(Func::AllReduce, count))], Submission::Each, &mut seeded_rng("direct"));
}

/// So many messages to the next rank, a byte each, that their work items are not in the launch.
#[derive(Clone, Copy)]
struct Stream10k {
    from: u64,
    to: u64,
    add: u8,
}

impl Stream10k {
    const MESSAGES: usize = 10_000;

    fn new(member: &mut Member, add: u8) -> Stream10k {
        let zeroes = vec![0; Stream10k::MESSAGES];
        Stream10k { from: member.scratch(&zeroes), to: member.scratch(&zeroes), add }
    }

    fn issue(&self, member: &Member, stream: usize) {
        self.issue_by(member.api, member.comm, (member.rank, member.nranks), member.streams[stream]);
    }

    fn issue_by(&self, api: Api, comm: Comm, (rank, nranks): (usize, usize), stream: Stream) {
        let (calls, byte, stream) = (&api.calls, (1, DataType::Uint8), stream.0);
        let [next, before] = [1, nranks - 1].map(|step| ((rank + step) % nranks) as i32);
        api.nccl.group_start().expect("group");
        for at in 0..Stream10k::MESSAGES as u64 {
            // SAFETY: the buffers live until they are compared.
            unsafe {
                calls.recv(self.to + at, byte, before, comm, stream).expect("recv");
                calls.send(self.from + at, byte, next, comm, stream).expect("send");
            }
        }
        api.nccl.group_end().expect("group");
    }

    fn tile(&self, rank: usize, round: usize) -> Vec<u8> {
        (0..Stream10k::MESSAGES).map(|at| (at * 7 + rank * 31 + round * 101) as u8 ^ self.add).collect()
    }

    fn refill(&self, member: &Member, round: usize) {
        member.api.cuda.copy_to_device(self.from, &self.tile(member.rank, round)).expect("copy");
        member.api.cuda.copy_to_device(self.to, &vec![0; Stream10k::MESSAGES]).expect("copy");
    }

    fn compare(&self, member: &Member, round: usize) {
        let mut got = vec![0; Stream10k::MESSAGES];
        member.api.cuda.copy_to_host(&mut got, self.to).expect("copy");
        assert!(got == self.tile((member.rank + member.nranks - 1) % member.nranks, round), "round {round}");
    }
}

/// Two graphs of 10,000 messages, and as many in direct calls: none overwrites the work items of another.
#[test]
fn ten_thousand_messages() {
    under("graph_lifetimes::ten_thousand_messages", &everywhere(2), |member| {
        let graphs = member.api.graphs;
        let parts = [0x11, 0x22, 0x33].map(|add| Stream10k::new(member, add));
        let execs: Vec<Exec> = parts[..2]
            .iter()
            .map(|part| {
                let graph = graphs.capture(member.streams[0], mode(), || part.issue(member, 0));
                let exec = graphs.instantiate(graph);
                graphs.destroy(graph);
                exec
            })
            .collect();
        for round in 0..4 {
            parts.iter().for_each(|part| part.refill(member, round));
            graphs.launch(execs[round % 2], member.streams[1]);
            parts[2].issue(member, 2);
            graphs.launch(execs[(round + 1) % 2], member.streams[0]);
            member.wait();
            parts.iter().for_each(|part| part.compare(member, round));
        }
        execs.into_iter().for_each(|exec| graphs.destroy_exec(exec));
    });
}

/// `cuGraphExecUpdate` with a second capture of the same calls on other buffers; the communicator's end waits for the
/// graph that has got them.
#[test]
fn an_update_by_a_second_capture() {
    under("graph_lifetimes::an_update_by_a_second_capture", &everywhere(2), |member| {
        let graphs = member.api.graphs;
        let funcs = [Func::AllReduce, Func::Broadcast, Func::AllGather];
        let mut sets = [1, 2].map(|phase| funcs.map(|func| Case { phase, ..Case::of(func, 300) }.prepare(member)));
        let captured = sets.each_mut().map(|calls| {
            graphs.capture(member.streams[0], mode(), || calls.iter_mut().for_each(|call| member.must_issue(call)))
        });
        let exec = graphs.instantiate(captured[0]);
        graphs.launch(exec, member.streams[0]);
        member.wait();
        member.compare(&sets[0]);
        graphs.destroy(captured[0]);
        graphs.update(exec, captured[1]);
        graphs.destroy(captured[1]);
        for phase in 10..13 {
            sets[1].iter_mut().for_each(|call| member.refill(call, phase));
            graphs.launch(exec, member.streams[1]);
            member.wait();
            member.compare(&sets[1]);
        }
        graphs.destroy_exec(exec);
        member.release(sets.into_iter().flatten().collect());
    });
}

/// Ranks may capture as many calls as they like: what is not carried out is in no order.
#[test]
fn captures_are_no_calls() {
    under("graph_lifetimes::captures_are_no_calls", &everywhere(3), |member| {
        for _ in 0..=member.rank {
            drop(replay_of(member, Case::of(Func::AllReduce, 100)).end());
        }
        direct(member, 500);
        let mut replay = replay_of(member, Case::of(Func::AllGather, 70));
        replay.run(member, 3, 0);
        direct(member, 501);
        drop(replay.end());
    });
}

/// While a replay waits for a peer, the end of another communicator does not wait for the device: the peer may wait for
/// this thread. An event that a graph records tells nothing of it.
#[test]
fn a_replay_under_way_is_not_overlooked() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let [mut member, mut other] = ["id", "other"].map(|name| Member::of_process(api, &me, name));
        direct(&mut other, 1000);
        let mut replay = replay_of(&mut member, Case::of(Func::AllReduce, 100));
        replay.run(&mut member, 1, 0);
        if me.rank == 0 {
            replay.launch(&member, 0);
            api.nccl.abort(other.comm).expect("abort");
            me.publish("aborted", b"now");
        } else {
            me.await_published("aborted");
            api.nccl.abort(other.comm).expect("abort");
            replay.launch(&member, 0);
        }
        member.wait();
        drop(replay.end());
        other.leave();
        return member.end();
    }
    Setup::plain(2).run("graph_lifetimes::a_replay_under_way_is_not_overlooked");
}

/// Graphs whose communicator is finalized: that waits too, until another thread destroys them.
#[test]
fn finalizing_waits_for_graphs() {
    if let Some(me) = launch::child() {
        let mut member = Member::of_process(Api::load(), &me, "id");
        let mut replay = replay_of(&mut member, Case::of(Func::AllReduce, 100));
        replay.run(&mut member, 3, 0);
        let second = replay_of(&mut member, Case::of(Func::AllGather, 10));
        let (nccl, comm) = (member.api.nccl, member.comm);
        let waiter = thread::spawn(move || nccl.finalize(comm));
        thread::sleep(WHILE);
        drop(replay.end());
        thread::sleep(WHILE / 3);
        assert!(!waiter.is_finished(), "a graph is still there");
        drop(second.end());
        waiter.join().expect("no panic").expect("finalized");
        return member.end();
    }
    Setup::plain(2).run("graph_lifetimes::finalizing_waits_for_graphs");
}

/// Who waits for graphs for long says so.
#[test]
fn a_long_wait_for_graphs_is_told() {
    const NAME: &str = "graph_lifetimes::a_long_wait_for_graphs_is_told";
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        let mut member = Member::new(api, api.init(1, api.nccl.unique_id().expect("an id"), 0), (0, 1));
        let replay = replay_of(&mut member, Case::of(Func::AllReduce, 100));
        let (nccl, comm) = (api.nccl, member.comm);
        let waiter = thread::spawn(move || nccl.destroy(comm));
        thread::sleep(Duration::from_secs(12));
        drop(replay.end());
        waiter.join().expect("no panic").expect("destroyed");
        return member.leave();
    }
    if !setup::long() {
        return println!("{NAME} takes 12 seconds: OXCCL_LONG=1 runs it");
    }
    let outcome = Setup::plain(1).job(NAME).allow_any_warning().run();
    outcome.assert_ok();
    let told = outcome.ranks[0].warnings().join("\n");
    assert!(told.contains("ncclCommDestroy") && told.contains("1 CUDA graphs to be destroyed"), "{told}");
}

/// Abort does not wait for graphs, and gets who waits for them out. A graph that is launched afterwards ends at once,
/// and its end frees what the communicator had.
#[test]
fn abort_does_not_wait_for_graphs() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let mut before = None;
        for round in 0..6 {
            let mut member = Member::of_process(api, &me, &format!("id {round}"));
            let mut replay = replay_of(&mut member, Case::of(Func::AllReduce, 100_000));
            replay.run(&mut member, 3, 0);
            let (nccl, comm) = (api.nccl, member.comm);
            let waiter = (round % 2 == 0).then(|| thread::spawn(move || nccl.destroy(comm)));
            waiter.iter().for_each(|_| thread::sleep(WHILE / 3));
            me.barrier(&format!("abort {round}"));
            let start = Instant::now();
            nccl.abort(comm).expect("abort");
            assert!(start.elapsed() < Duration::from_secs(10));
            waiter.into_iter().for_each(|waiter| {
                waiter.join().expect("no panic").expect_err("aborted meanwhile");
            });
            (0..3).for_each(|at| replay.launch(&member, at));
            member.wait();
            drop(replay.end());
            member.leave();
            // What was left to the next call goes with this one.
            me.barrier(&format!("left {round}"));
            Member::of_process(api, &me, &format!("next {round}")).end();
            before.get_or_insert_with(Resources::now);
        }
        return before.expect("there were rounds").assert_same();
    }
    Setup::plain(2).job("graph_lifetimes::abort_does_not_wait_for_graphs").allow_any_warning().run().assert_ok();
}

/// Captures and graphs, and captures that come to nothing, leave nothing behind; direct calls go on after each.
#[test]
fn nothing_is_left_behind() {
    /// Rounds between two looks, and how many looks there are.
    const ROUNDS: usize = 40;
    const WINDOWS: usize = 4;
    const MAY_GROW_KIB: u64 = 4096;
    let Some(me) = launch::child() else {
        let job =
            |setup: &Setup| setup.job("graph_lifetimes::nothing_is_left_behind").allow_any_warning().run().assert_ok();
        return [Setup::plain(2), everywhere(2)[1]].iter().for_each(job);
    };
    setup::each_rank(&me, |member| {
        let graphs = member.api.graphs;
        let many = Stream10k::new(member, 1);
        let mut call = Case::of(Func::AllReduce, 100).prepare(member);
        let mut rounds = |member: &mut Member| {
            for round in 0..ROUNDS {
                let graph = graphs.capture(member.streams[0], mode(), || {
                    member.must_issue(&mut call);
                    if round % 4 == 0 {
                        many.issue(member, 0);
                    }
                });
                let exec = graphs.instantiate(graph);
                graphs.destroy(graph);
                graphs.launch(exec, member.streams[0]);
                graphs.destroy_exec(exec);
                // Invalidated in the middle.
                let side = member.streams[1];
                graphs.begin(side, CaptureMode::Relaxed);
                member.issue_on(&mut call, side);
                assert_ne!(graphs.query(side), 0, "not while it is captured");
                let failure = member.try_issue_on(&mut call, side).expect_err("the capture is invalid");
                assert!(failure.text.contains("captur"), "{failure}");
                assert_ne!(graphs.end_code(side), 0);
                member.must_issue(&mut call);
                member.wait();
            }
        };
        rounds(member);
        // Pieces for work items are kept for the next call. How many there are at most depends on how soon the driver
        // gives up graphs: a machine that is busy may need more of them than before. What is lost grows every time.
        // All ranks take the same number of rounds.
        let still = (0..WINDOWS).filter(|_| {
            let before = Resources::now();
            rounds(member);
            before.assert_same();
            before.is_within(MAY_GROW_KIB)
        });
        assert!(still.count() > 0, "resident memory grows with every {ROUNDS} rounds");
        member.release(vec![call]);
    });
}

/// What other threads do while a thread captures with the strictest mode does not spoil its capture: calls with many
/// work items, new communicators, the end of others.
#[test]
fn other_threads_work_during_a_capture() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let mut member = Member::of_process(api, &me, "id");
        // Memory before: a plain allocation would spoil the capture.
        let many = Stream10k::new(&mut member, 9);
        many.refill(&member, 1);
        let (captured, mut call) =
            (api.cuda.stream().expect("a stream"), Case::of(Func::AllReduce, 50).prepare(&mut member));
        member.wait();
        api.graphs.begin(captured, CaptureMode::Global);
        let (comm, place, stream) = (member.comm, (me.rank, me.nranks), member.streams[0]);
        let me = &me;
        let work = move || {
            api.cuda.use_device(me.rank).expect("a device");
            let ids = [0, 1].map(|at| api.meet(me, &format!("other {at}")));
            let other = api.init(me.nranks, ids[0], me.rank);
            many.issue_by(api, comm, place, stream);
            api.nccl.destroy(other).expect("destroy");
            api.nccl.abort(api.init(me.nranks, ids[1], me.rank)).expect("abort");
        };
        thread::scope(|scope| scope.spawn(work).join().expect("no panic"));
        member.issue_on(&mut call, captured);
        let graph = api.graphs.end(captured);
        api.graphs.destroy(graph);
        member.wait();
        many.compare(&member, 1);
        api.cuda.destroy_stream(captured).expect("destroy a stream");
        member.release(vec![call]);
        return member.end();
    }
    Setup::plain(2).run("graph_lifetimes::other_threads_work_during_a_capture");
}

/// A capturing stream of another device is refused, and the communicator goes on.
#[test]
fn a_stream_of_another_device() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let mut member = Member::of_process(api, &me, "id");
        let mut call = Case::of(Func::AllReduce, 50).prepare(&mut member);
        api.cuda.use_device(me.rank + 2).expect("a device");
        let other = api.cuda.stream().expect("a stream");
        api.cuda.use_device(me.rank).expect("a device");
        api.graphs.begin(other, CaptureMode::Relaxed);
        let failure = member.try_issue_on(&mut call, other).expect_err("not a stream of the device");
        assert_eq!(failure.code, INVALID_ARGUMENT, "{failure}");
        assert!(failure.text.contains(&format!("device {}", me.rank)), "{failure}");
        api.graphs.end_code(other);
        member.release(vec![call]);
        direct(&mut member, 1000);
        return member.end();
    }
    Setup::plain(2).job("graph_lifetimes::a_stream_of_another_device").allow_any_warning().run().assert_ok();
}

/// Graphs that may be mixed with other launches have nodes for that; others have the kernel alone.
#[test]
fn nodes_of_a_capture() {
    if let Some(me) = launch::child() {
        let mut member = Member::of_process(Api::load(), &me, "id");
        let mixed = std::env::var("NCCL_GRAPH_MIXING_SUPPORT").is_err();
        let graphs = member.api.graphs;
        let mut calls = [0, 1].map(|phase| Case { phase, ..Case::of(Func::AllReduce, 100) }.prepare(&mut member));
        let graph =
            graphs.capture(member.streams[0], mode(), || calls.iter_mut().for_each(|call| member.must_issue(call)));
        assert_eq!(graphs.count_nodes(graph), if mixed { 5 } else { 2 }, "kernels, a wait, a mark for each");
        let exec = graphs.instantiate(graph);
        graphs.destroy(graph);
        for round in 0..20 {
            calls.iter_mut().for_each(|call| member.refill(call, round));
            graphs.launch(exec, member.streams[0]);
            member.wait();
            member.compare(&calls);
            direct(&mut member, 10 + round);
        }
        graphs.destroy_exec(exec);
        return member.end();
    }
    const NAME: &str = "graph_lifetimes::nodes_of_a_capture";
    Setup::plain(2).run(NAME);
    Setup::plain(2).job(NAME).env("NCCL_GRAPH_MIXING_SUPPORT", "0").run().assert_ok();
}

/// The runtime's functions, as PyTorch uses them.
struct Runtime {
    begin: unsafe extern "C" fn(Stream, c_int) -> c_int,
    end: unsafe extern "C" fn(Stream, *mut *mut c_void) -> c_int,
    instantiate: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, u64) -> c_int,
    launch: unsafe extern "C" fn(*mut c_void, Stream) -> c_int,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
    destroy_exec: unsafe extern "C" fn(*mut c_void) -> c_int,
    set_device: unsafe extern "C" fn(c_int) -> c_int,
    stream: unsafe extern "C" fn(*mut Stream, c_uint) -> c_int,
    wait: unsafe extern "C" fn(Stream) -> c_int,
    destroy_stream: unsafe extern "C" fn(Stream) -> c_int,
}

impl Runtime {
    fn load() -> Runtime {
        let l = open("libcudart.so.12").expect("the runtime");
        // SAFETY: the types of the fields are the prototypes of CUDA 12's cuda_runtime_api.h.
        let loaded: Result<Runtime, String> = unsafe {
            (|| {
                Ok(Runtime {
                    begin: symbol(l, "cudaStreamBeginCapture")?,
                    end: symbol(l, "cudaStreamEndCapture")?,
                    instantiate: symbol(l, "cudaGraphInstantiateWithFlags")?,
                    launch: symbol(l, "cudaGraphLaunch")?,
                    destroy: symbol(l, "cudaGraphDestroy")?,
                    destroy_exec: symbol(l, "cudaGraphExecDestroy")?,
                    set_device: symbol(l, "cudaSetDevice")?,
                    stream: symbol(l, "cudaStreamCreateWithFlags")?,
                    wait: symbol(l, "cudaStreamSynchronize")?,
                    destroy_stream: symbol(l, "cudaStreamDestroy")?,
                })
            })()
        };
        loaded.expect("the runtime's functions")
    }
}

/// A program of the runtime API: a capture in the strictest mode, on a stream of its own, of the communicator's first
/// calls, messages among them.
#[test]
fn through_the_runtime() {
    if let Some(me) = launch::child() {
        let (api, runtime) = (Api::load(), Runtime::load());
        // SAFETY: the ordinal is checked; the pointer is to a live handle.
        let stream = unsafe {
            let mut stream = Stream(std::ptr::null_mut());
            assert_eq!((runtime.set_device)(me.rank as c_int), 0);
            assert_eq!((runtime.stream)(&mut stream, 1), 0);
            stream
        };
        let mut member = Member::of_process(api, &me, "id");
        let mut calls =
            [Func::AllReduce, Func::AllGather, Func::AlltoAll].map(|func| Case::of(func, 999).prepare(&mut member));
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the pointers are to live handles; the runtime checks the rest.
        unsafe {
            assert_eq!((runtime.begin)(stream, CaptureMode::Global as c_int), 0);
            calls.iter_mut().for_each(|call| member.issue_on(call, stream));
            assert_eq!((runtime.end)(stream, &mut graph), 0);
            assert_eq!((runtime.instantiate)(&mut exec, graph, 0), 0);
            assert_eq!((runtime.destroy)(graph), 0);
        }
        for phase in 0..10 {
            calls.iter_mut().for_each(|call| member.refill(call, phase));
            // SAFETY: the runtime checks the handles.
            unsafe {
                assert_eq!((runtime.launch)(exec, stream), 0);
                assert_eq!((runtime.wait)(stream), 0);
            }
            member.compare(&calls);
        }
        // SAFETY: as above; neither is used again.
        unsafe {
            assert_eq!((runtime.destroy_exec)(exec), 0);
            assert_eq!((runtime.destroy_stream)(stream), 0);
        }
        member.release(calls.into());
        return member.end();
    }
    for transport in [Transport::P2p, Transport::Shm] {
        Setup { transport, ..Setup::plain(3) }.run("graph_lifetimes::through_the_runtime");
    }
}
