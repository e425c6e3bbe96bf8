//! Aborts of work that is stuck, since a peer never calls, was killed or is stopped: from other threads, several at
//! once, with graphs that are alive, and replays that hang. Each returns soon, and when all have, everything is given
//! back.

use std::fs;
use std::ops::Range;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::seq::SliceRandom;
use rustix::process::Signal;

use crate::api::{Api, Holdings, Member, abort, seeded_rng};
use crate::common::abi::{IN_PROGRESS, SUCCESS};
use crate::common::graph::{CaptureMode, Exec};
use crate::common::launch::{self, Job, Place, Running};
use crate::common::nccl::Comm;
use crate::common::need;

/// How a peer is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// It is there, and never calls.
    Silent,
    /// It was killed while the others waited for it.
    Killed,
    /// It was stopped.
    Stopped,
}

/// What a communicator is doing when it is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    /// It is being made, and waits for the peer.
    Creation,
    /// It is split, which the peer takes no part in.
    Split,
    /// Nothing.
    Idle,
    /// A call waits for the peer.
    Call,
    /// The same, and a thread waits for the stream.
    Waited,
    /// The same, and a thread destroys it.
    Destroyed,
    /// A captured graph is alive.
    Graph,
    /// A replay of one waits for the peer.
    Replay,
    /// It calls and replays, in turns.
    Mixed,
}

impl Busy {
    const ALL: [Busy; 9] = [
        Busy::Creation,
        Busy::Split,
        Busy::Idle,
        Busy::Call,
        Busy::Waited,
        Busy::Destroyed,
        Busy::Graph,
        Busy::Replay,
        Busy::Mixed,
    ];

    /// The survivor's communicator; the peer makes its own, where it takes part.
    fn make(self, me: &Place, name: &str) -> Comm {
        let api = Api::load();
        match self {
            Busy::Creation => api.begin((2, 0), api.nccl.unique_id().expect("an id")),
            Busy::Split => {
                let comm = api.begin((2, me.rank), api.meet(me, name));
                assert_eq!(api.nccl.settle(comm), SUCCESS, "{}", api.nccl.last_error());
                comm
            }
            _ => api.init((2, me.rank), api.meet(me, name)),
        }
    }

    fn has_graph(self) -> bool {
        matches!(self, Busy::Graph | Busy::Replay | Busy::Mixed)
    }
}

/// A communicator with its task.
struct Stuck {
    member: Member,
    busy: Busy,
    graph: Option<Exec>,
}

impl Stuck {
    fn new(member: Member, busy: Busy) -> Stuck {
        member.fill();
        let graph = busy.has_graph().then(|| {
            let graphs = member.api.graphs;
            let graph = graphs.capture(member.stream, CaptureMode::Global, || member.call().expect("a call"));
            let exec = graphs.instantiate(graph);
            graphs.destroy(graph);
            exec
        });
        Stuck { member, busy, graph }
    }

    /// Launches what will wait for the peer.
    fn begin(&self) {
        let replay = || self.graph.iter().for_each(|exec| self.member.api.graphs.launch(*exec, self.member.stream));
        let call = || self.member.call().expect("a call");
        match self.busy {
            Busy::Creation | Busy::Idle | Busy::Graph => {}
            Busy::Split => {
                let (code, _) = self.member.api.split(self.member.comm, 0);
                assert!(matches!(code, SUCCESS | IN_PROGRESS), "{}", self.member.api.nccl.last_error());
            }
            Busy::Call | Busy::Waited | Busy::Destroyed => call(),
            Busy::Replay => replay(),
            Busy::Mixed => (0..3).for_each(|_| {
                replay();
                call();
            }),
        }
    }

    /// After the abort: a graph can still be launched, and ends at once.
    fn end(self) {
        let graphs = self.member.api.graphs;
        if let Some(exec) = self.graph {
            graphs.launch(exec, self.member.stream);
            self.member.api.cuda.wait(self.member.stream).expect("the replay leaves");
            graphs.destroy_exec(exec);
        }
        self.member.free();
    }
}

/// Communicators of the survivor that are all stuck are aborted by a thread each, in a random order.
fn abort_all(api: &'static Api, stuck: &[Stuck], order: &[usize], pause: Range<u64>) {
    let context = api.cuda.use_device(0).expect("a device");
    let mut rng = seeded_rng("pauses");
    thread::scope(|scope| {
        for one in stuck {
            let member = one.member;
            match one.busy {
                Busy::Waited => drop(scope.spawn(move || {
                    api.cuda.set_current(context).expect("current");
                    api.cuda.wait(member.stream).expect("the kernel leaves");
                })),
                Busy::Destroyed => drop(scope.spawn(move || {
                    api.nccl.destroy(member.comm).expect_err("aborted meanwhile");
                })),
                _ => {}
            }
        }
        thread::sleep(Duration::from_millis(50));
        for at in order {
            let comm = stuck[*at].member.comm;
            scope.spawn(move || abort(api, comm));
            thread::sleep(Duration::from_micros(rng.random_range(pause.clone())));
        }
    });
    api.cuda.release_device(0).expect("the device");
}

/// The survivor's part: once for the count of what is held, and once with the peer out of reach.
fn survivor(me: &Place, kinds: &[Busy]) {
    let api = Api::load();
    let make = |round: &str| -> Vec<Stuck> {
        let one = |(number, busy): (usize, &Busy)| {
            let comm = busy.make(me, &format!("{round} {number}"));
            Stuck::new(Member::new(comm, (2, me.rank)), *busy)
        };
        kinds.iter().enumerate().map(one).collect()
    };
    let mut rng = seeded_rng(&format!("{kinds:?}"));
    let mut round = |name: &str, all: Vec<Stuck>| {
        all.iter().for_each(Stuck::begin);
        me.publish(&format!("stuck {name}"), b"");
        me.await_published(&format!("out of reach {name}"));
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.shuffle(&mut rng);
        let start = Instant::now();
        // One after the other, then almost at once.
        abort_all(api, &all, &order, if name == "first" { 0..20_000 } else { 0..200 });
        println!("{} aborts in the order {order:?}: {:?}", all.len(), start.elapsed());
        all.into_iter().for_each(Stuck::end);
    };
    // The context lives from here on.
    api.cuda.use_device(0).expect("a device");
    round("first", make("first"));
    let before = Holdings::now();
    round("second", make("second"));
    before.assert_same();
}

/// The peer makes the communicators, and calls nothing.
fn peer(me: &Place, kinds: &[Busy]) {
    let api = Api::load();
    api.cuda.use_device(1).expect("a device");
    for round in ["first", "second"] {
        let with = kinds.iter().enumerate().filter(|(_, busy)| **busy != Busy::Creation);
        let comms: Vec<Comm> = with.map(|(number, busy)| busy.make(me, &format!("{round} {number}"))).collect();
        me.await_published(&format!("out of reach {round}"));
        comms.into_iter().for_each(|comm| abort(api, comm));
    }
}

/// Waits for a file in a job's folder.
fn await_file(job: &Running, name: &str) {
    let until = Instant::now() + launch::DEADLINE;
    while !job.dir().join(name).exists() && Instant::now() < until {
        thread::sleep(Duration::from_millis(2));
    }
}

fn put_out_of_reach(job: &mut Running, how: Peer) {
    for round in ["first", "second"] {
        await_file(job, &format!("stuck {round}"));
        match (how, round) {
            (Peer::Stopped, "second") => job.signal(1, Signal::STOP),
            (Peer::Killed, "second") => job.kill(1),
            _ => {}
        }
        fs::write(job.dir().join(format!("out of reach {round}")), b"").expect("the job's folder can be written");
    }
}

fn run(name: &str, how: Peer, kinds: &[Busy], envs: &[(&str, &str)]) {
    if let Some(me) = launch::child() {
        return if me.rank == 0 { survivor(&me, kinds) } else { peer(&me, kinds) };
    }
    let mut job = Job::this_test(name, 2).allow_any_warning();
    for (key, value) in envs {
        job = job.env(key, value);
    }
    let mut job = job.start();
    put_out_of_reach(&mut job, how);
    if how == Peer::Stopped {
        // The survivor must be through before the peer goes on.
        let until = Instant::now() + launch::DEADLINE;
        while !job.stdout(0).contains("test result") && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        job.signal(1, Signal::CONT);
    }
    let outcome = job.wait();
    assert!(outcome.ranks[0].status.success(), "{how:?}\n{outcome}");
    assert!(how == Peer::Killed || outcome.ranks[1].status.success(), "{how:?}\n{outcome}");
}

#[test]
fn a_peer_that_never_calls() {
    run("stuck::a_peer_that_never_calls", Peer::Silent, &Busy::ALL, &[]);
}

#[test]
fn a_peer_that_was_killed() {
    run("stuck::a_peer_that_was_killed", Peer::Killed, &Busy::ALL, &[]);
}

#[test]
fn a_peer_that_is_stopped() {
    run("stuck::a_peer_that_is_stopped", Peer::Stopped, &Busy::ALL, &[]);
}

/// By shared host memory, and where stores wake nobody and allocations wait, as on GPUs.
#[test]
fn the_same_on_a_strict_device() {
    let envs = [("NCCL_P2P_DISABLE", "1"), ("SOFTCUDA_NO_WAKE", "1"), ("SOFTCUDA_DELAY_US", "50")];
    run("stuck::the_same_on_a_strict_device", Peer::Killed, &Busy::ALL, &envs);
}

/// Some that are stuck, and one that is not, in several orders by one thread: each must return although others are
/// stuck.
fn in_turn(name: &str, me: &Place, kinds: [Busy; 5]) {
    let api = Api::load();
    api.cuda.use_device(me.rank).expect("a device");
    let (mut rng, mut before) = (seeded_rng(name), None);
    for round in 0..if need::long() { 60 } else { 8 } {
        let init = |number: usize| kinds[number].make(me, &format!("{round} {number}"));
        if me.rank == 1 {
            let with = (0..kinds.len()).filter(|number| kinds[*number] != Busy::Creation);
            let comms: Vec<Comm> = with.map(init).collect();
            me.await_published(&format!("over {round}"));
            comms.into_iter().for_each(|comm| abort(api, comm));
            continue;
        }
        let one = |number: usize| Stuck::new(Member::new(init(number), (2, 0)), kinds[number]);
        let all: Vec<Stuck> = (0..kinds.len()).map(one).collect();
        all.iter().for_each(Stuck::begin);
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.shuffle(&mut rng);
        order.iter().for_each(|at| abort(api, all[*at].member.comm));
        all.into_iter().for_each(Stuck::end);
        me.publish(&format!("over {round}"), b"");
        before.get_or_insert_with(Holdings::now);
    }
    before.iter().for_each(Holdings::assert_same);
}

#[test]
fn in_any_order() {
    const NAME: &str = "stuck::in_any_order";
    match launch::child() {
        Some(me) => in_turn(NAME, &me, [Busy::Call, Busy::Replay, Busy::Idle, Busy::Mixed, Busy::Split]),
        None => Job::this_test(NAME, 2).allow_any_warning().run().assert_ok(),
    }
}

/// Replays that are in no order with calls: nobody can tell whether one hangs, but that its graph is there.
#[test]
fn where_graphs_do_not_mix() {
    const NAME: &str = "stuck::where_graphs_do_not_mix";
    match launch::child() {
        Some(me) => in_turn(NAME, &me, [Busy::Call, Busy::Replay, Busy::Idle, Busy::Replay, Busy::Creation]),
        None => {
            let job = Job::this_test(NAME, 2).env("NCCL_GRAPH_MIXING_SUPPORT", "0");
            job.allow_any_warning().run().assert_ok();
        }
    }
}

/// Eight threads, each with a communicator that is stuck on a device that all share.
#[test]
fn by_eight_threads() {
    const NAME: &str = "stuck::by_eight_threads";
    let Some(me) = launch::child() else {
        return Job::this_test(NAME, 2).allow_any_warning().run().assert_ok();
    };
    let api = Api::load();
    let context = api.cuda.use_device(me.rank).expect("a device");
    let (start, mut before) = (Barrier::new(8), None);
    for round in 0..3 {
        thread::scope(|scope| {
            for number in 0..8 {
                let (start, me) = (&start, &me);
                scope.spawn(move || {
                    api.cuda.set_current(context).expect("current");
                    let member =
                        Member::new(api.init((2, me.rank), api.meet(me, &format!("{round} {number}"))), (2, me.rank));
                    start.wait();
                    if me.rank == 0 {
                        member.fill();
                        member.call().expect("a call");
                        start.wait();
                        thread::sleep(Duration::from_millis(number % 3));
                        abort(api, member.comm);
                        me.publish(&format!("over {round} {number}"), b"");
                    } else {
                        start.wait();
                        me.await_published(&format!("over {round} {number}"));
                        abort(api, member.comm);
                    }
                    member.free();
                });
            }
        });
        before.get_or_insert_with(Holdings::now);
    }
    before.expect("there were rounds").assert_same();
}
