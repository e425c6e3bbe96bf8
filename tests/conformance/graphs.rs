//! Capture and replay of calls and groups.

use std::thread;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::built;
use crate::case::{Case, Kind, kinds};
use crate::common::abi::INVALID_USAGE;
use crate::common::collectives::{Call, CollConfig};
use crate::common::contract::{Content, Func, Operator};
use crate::common::graph::{CaptureMode, Exec, Graphs};
use crate::common::launch;
use crate::common::oracle::{DataType, RedOp};
use crate::member::{Api, Item, Member, Prepared, STREAMS, Submission, shuffle};
use crate::messages::Message;
use crate::setup::{self, Setup, Transport, long, seeded_rng};

/// Where ranks are threads, a capture must not mind what the other threads do.
pub fn mode() -> CaptureMode {
    if setup::label().contains("Threads") { CaptureMode::ThreadLocal } else { CaptureMode::Global }
}

/// Calls that are replayed.
pub struct Replay {
    calls: Vec<Prepared>,
    exec: Exec,
    graphs: Graphs,
}

impl Replay {
    /// Captures calls, all streams forked from the first and joined again where several are used. Nothing may run
    /// before the first launch.
    pub fn capture(member: &mut Member, mut calls: Vec<Prepared>, submission: Submission) -> Replay {
        let graphs = member.api.graphs;
        let first = member.streams[0];
        let used: Vec<usize> = (1..STREAMS).filter(|at| calls.iter().any(|call| call.stream == *at)).collect();
        let graph = graphs.capture(first, mode(), || {
            used.iter().for_each(|at| graphs.follow(member.streams[*at], first));
            member.issue_all(&mut calls, submission);
            used.iter().for_each(|at| graphs.follow(first, member.streams[*at]));
        });
        let exec = graphs.instantiate(graph);
        graphs.destroy(graph);
        Replay { calls, exec, graphs }
    }

    /// A capture of random calls; messages only in groups.
    fn random(member: &mut Member, plan: &mut SmallRng, own: &mut SmallRng, streams: usize) -> Replay {
        let submission = [Submission::Queued, Submission::Group, Submission::Nested][plan.random_range(0..3usize)];
        let kinds = kinds();
        let mut items = Vec::new();
        for _ in 0..plan.random_range(1..6) {
            let kind = kinds[plan.random_range(0..kinds.len())];
            let case = Case::random(plan, kind, member.nranks);
            items.push(Item::Collective(Case { stream: case.stream % streams, ..case }));
        }
        if built::POINT_TO_POINT && submission != Submission::Queued {
            for _ in 0..plan.random_range(0..6) {
                let message = Message::random(plan, member.nranks, 10_000);
                items.push(Item::Message(Message { stream: message.stream % streams, ..message }));
            }
        }
        let mut calls: Vec<Prepared> = items.iter().flat_map(|item| member.prepare(item)).collect();
        if submission != Submission::Queued {
            shuffle(&mut calls, own);
        }
        Replay::capture(member, calls, submission)
    }

    /// New contents, a launch, a comparison.
    pub fn run(&mut self, member: &mut Member, phase: usize, stream: usize) {
        self.calls.iter_mut().for_each(|call| member.refill(call, phase));
        self.graphs.launch(self.exec, member.streams[stream]);
        member.wait();
        member.compare(&self.calls);
    }

    /// A launch.
    pub fn launch(&self, member: &Member, stream: usize) {
        self.graphs.launch(self.exec, member.streams[stream]);
    }

    /// Destroys the graph.
    pub fn end(self) -> Vec<Prepared> {
        self.graphs.destroy_exec(self.exec);
        self.calls
    }
}

/// Runs the test of this name under some setups.
pub fn under(test: &str, setups: &[Setup], body: impl Fn(&mut Member) + Sync) {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, body);
    }
    setups.iter().for_each(|setup| setup.run(test));
}

/// Each transport.
pub fn everywhere(n: usize) -> [Setup; 3] {
    [Transport::P2p, Transport::Shm, Transport::Threads].map(|transport| Setup { transport, ..Setup::plain(n) })
}

/// The first call of all is a captured one; each kind is captured alone and replayed with other contents.
#[test]
fn every_kind() {
    let net = Setup { transport: Transport::Net, ..Setup::plain(2) };
    let setups = [&[Setup::plain(1), net], &everywhere(2)[..], &everywhere(5)[..1]].concat();
    under("graphs::every_kind", &setups, |member| {
        let mut plan = seeded_rng("kinds");
        let step = if long() { 1 } else { member.nranks };
        let list: Vec<Kind> = kinds().into_iter().skip(member.nranks % step).step_by(step).collect();
        for kind in list {
            let case = Case { stream: 0, ..Case::random(&mut plan, kind, member.nranks) };
            let calls = vec![case.prepare(member)];
            let mut replay = Replay::capture(member, calls, Submission::Queued);
            (1..4).for_each(|round| replay.run(member, case.phase + 7 * round, round % STREAMS));
            member.release(replay.end());
        }
    });
}

/// Groups of collectives and messages, on one stream and on several.
#[test]
fn groups_and_several_streams() {
    under("graphs::groups_and_several_streams", &[everywhere(2), everywhere(3)].concat(), |member| {
        let (mut plan, mut own) = (seeded_rng("groups"), seeded_rng(&format!("rank {}", member.rank)));
        for round in 0..if long() { 60 } else { 8 } {
            let mut replay = Replay::random(member, &mut plan, &mut own, 1 + round % STREAMS);
            (0..3).for_each(|phase| replay.run(member, 11 * phase + round, 0));
            member.release(replay.end());
        }
    });
}

/// 1,000 launches of a graph with direct calls in between, without a wait but for the comparisons.
#[test]
fn a_thousand_replays_and_direct_calls() {
    under("graphs::a_thousand_replays_and_direct_calls", &[everywhere(2), everywhere(4)].concat()[..5], |member| {
        let (mut plan, mut own) = (seeded_rng("thousand"), seeded_rng(&format!("rank {}", member.rank)));
        let small = |at: usize, stream| Case {
            stream,
            phase: at,
            ..Case::of(built::FUNCS[at % built::FUNCS.len()], 100 + at % 7)
        };
        let calls: Vec<Prepared> = (0..3).map(|at| small(at, 0).prepare(member)).collect();
        let mut replay = Replay::capture(member, calls, Submission::Group);
        let direct: Vec<Item> = (0..3).map(|at| Item::Collective(small(at + 3, at))).collect();
        let mut direct: Vec<Prepared> = direct.iter().flat_map(|item| member.prepare(item)).collect();
        for round in 0..1000 {
            if round % 50 == 0 {
                replay.run(member, round, 0);
                direct.iter_mut().for_each(|call| member.refill(call, round));
                member.issue_all(&mut direct, Submission::Queued);
                member.wait();
                member.compare(&direct);
            } else {
                member.api.graphs.launch(replay.exec, member.streams[plan.random_range(0..STREAMS)]);
                if own.random() {
                    thread::yield_now();
                }
                if round % 3 == 0 {
                    direct[round % 3..][..1].iter_mut().for_each(|call| member.must_issue(call));
                }
            }
        }
        member.wait();
        let calls = [replay.end(), direct].into_iter().flatten().collect();
        member.release(calls);
    });
}

/// Several graphs of a communicator alive at a time, launched in an order that all ranks draw alike, on any stream.
#[test]
fn several_graphs() {
    under("graphs::several_graphs", &everywhere(3), |member| {
        let (mut plan, mut own) = (seeded_rng("several"), seeded_rng(&format!("rank {}", member.rank)));
        let mut replays: Vec<Replay> = (0..5).map(|_| Replay::random(member, &mut plan, &mut own, STREAMS)).collect();
        for round in 0..if long() { 500 } else { 40 } {
            let at = plan.random_range(0..replays.len());
            replays[at].run(member, round, plan.random_range(0..STREAMS));
        }
        // All at once, without a wait: they are carried out in the order of their launches.
        replays.iter_mut().for_each(|replay| replay.calls.iter_mut().for_each(|call| member.refill(call, 5)));
        for (at, replay) in replays.iter().enumerate() {
            member.api.graphs.launch(replay.exec, member.streams[at % STREAMS]);
        }
        member.wait();
        replays.iter().for_each(|replay| member.compare(&replay.calls));
        let calls = replays.into_iter().flat_map(Replay::end).collect();
        member.release(calls);
    });
}

/// A communicator's end waits for its graphs, which another thread may destroy.
#[test]
fn destroying_a_communicator_waits_for_its_graphs() {
    if let Some(me) = launch::child() {
        let mut member = Member::of_process(Api::load(), &me, "id");
        let calls = vec![Case::of(Func::AllReduce, 100).prepare(&mut member)];
        let mut replay = Replay::capture(&mut member, calls, Submission::Queued);
        replay.run(&mut member, 3, 0);
        let (nccl, comm) = (member.api.nccl, member.comm);
        let destroyer = thread::spawn(move || nccl.destroy(comm));
        thread::sleep(Duration::from_millis(300));
        assert!(!destroyer.is_finished(), "the graph is still there");
        drop(replay.end());
        destroyer.join().expect("no panic").expect("destroyed");
        return member.leave();
    }
    Setup::plain(2).run("graphs::destroying_a_communicator_waits_for_its_graphs");
}

/// Streams of a communicator in one group are all captured or none is; so are the communicators of a process.
#[test]
fn mixtures_are_refused() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let mut members: Vec<Member> = (0..2).map(|k| Member::of_process(api, &me, &format!("id{k}"))).collect();
        for (other, text) in [
            (0, "must either be all uncaptured or all captured by the same graph"),
            (1, "Either none or all communicators"),
        ] {
            let mut calls = [
                Case::of(Func::AllReduce, 10).prepare(&mut members[0]),
                Case { stream: 1, ..Case::of(Func::AllReduce, 10) }.prepare(&mut members[other]),
            ];
            api.graphs.begin(members[0].streams[0], CaptureMode::Relaxed);
            api.nccl.group_start().expect("group");
            // Refused by the call or by the group's end, which repeats it.
            let _ = members[0].issue(&mut calls[0]);
            let _ = members[other].issue(&mut calls[1]);
            let failure = api.nccl.group_end().expect_err("a mixture");
            assert_eq!(failure.code, INVALID_USAGE, "{failure}");
            assert!(failure.text.contains(text), "{failure}");
            api.graphs.end_code(members[0].streams[0]);
            // Nothing was carried out, and the next call is in step.
            for member in &mut members {
                let mut own = seeded_rng("own");
                member.run(&[Item::Collective(Case::of(Func::AllReduce, 500))], Submission::Group, &mut own);
            }
        }
        return members.into_iter().for_each(Member::end);
    }
    Setup::plain(2).job("graphs::mixtures_are_refused").allow_any_warning().run().assert_ok();
}

/// A scalar in device memory is read at each replay, and counts with the value that it has then.
#[test]
fn a_device_scalar_is_read_at_each_replay() {
    under("graphs::a_device_scalar_is_read_at_each_replay", &everywhere(2), |member| {
        if !built::PRE_MUL_SUM {
            return;
        }
        let count = 500;
        let operator = Some(Operator::PreMulSum { device: true });
        let kind = (Func::AllReduce, DataType::Int32, operator);
        let mut call = Case { phase: 1, ..Case::plain(kind, count) }.prepare(member);
        let graphs = member.api.graphs;
        let graph = graphs.capture(member.streams[0], mode(), || member.must_issue(&mut call));
        let exec = graphs.instantiate(graph);
        graphs.destroy(graph);
        let content = Content { dtype: DataType::Int32, operator, nranks: member.nranks };
        let tile = |rank| content.input_bits(rank, 1);
        for round in 1..6u32 {
            let scalar = |rank: usize| round.wrapping_mul(rank as u32 + 3);
            member.api.cuda.copy_to_device(call.scalar, &scalar(member.rank).to_le_bytes()).expect("copy");
            graphs.launch(exec, member.streams[0]);
            member.wait();
            let wanted = (0..member.nranks)
                .fold(0u32, |sum, rank| sum.wrapping_add((tile(rank) as u32).wrapping_mul(scalar(rank))));
            let mut first = [0; 4];
            member.api.cuda.copy_to_host(&mut first, call.buffers.1).expect("copy");
            assert_eq!(u32::from_le_bytes(first), wanted, "replay {round}");
        }
        graphs.destroy_exec(exec);
        member.release(vec![call]);
    });
}

/// A completion event of a captured call becomes a part of the graph: what waits for it there comes after the call.
#[test]
fn a_completion_event_in_a_capture() {
    under("graphs::a_completion_event_in_a_capture", &[Setup::plain(2)], |member| {
        let (graphs, count) = (member.api.graphs, 64);
        let kind = (Func::AllReduce, DataType::Int32, Some(Operator::Plain(RedOp::Sum)));
        let mut call = Case { phase: 1, ..Case::plain(kind, count) }.prepare(member);
        let copy = member.scratch(&vec![0; 4 * count]);
        let event = graphs.event();
        let config = CollConfig { event: event.0, ..Default::default() };
        let what = Call { func: Func::AllReduce, count, dtype: DataType::Int32 as i32, op: 0, root: 0 };
        let graph = graphs.capture(member.streams[0], mode(), || {
            let stream = member.streams[0].0;
            // SAFETY: the buffers live until they are compared; the configuration until the call is over.
            unsafe { member.api.calls.call_with(what, call.buffers, member.comm, stream, &config) }.expect("a call");
            graphs.hold(member.streams[1], event);
            graphs.copy(copy, call.buffers.1, 4 * count, member.streams[1]);
            graphs.follow(member.streams[0], member.streams[1]);
        });
        let exec = graphs.instantiate(graph);
        graphs.destroy(graph);
        for phase in 5..8 {
            member.refill(&mut call, phase);
            graphs.launch(exec, member.streams[0]);
            member.wait();
            member.compare(std::slice::from_ref(&call));
            let [mut output, mut copied] = [vec![0; 4 * count], vec![0; 4 * count]];
            member.api.cuda.copy_to_host(&mut output, call.buffers.1).expect("copy");
            member.api.cuda.copy_to_host(&mut copied, copy).expect("copy");
            assert_eq!(output, copied);
        }
        graphs.destroy_exec(exec);
        graphs.destroy_event(event);
        member.release(vec![call]);
    });
}
