//! In which order launches are put on streams, for one communicator and for several.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fake::{Events, FakeComm, FakeFault, call};
use crate::comm::config::{CollConfig, CollRequest, MAGIC};
use crate::comm::{Outcome, handover};
use crate::error::Error;
use crate::launch::{Call, run_group, run_group_after, run_one, simulate_group};
use crate::plan::LinkClass;
use crate::plan::call::Func;
use crate::plan::layout::Proto;
use crate::plan::operator::{Reduction, Scalar};
use crate::transport::ConnectionGroup;

/// The calling thread's default stream.
const PER_THREAD: usize = 2;

fn on(stream: usize, call: Call) -> Call {
    Call { stream, ..call }
}

fn all_reduce(stream: usize) -> Call {
    on(stream, call(Func::AllReduce, 8))
}

fn message(func: Func, peer: i32) -> Call {
    Call { root: peer, ..call(func, 8) }
}

/// A call that names an event.
fn with_event(event: usize, call: Call) -> Call {
    let request = CollRequest {
        magic: MAGIC,
        min_ctas: 0,
        max_ctas: 0,
        nvls_ctas: 0,
        cga_cluster_size: 0,
        selection: None,
        force_selection: 0,
        cta_policy: 0,
        profiler_tag: 0,
        launch_completion_event: event,
    };
    Call { config: Some(CollConfig::resolve(request).expect("a configuration")), ..call }
}

/// A communicator whose links for collectives are connected.
fn connected(nranks: u32, events: &Events) -> FakeComm {
    let comm = FakeComm::of(nranks, events);
    for (class, channel) in LinkClass::COLLECTIVE.into_iter().flat_map(|class| [(class, 0), (class, 1)]) {
        comm.schedules.note_connected(ConnectionGroup::Channel { class, proto: Proto::Simple, channel });
    }
    comm
}

fn group(comm: &Arc<FakeComm>, calls: &[Call]) -> Vec<(Arc<FakeComm>, Call)> {
    calls.iter().map(|call| (comm.clone(), call.clone())).collect()
}

fn text<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.expect_err("an error").to_string()
}

#[test]
fn a_call_is_launched_between_what_came_before_and_the_mark_of_its_end() {
    let events = Events::default();
    let comm = Arc::new(connected(4, &events));
    assert_eq!(run_one(&comm, &all_reduce(7)), Ok(Outcome::Done));
    let expected =
        ["a: notes 0", "a: submits", "a: 7 waits for the last launch", "a: kernel on 7", "a: end marked on 7"];
    assert_eq!(events.take(), expected);
}

#[test]
fn kernels_go_to_the_last_stream_and_the_others_wait_for_it_and_it_for_them() {
    let events = Events::default();
    let comm = Arc::new(connected(4, &events));
    let calls = [all_reduce(5), with_event(99, all_reduce(6)), all_reduce(5), all_reduce(7)];
    assert_eq!(run_group(&group(&comm, &calls)), Ok(Outcome::Done));
    let expected = [
        "a: submits",
        "a: 7 waits for the last launch",
        "a: 7 waits for 5",
        "a: 7 waits for 6",
        "a: kernel on 7",
        "a: end marked on 7",
        "a: event 99 on 7",
        "a: 5 waits for the last launch",
        "a: 6 waits for the last launch",
    ];
    assert_eq!(events.take()[4..], expected);
}

#[test]
fn a_rank_alone_copies() {
    let events = Events::default();
    let comm = Arc::new(FakeComm::of(1, &events));
    let calls = [
        message(Func::Send, 0),
        all_reduce(7),
        Call { recv: 0x10_0000, ..all_reduce(7) },
        Call { count: 0, ..all_reduce(7) },
        Call { reduction: Reduction::Scaled(Scalar::Bits(3)), recv: 0x10_0000, ..all_reduce(7) },
        Call { recv: 0x90_0000, ..message(Func::Recv, 0) },
    ];
    assert_eq!(run_group(&group(&comm, &calls)), Ok(Outcome::Done));
    let done: Vec<String> = events.take().into_iter().filter(|event| !event.contains("notes")).collect();
    let expected = [
        "a: submits",
        "a: 7 waits for the last launch",
        "a: copy of 8 from 0x100000 to 0x800000 on 7",
        "a: kernel on 7",
        "a: copy of 8 from 0x100000 to 0x900000 on 7",
        "a: end marked on 7",
    ];
    assert_eq!(done, expected);
}

#[test]
fn a_launch_that_the_driver_refuses_is_marked_and_is_for_good() {
    let events = Events::default();
    let comm = Arc::new(FakeComm { fault: FakeFault::Refused, ..connected(4, &events) });
    let error = run_one(&comm, &all_reduce(7)).expect_err("a failure");
    let done = events.take();
    assert_eq!(done[3..], ["a: kernel on 7".to_string(), "a: end marked on 7".into(), format!("a: fails: {error}")]);
    // Nothing was carried out in a capture.
    comm.captures.lock().insert(7, 33);
    assert_eq!(run_one(&comm, &all_reduce(7)), Err(error));
    // Nor is it a call that ranks compare.
    let expected = [
        "a: capture 33",
        "a: submits to capture 33",
        "a: 7 waits for the last launch",
        "a: kernel on 7",
        "a: end marked on 7",
    ];
    assert_eq!(events.take(), expected);
}

#[test]
fn ranks_that_call_different_things_launch_nothing() {
    let events = Events::default();
    let comm = Arc::new(FakeComm { fault: FakeFault::Mismatch, ..connected(4, &events) });
    assert_eq!(text(run_group(&group(&comm, &[all_reduce(7)]))), "calls do not match");
    assert_eq!(events.take(), ["a: notes 0", "a: says goodbye if due"]);
    // What the communicator has found out by then comes first.
    *comm.failure.lock() = Some(Error::Aborted);
    assert_eq!(run_group(&group(&comm, &[all_reduce(7)])), Err(Error::Aborted));
}

#[test]
fn several_communicators_are_launched_in_one_order_on_all_ranks() {
    let events = Events::default();
    let named = |name, hash, rank| Arc::new(FakeComm { name, hash, rank, ..connected(4, &events) });
    let (a, b, c) = (named("a", 9, 1), named("b", 2, 2), named("c", 2, 1));
    let calls = [(&a, 5), (&b, 6), (&c, 7), (&a, 5)].map(|(comm, stream)| (comm.clone(), all_reduce(stream)));
    assert_eq!(run_group(&calls), Ok(Outcome::Done));
    let kernels: Vec<String> = events.take().into_iter().filter(|event| event.contains("kernel")).collect();
    assert_eq!(kernels, ["c: kernel on 7", "b: kernel on 6", "a: kernel on 5"]);
    assert_eq!(a.launched.lock()[0].arguments.nwork, 2);
}

#[test]
fn all_peers_are_asked_before_anybody_waits_for_links() {
    let events = Events::default();
    let named = |name, hash| Arc::new(FakeComm { name, hash, ..FakeComm::of(4, &events) });
    let calls = [named("a", 1), named("b", 2)].map(|comm| (comm, message(Func::Send, 0)));
    assert_eq!(run_group(&calls), Ok(Outcome::Done));
    let done = events.take();
    assert_eq!(done[..4], ["a: asks for 1", "b: asks for 1", "a: connects 1", "b: connects 1"]);
    assert_eq!(done[4], "a: submits");
}

#[test]
fn who_polls_does_not_wait_for_links() {
    let events = Events::default();
    let polled = |name, hash| FakeComm { name, hash, blocking: false, ..FakeComm::of(4, &events) };
    let comm = Arc::new(FakeComm { background: Some(Default::default()), ..polled("a", 1) });
    assert_eq!(run_one(&comm, &message(Func::Send, 0)), Ok(Outcome::InProgress));
    assert_eq!(events.take(), ["a: is busy"]);
    assert_eq!(comm.run_background(), [Ok(())]);
    let expected = [
        "a: asks for 1",
        "a: connects 1, busy",
        "a: submits",
        "a: 7 waits for the last launch",
        "a: kernel on 7",
        "a: end marked on 7",
        "a: is ready",
    ];
    assert_eq!(events.take(), expected);
    // The links are there, so that the next call is launched at once.
    assert_eq!(run_group(&group(&comm, &[message(Func::Send, 0)])), Ok(Outcome::Done));
    // Somebody waits: then all do.
    let waits = Arc::new(FakeComm { blocking: true, ..polled("b", 2) });
    let calls = [(waits, message(Func::Send, 0)), (Arc::new(polled("c", 3)), message(Func::Send, 0))];
    assert_eq!(run_group(&calls), Ok(Outcome::Done));
}

#[test]
fn a_capture_that_ends_before_a_late_launch_is_an_error() {
    let events = Events::default();
    let polled = FakeComm { blocking: false, background: Some(Default::default()), ..FakeComm::of(4, &events) };
    let comm = Arc::new(polled);
    comm.captures.lock().insert(7, 33);
    assert_eq!(run_group(&group(&comm, &[message(Func::Send, 0)])), Ok(Outcome::InProgress));
    comm.captures.lock().clear();
    let result = comm.run_background().remove(0);
    assert!(text(result).contains("a capture of stream 0x7 began or ended"));
    assert_eq!(events.take().last().expect("an event"), "a: is ready no more");
    assert!(comm.launched.lock().is_empty());
}

#[test]
fn only_its_thread_launches_on_its_default_stream() {
    let events = Events::default();
    let polled = |background| FakeComm { blocking: false, background, ..FakeComm::of(4, &events) };
    // The links are there within the time that a call waits for them.
    let quick = Arc::new(polled(None));
    assert_eq!(run_one(&quick, &on(PER_THREAD, message(Func::Send, 0))), Ok(Outcome::Done));
    assert_eq!(events.take().last().expect("an event"), "a: is ready");
    // They are not.
    let slow = Arc::new(polled(Some(Default::default())));
    assert_eq!(run_one(&slow, &on(PER_THREAD, message(Func::Send, 0))), Ok(Outcome::InProgress));
    let theirs = slow.clone();
    std::thread::scope(|scope| scope.spawn(move || assert_eq!(theirs.run_background(), [Ok(())])).join())
        .expect("the other thread");
    assert_eq!(events.take(), ["a: is busy", "a: asks for 1", "a: connects 1, busy"]);
    assert_eq!(handover::take_up(), Some(Ok(())));
    assert_eq!(events.take()[2], "a: kernel on 2");
}

#[test]
fn what_else_a_group_has_to_do_comes_first() {
    let events = Events::default();
    let comm = Arc::new(FakeComm { background: Some(Default::default()), ..connected(4, &events) });
    let other = Arc::new(FakeComm { name: "other", ..FakeComm::of(4, &events) });
    let begin = |first: Result<(), Error>, done: &Arc<AtomicBool>| {
        let done = done.clone();
        let first = move || {
            done.store(true, Ordering::Relaxed);
            first
        };
        let others = vec![comm.clone(), other.clone()];
        run_group_after(group(&comm, &[all_reduce(7)]), others, first)
    };
    let done = Arc::new(AtomicBool::new(false));
    assert_eq!(begin(Ok(()), &done), Ok(Outcome::InProgress));
    assert!(!done.load(Ordering::Relaxed));
    assert_eq!(comm.run_background(), [Ok(())]);
    assert!(done.load(Ordering::Relaxed));
    let after = events.take();
    assert_eq!(after[3..5], ["a: notes 0", "a: submits"]);
    assert_eq!(after.iter().filter(|event| event.ends_with("is ready")).count(), 3);
    // Where that fails, nothing is launched and everybody fails.
    assert_eq!(begin(Err(Error::Aborted), &done), Ok(Outcome::InProgress));
    assert_eq!(comm.run_background(), [Err(Error::Aborted)]);
    let after = events.take();
    assert_eq!(after.iter().filter(|event| event.ends_with("is ready no more")).count(), 3);
    assert_eq!(comm.launched.lock().len(), 1);
    // What is wrong with a call shows at once.
    let wrong = vec![(comm.clone(), all_reduce(666))];
    assert!(matches!(run_group_after(wrong, vec![], || Ok(())), Err(Error::InvalidArgument(_))));
    assert_eq!(events.take(), Vec::<String>::new());
}

#[test]
fn what_is_wrong_with_a_group_is_found_before_any_launch() {
    let events = Events::default();
    let named = |name, hash| Arc::new(FakeComm { name, hash, ..connected(4, &events) });
    let (a, b) = (named("a", 1), named("b", 2));
    let refused = |calls: &[(Arc<FakeComm>, Call)]| text(run_group(calls));
    let two = group(&b, &[with_event(1, all_reduce(7)), with_event(2, all_reduce(7))]);
    assert!(refused(&[group(&a, &[all_reduce(7)]), two].concat()).contains("Only one launch-completion event"));
    assert!(refused(&group(&a, &[message(Func::Recv, 1)])).contains("without a matching send"));
    assert!(refused(&group(&a, &[all_reduce(7), all_reduce(666)])).contains("another context"));
    a.captures.lock().extend([(5, 33), (6, 34)]);
    assert!(refused(&group(&a, &[all_reduce(5), all_reduce(6)])).contains("all captured by the same graph"));
    assert!(refused(&group(&a, &[all_reduce(5), all_reduce(7)])).contains("all captured by the same graph"));
    let mixed = [(a.clone(), all_reduce(5)), (b.clone(), all_reduce(7))];
    assert!(refused(&mixed).contains("Either none or all communicators"));
    assert!(events.take().iter().all(|event| event.ends_with("says goodbye if due")));
}

#[test]
fn an_estimate_is_that_of_the_last_collective() {
    let events = Events::default();
    let (comm, alone) = (Arc::new(FakeComm::of(4, &events)), Arc::new(FakeComm::of(1, &events)));
    let large = || call(Func::AllReduce, 64 << 20);
    let estimate = |calls: &[(Arc<FakeComm>, Call)]| simulate_group(calls).expect("an answer");
    let little = estimate(&group(&comm, &[large(), all_reduce(7)])).expect("an estimate");
    let much = estimate(&group(&comm, &[all_reduce(7), large(), message(Func::Send, 0)])).expect("an estimate");
    assert!(little < much);
    assert_eq!(estimate(&group(&comm, &[message(Func::Send, 0)])), None);
    assert_eq!(estimate(&group(&alone, &[large()])), None);
    assert_eq!(events.take(), Vec::<String>::new());
}
