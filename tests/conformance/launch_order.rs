//! `NCCL_LAUNCH_ORDER_IMPLICIT`: what communicators of a device launch runs in the order in which the program has made
//! its calls.

use std::thread;
use std::time::Duration;

use crate::case::Case;
use crate::common::contract::Func;
use crate::common::graph::Exec;
use crate::common::launch;
use crate::graphs::mode;
use crate::member::{Api, Member, POISON, Prepared};
use crate::setup::Setup;

/// How long a call that must wait is given to be carried out by mistake.
const WHILE: Duration = Duration::from_millis(200);

/// How calls are made.
#[derive(Clone, Copy, Debug)]
enum Way {
    Direct,
    Replayed,
}

/// A call of one communicator, which can be made directly and by a graph.
struct Caller {
    member: Member,
    call: Prepared,
    exec: Exec,
}

impl Caller {
    fn new(mut member: Member) -> Caller {
        let mut call = Case::of(Func::AllReduce, 100).prepare(&mut member);
        let graphs = member.api.graphs;
        let graph = graphs.capture(member.streams[0], mode(), || member.must_issue(&mut call));
        let exec = graphs.instantiate(graph);
        graphs.destroy(graph);
        Caller { member, call, exec }
    }

    fn make(&mut self, way: Way) {
        match way {
            Way::Direct => self.member.must_issue(&mut self.call),
            Way::Replayed => self.member.api.graphs.launch(self.exec, self.member.streams[0]),
        }
    }

    /// Whether the output is as it was.
    fn is_untouched(&self) -> bool {
        let mut first = [0; 4];
        self.member.api.cuda.copy_to_host(&mut first, self.call.buffers.1).expect("copy");
        first == [POISON; 4]
    }

    fn end(mut self) {
        self.member.api.graphs.destroy_exec(self.exec);
        self.member.release(vec![self.call]);
        self.member.end();
    }
}

/// A call that waits for another rank, and then one of a communicator that has only this rank. It must not overtake,
/// though nothing else holds it up.
fn second_waits_for_first(me: &launch::Place, callers: &mut [Caller; 2], what: &str, make: impl Fn(&mut [Caller; 2])) {
    for (phase, caller) in callers.iter_mut().enumerate() {
        caller.member.refill(&mut caller.call, phase + what.len());
    }
    if me.rank == 1 {
        me.await_published(what);
    }
    make(callers);
    if me.rank == 0 {
        thread::sleep(WHILE);
        assert!(callers.iter().all(Caller::is_untouched), "{what}: a call has overtaken another");
        me.publish(what, b"go");
    }
    for caller in callers {
        caller.member.wait();
        caller.member.compare(std::slice::from_ref(&caller.call));
    }
}

#[test]
fn calls_of_two_communicators_follow_one_another() {
    let Some(me) = launch::child() else {
        let job = Setup::plain(2).job("launch_order::calls_of_two_communicators_follow_one_another");
        return job.env("NCCL_LAUNCH_ORDER_IMPLICIT", "1").run().assert_ok();
    };
    let api = Api::load();
    let pair = Member::of_process(api, &me, "id");
    let alone = Member::new(api, api.init(1, api.nccl.unique_id().expect("an id"), 0), (0, 1));
    let mut callers = [pair, alone].map(Caller::new);
    for first in [Way::Direct, Way::Replayed] {
        for second in [Way::Direct, Way::Replayed] {
            second_waits_for_first(&me, &mut callers, &format!("{first:?}, {second:?}"), |callers| {
                callers[0].make(first);
                callers[1].make(second);
            });
        }
    }
    // Both in one graph, on two streams.
    let (graphs, [a, b]) = (api.graphs, [0, 1].map(|at: usize| callers[at].member.streams[0]));
    let graph = graphs.capture(a, mode(), || {
        graphs.follow(b, a);
        callers.iter_mut().for_each(|caller| caller.make(Way::Direct));
        graphs.follow(a, b);
    });
    let both = graphs.instantiate(graph);
    graphs.destroy(graph);
    second_waits_for_first(&me, &mut callers, "one graph", |_| graphs.launch(both, a));
    graphs.destroy_exec(both);
    callers.into_iter().for_each(Caller::end);
}
