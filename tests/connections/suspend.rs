//! Memory that is given up for a while: `ncclCommSuspend` and `ncclCommResume`.

use crate::common::abi::{IN_PROGRESS, INVALID_USAGE, MemStat, SUCCESS, SUSPEND_MEMORY};
use crate::common::graph::{CaptureMode, Graphs};
use crate::common::launch::{self, Job, Place};
use crate::member::{Api, Member};

/// Small and large calls, and a message around the ranks.
fn use_all(member: &Member) {
    [10, 100_000, 1_000_000].into_iter().for_each(|count| member.sum(count));
    let (me, n, count) = (member.rank, member.nranks, 5000);
    let (input, output) = (member.input(count), member.api.cuda.alloc(count * 4).expect("memory"));
    member.api.nccl.group_start().expect("group");
    member.send(input, count, (me + 1) % n);
    member.recv(output, count, (me + n - 1) % n);
    member.api.nccl.group_end().expect("group");
    member.api.cuda.wait(member.stream).expect("wait");
    member.check_from(output, count, (me + n - 1) % n);
    [input, output].into_iter().for_each(|at| member.free(at));
}

fn refused(member: &Member) {
    let at = member.input(10);
    let failure = member.all_reduce(at, 10).expect_err("it is suspended");
    assert_eq!(failure.code, INVALID_USAGE, "{failure}");
    assert!(failure.text.contains("suspended") && failure.text.contains("ncclCommResume"), "{failure}");
    member.free(at);
}

fn one_rank(me: &Place) {
    let api = Api::load();
    let member = Member::of_process(api, me, "id");
    let idle = member.stat(MemStat::Persist);
    for round in 0..3 {
        use_all(&member);
        me.barrier(&format!("used{round}"));
        let (free, links) = (api.free_bytes(), member.stat(MemStat::Suspend));
        assert!(links > 0 && member.stat(MemStat::Suspended) == 0);
        assert_eq!(api.comms.suspend(member.comm, 0), SUCCESS, "no flag, nothing to do");
        assert_eq!((member.stat(MemStat::Suspend), member.stat(MemStat::Suspended)), (links, 0));
        assert_eq!(api.comms.resume(member.comm), INVALID_USAGE, "it is not suspended");
        // Unknown bits say nothing.
        assert_eq!(
            api.comms.suspend(member.comm, if round == 1 { 0x70 | SUSPEND_MEMORY } else { SUSPEND_MEMORY }),
            SUCCESS
        );
        assert_eq!((member.stat(MemStat::Suspend), member.stat(MemStat::Suspended)), (0, 1));
        assert!(member.stat(MemStat::Persist) >= idle);
        if std::env::var_os("NCCL_P2P_DISABLE").is_none() {
            assert!(api.free_bytes() >= free + links as i64, "the device has it again");
        }
        refused(&member);
        assert_eq!(api.comms.suspend(member.comm, SUSPEND_MEMORY), INVALID_USAGE, "once is enough");
        assert_eq!(api.comms.resume(member.comm), SUCCESS);
        // Peers may be asking for links by now.
        assert_eq!(member.stat(MemStat::Suspended), 0);
    }
    use_all(&member);
    member.end();
}

#[test]
fn memory_comes_and_goes() {
    if let Some(me) = launch::child() {
        return one_rank(&me);
    }
    for shm in [false, true] {
        let job = Job::this_test("suspend::memory_comes_and_goes", 3).allow_any_warning();
        if shm { job.env("NCCL_P2P_DISABLE", "1") } else { job }.run().assert_ok();
    }
}

/// A graph that was captured before is launched after: its links are there again.
#[test]
fn graphs_outlive_a_suspension() {
    if let Some(me) = launch::child() {
        let (api, graphs) = (Api::load(), Graphs::load().expect("graphs"));
        let member = Member::of_process(api, &me, "id");
        let (count, at) = (1000, member.input(1000));
        // The first call of all is captured.
        let graph =
            graphs.capture(member.stream, CaptureMode::Global, || member.all_reduce(at, count).expect("a call"));
        let exec = graphs.instantiate(graph);
        for _ in 0..2 {
            let again = member.input(count);
            graphs.copy(at, again, count * 4, member.stream);
            graphs.launch(exec, member.stream);
            api.cuda.wait(member.stream).expect("wait");
            member.check_sum(at, count);
            assert_eq!(api.comms.suspend(member.comm, SUSPEND_MEMORY), SUCCESS);
            assert_eq!(api.comms.resume(member.comm), SUCCESS);
            assert!(member.stat(MemStat::Suspend) > 0, "links of graphs are connected at once");
            member.free(again);
        }
        member.sum(300);
        graphs.destroy_exec(exec);
        graphs.destroy(graph);
        member.free(at);
        return member.end();
    }
    Job::this_test("suspend::graphs_outlive_a_suspension", 2).run().assert_ok();
}

#[test]
fn a_polled_communicator_is_suspended_in_the_background() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let member = Member::polled(api, &me);
        member.sum(100);
        if me.rank == 1 {
            me.await_published("asked");
        }
        assert_eq!(api.comms.suspend(member.comm, SUSPEND_MEMORY), IN_PROGRESS);
        if me.rank == 0 {
            assert_eq!(api.nccl.async_error(member.comm), Ok(IN_PROGRESS), "the other rank is not there");
            me.publish("asked", b"");
        }
        assert_eq!(member.settle(), SUCCESS);
        assert_eq!((member.stat(MemStat::Suspend), member.stat(MemStat::Suspended)), (0, 1));
        assert_eq!(api.comms.resume(member.comm), IN_PROGRESS);
        assert_eq!(member.settle(), SUCCESS);
        member.sum(100);
        me.barrier("done");
        return member.end();
    }
    Job::this_test("suspend::a_polled_communicator_is_suspended_in_the_background", 2).run().assert_ok();
}

/// The user may switch all of this off.
#[test]
fn without_a_memory_manager() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let member = Member::of_process(api, &me, "id");
        assert_eq!(api.comms.mem_stat(member.comm, MemStat::Total), Err(INVALID_USAGE));
        assert_eq!(
            (api.comms.suspend(member.comm, SUSPEND_MEMORY), api.comms.resume(member.comm)),
            (INVALID_USAGE, INVALID_USAGE)
        );
        member.sum(100);
        return member.end();
    }
    let job = Job::this_test("suspend::without_a_memory_manager", 2).env("NCCL_DISABLE_MEM_MANAGER", "1");
    job.allow_any_warning().run().assert_ok();
}
