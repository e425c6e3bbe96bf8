//! The configuration of a call (`ncclCollConfig_t`), and a group's simulation.

use std::ffi::CStr;

use crate::built;
use crate::case::Case;
use crate::common::abi::{INVALID_ARGUMENT, INVALID_USAGE};
use crate::common::collectives::{Call, CollConfig, SimInfo};
use crate::common::contract::Func;
use crate::common::launch;
use crate::common::nccl::Failure;
use crate::common::oracle::DataType;
use crate::member::{Item, Member, Prepared, Submission};
use crate::setup::{self, Setup, seeded_rng};

/// A call of 32-bit integers with a configuration.
fn call_with(
    member: &Member,
    func: Func,
    count: usize,
    buffers: (u64, u64),
    config: &CollConfig,
) -> Result<(), Failure> {
    let call = Call { func, count, dtype: DataType::Int32 as i32, op: 0, root: 0 };
    // SAFETY: callers' buffers live until they are compared; the configuration until the call is over.
    unsafe { member.api.calls.call_with(call, buffers, member.comm, member.streams[0].0, config) }
}

/// A selection that is forced and cannot be honoured is an error, and a group remembers it; unforced it is only
/// preferred.
#[test]
fn selections() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let refused: [(Func, &CStr); 7] = [
                (Func::AllReduce, c"PAT"),
                (Func::AllReduce, c"RING+TREE"),
                (Func::AllReduce, c"SIMPLE"),
                (Func::AllReduce, c"^"),
                (Func::Broadcast, c"TREE"),
                (Func::AlltoAll, c"RING"),
                (Func::AllGather, c"nonsense"),
            ];
            for (func, words) in refused.into_iter().filter(|(func, _)| built::FUNCS.contains(func)) {
                let call = Case { in_place: false, ..Case::of(func, 10) }.prepare(member);
                let mut config = CollConfig { selection: words.as_ptr(), ..Default::default() };
                member.api.nccl.group_start().expect("group");
                let failure = call_with(member, func, 10, call.buffers, &config).expect_err("forced");
                assert_eq!(failure.code, INVALID_ARGUMENT, "{words:?}: {failure}");
                assert_eq!(
                    member.api.nccl.group_end().expect_err("a failed group").code,
                    INVALID_ARGUMENT,
                    "{words:?}"
                );
                call_with(member, func, 0, call.buffers, &config).expect("nothing to do comes first");
                config.force = 0;
                call_with(member, func, 10, call.buffers, &config).expect("a preference");
                member.check(vec![call]);
            }
        });
    }
    Setup::plain(2).job("configs::selections").allow_any_warning().run().assert_ok();
}

/// A configuration that ends before its magic is refused by every collective, and no group remembers it;
/// one that ends behind it says nothing else.
#[test]
fn sizes() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            for func in built::FUNCS.iter().copied().filter(|func| *func != Func::Bcast) {
                let call = Case { in_place: false, ..Case::of(func, 10) }.prepare(member);
                let with = |size| call_with(member, func, 10, call.buffers, &CollConfig { size, ..Default::default() });
                member.api.nccl.group_start().expect("group");
                for size in [0, 8, 11] {
                    let failure = with(size).expect_err("no configuration");
                    assert_eq!(failure.code, INVALID_ARGUMENT, "{func:?}: {failure}");
                    assert!(member.api.nccl.last_error().contains(&format!("size {size} ")), "{func:?}");
                }
                member.api.nccl.group_end().expect("nothing is remembered");
                with(16).expect("a size");
                member.check(vec![call]);
            }
        });
    }
    Setup::plain(2).job("configs::sizes").allow_any_warning().run().assert_ok();
}

/// The event of a call is done after it; one for each communicator and group; none for calls that are nothing.
#[test]
fn completion_events() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let (graphs, nccl) = (member.api.graphs, member.api.nccl);
            let event = graphs.event();
            let config = CollConfig { event: event.0, ..Default::default() };
            for _ in 0..20 {
                let call = Case::of(Func::AllReduce, 5000).prepare(member);
                call_with(member, Func::AllReduce, 5000, call.buffers, &config).expect("a call");
                // What follows the event follows the call's launch; the stream is waited for, too.
                member.wait();
                assert!(graphs.is_done(event));
                member.check(vec![call]);
            }
            let mut calls: Vec<Prepared> = (0..2).map(|_| Case::of(Func::AllReduce, 10).prepare(member)).collect();
            nccl.group_start().expect("group");
            let results: Vec<_> =
                calls.iter().map(|call| call_with(member, Func::AllReduce, 10, call.buffers, &config)).collect();
            let failure = nccl.group_end().expect_err("two events");
            assert_eq!(failure.code, INVALID_USAGE, "{failure}, {results:?}");
            assert!(
                failure.text.contains("Only one launch-completion event may be provided in one NCCL group"),
                "{failure}"
            );
            calls.iter_mut().for_each(|call| member.must_issue(call));
            // A call of nothing does not look at its event.
            let garbage = CollConfig { event: std::ptr::without_provenance_mut(0x1234), ..config };
            call_with(member, Func::AllReduce, 0, calls[0].buffers, &garbage).expect("nothing to do");
            member.check(calls);
            graphs.destroy_event(event);
        });
    }
    if built::has("launchCompletionEvent", built::COMPLETION_EVENTS) {
        for n in [1, 2] {
            Setup::plain(n).job("configs::completion_events").allow_any_warning().run().assert_ok();
        }
    }
}

/// A group that is simulated gets an estimate and is not carried out.
#[test]
fn simulations() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let (nccl, calls) = (member.api.nccl, member.api.calls);
            let mut estimates = Vec::new();
            for count in [1000, 10_000_000] {
                // What the buffers hold is of no interest: they are too small for the call that is not carried out.
                let call = Case::of(Func::AllReduce, 10).prepare(member);
                let mut info = SimInfo::default();
                nccl.group_start().expect("group");
                call_with(member, Func::AllReduce, count, call.buffers, &CollConfig::default()).expect("queued");
                nccl.group_start().expect("an inner group");
                calls.simulate_end(&mut info).expect("an inner end");
                calls.simulate_end(&mut info).expect("an estimate");
                estimates.push(info.estimated);
                member.wait();
                member.release(vec![call]);
            }
            assert!(estimates[0] > 0.0 && estimates[1] > 2.0 * estimates[0], "{estimates:?} us");
            let mut info = SimInfo::default();
            nccl.group_start().expect("group");
            calls.simulate_end(&mut info).expect("an empty group");
            assert_eq!(info.estimated, -1.0);
            nccl.group_start().expect("group");
            info.magic = 1;
            assert_eq!(calls.simulate_end(&mut info).expect_err("no such structure").code, INVALID_ARGUMENT);
            let mut own = seeded_rng("own");
            member.run(&[Item::Collective(Case::of(Func::AllReduce, 100))], Submission::Group, &mut own);
        });
    }
    if built::has("ncclGroupSimulateEnd", built::SIMULATION) {
        Setup::plain(2).job("configs::simulations").allow_any_warning().run().assert_ok();
    }
}
