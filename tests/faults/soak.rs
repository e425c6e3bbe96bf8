//! Ranks on hosts that call and call, with nothing going wrong: communicators come and go, a graph is replayed, and
//! what a process holds stays what it was.

use std::time::{Duration, Instant};

use crate::common::abi::{Comm, SUCCESS, UniqueId};
use crate::common::cuda::Stream;
use crate::common::graph::{CaptureMode, Exec, Graphs};
use crate::common::hosts::Hosts;
use crate::common::launch::{self, Job, Place};
use crate::common::need;
use crate::common::oracle::{DataType, RedOp};
use crate::common::resources::{Resources, rss_kib};
use crate::plan::{Fault, Plan};
use crate::rank::{self, Libraries};

/// The host of each rank.
const PLACES: [usize; 4] = [0, 0, 1, 1];
/// How long it goes on in the short form and in the long one, and what the last round may take.
const LENGTHS: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(600)];
const SLACK: Duration = Duration::from_secs(60);
/// Rounds after which everything is there that stays.
const FIRST: u64 = 4;
/// Replays in a round, and elements of the graph's sum.
const REPLAYS: usize = 10;
const COUNT: usize = 50_000;
/// How much more memory a process may have at the end, in KiB: allocators keep what they have had for a while.
const GROWTH: u64 = 32 << 10;

/// A communicator that stays, and a graph that adds ones.
struct Graph {
    libraries: &'static Libraries,
    graphs: Graphs,
    comm: Comm,
    stream: Stream,
    exec: Exec,
    buffer: u64,
}

impl Graph {
    fn new(me: &Place, libraries: &'static Libraries, stream: Stream) -> Graph {
        let graphs = Graphs::load().expect("libcuda");
        if me.rank == 0 {
            me.publish("graph", &libraries.nccl.unique_id().expect("an id").0);
        }
        let id = UniqueId(me.await_published("graph").try_into().expect("an id has 128 bytes"));
        let (code, comm) = libraries.communicators.init((me.nranks, me.rank), id, None);
        assert_eq!(code, SUCCESS, "{}", libraries.nccl.last_error());
        let buffer = libraries.cuda.alloc(COUNT * 4).expect("memory");
        let kind = (DataType::Uint32, RedOp::Sum);
        // SAFETY: the buffer is that large, and lives as long as the graph.
        let call =
            || unsafe { libraries.nccl.all_reduce((buffer, buffer), COUNT, kind, comm, stream.0) }.expect("a call");
        let graph = graphs.capture(stream, CaptureMode::Global, call);
        let exec = graphs.instantiate(graph);
        graphs.destroy(graph);
        Graph { libraries, graphs, comm, stream, exec, buffer }
    }

    /// Each replay multiplies all elements by the number of ranks.
    fn replay(&self, nranks: usize) {
        let cuda = &self.libraries.cuda;
        cuda.copy_to_device(self.buffer, &1u32.to_ne_bytes().repeat(COUNT)).expect("a copy");
        (0..REPLAYS).for_each(|_| self.graphs.launch(self.exec, self.stream));
        cuda.wait(self.stream).expect("the replays end");
        let mut got = vec![0; COUNT * 4];
        cuda.copy_to_host(&mut got, self.buffer).expect("a copy");
        let wanted = (nranks as u32).pow(REPLAYS as u32);
        assert_eq!(got, wanted.to_ne_bytes().repeat(COUNT), "a replay gives wrong sums");
    }

    fn end(self) {
        self.graphs.destroy_exec(self.exec);
        self.libraries.nccl.destroy(self.comm).expect("destroy");
        // SAFETY: nothing uses it any more.
        unsafe { self.libraries.cuda.free(self.buffer) }.expect("free");
    }
}

/// What a rank does until rank 0 says that it is enough.
fn live(me: &Place) {
    let libraries = Libraries::load();
    let stream = rank::prepare(libraries, me, &PLACES);
    let empty = Resources::now();
    let graph = Graph::new(me, libraries, stream);
    let start = Instant::now();
    let mut before = None;
    for number in 0.. {
        let name = format!("round {number}");
        if me.rank == 0 {
            let enough = start.elapsed() > LENGTHS[usize::from(need::long())] && number > FIRST;
            me.publish(&format!("{name} goes on"), if enough { b"no" } else { b"yes" });
        }
        if me.await_published(&format!("{name} goes on")) == b"no" {
            println!("{number} communicators, from {before:?} to {} KiB", rss_kib());
            break;
        }
        let mut plan = Plan { places: PLACES.into(), fault: Fault::None, ..Plan::new(number) };
        plan.redo_rounds();
        assert_eq!(rank::run(me, libraries, stream, plan, &name), None);
        graph.replay(me.nranks);
        if number == FIRST {
            before = Some(rss_kib());
        }
    }
    let grown = rss_kib().saturating_sub(before.expect("there were as many rounds"));
    assert!(grown < GROWTH, "memory has grown by {grown} KiB");
    graph.end();
    rank::assert_nothing_left(&empty, false);
}

#[test]
fn holds_what_it_held() {
    if let Some(me) = launch::child() {
        return live(&me);
    }
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::this_test("soak::holds_what_it_held", PLACES.len()).env("SOFTCUDA_DEVICES", "2");
    let job = job.deadline(LENGTHS[usize::from(need::long())] + SLACK);
    let outcome = hosts.place(job, &PLACES, true).run();
    hosts.assert_empty();
    outcome.assert_ok();
    outcome.ranks[0].stdout.lines().filter(|line| line.contains("communicators")).for_each(|line| println!("{line}"));
}
