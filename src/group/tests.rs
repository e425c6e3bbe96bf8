//! What becomes of what a thread collects, with an executor that writes down what it is asked to do.

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::Mutex;

use super::collector::{Collected, Collector, GroupJob};
use super::executor::{GroupExecutor, carry_out, simulate};
use super::{end, is_open, note_error, simulate_end, start};
use crate::comm::Outcome;
use crate::error::Error;
use crate::launch::Call;
use crate::plan::call::{DataType, Func, Op};
use crate::plan::operator::Reduction;

#[derive(Clone, Copy)]
struct FakeJob {
    name: &'static str,
    blocking: bool,
    end: bool,
}

impl GroupJob for FakeJob {
    fn is_blocking(&self) -> bool {
        self.blocking
    }

    fn is_end(&self) -> bool {
        self.end
    }
}

const INIT: FakeJob = FakeJob { name: "init", blocking: true, end: false };
const POLLED_INIT: FakeJob = FakeJob { name: "polled init", blocking: false, end: false };
const POLLED_DESTROY: FakeJob = FakeJob { name: "polled destroy", blocking: false, end: true };

#[derive(Default)]
struct FakeExecutor {
    done: RefCell<Vec<String>>,
    jobs_fail: bool,
    cannot_begin: bool,
}

impl FakeExecutor {
    fn note(&self, what: String) {
        self.done.borrow_mut().push(what);
    }

    fn done(&self) -> Vec<String> {
        self.done.take()
    }
}

fn names(jobs: &[FakeJob]) -> String {
    jobs.iter().map(|job| job.name).collect::<Vec<_>>().join(", ")
}

fn comms(calls: &[(&'static str, Call)]) -> String {
    calls.iter().map(|(comm, _)| *comm).collect::<Vec<_>>().join(", ")
}

impl GroupExecutor for FakeExecutor {
    type Job = FakeJob;
    type Comm = &'static str;

    fn run_jobs(&self, jobs: Vec<FakeJob>) -> Result<(), Error> {
        self.note(format!("run: {}", names(&jobs)));
        if self.jobs_fail { Err(failure("a job")) } else { Ok(()) }
    }

    fn launch(&self, calls: &[(&'static str, Call)]) -> Result<Outcome, Error> {
        self.note(format!("launch: {}", comms(calls)));
        Ok(Outcome::Done)
    }

    fn begin(&self, jobs: Arc<Mutex<Vec<FakeJob>>>, calls: Vec<(&'static str, Call)>) -> Result<Outcome, Error> {
        if self.cannot_begin {
            return Err(failure("a stream"));
        }
        let jobs = std::mem::take(&mut *jobs.lock());
        self.note(format!("in the background: {}; {}", names(&jobs), comms(&calls)));
        Ok(Outcome::InProgress)
    }

    fn simulate(&self, calls: &[(&'static str, Call)]) -> Result<Option<f64>, Error> {
        self.note(format!("simulate: {}", comms(calls)));
        Ok(Some(1.5))
    }

    fn drop_job(&self, job: FakeJob, error: &Error) {
        self.note(format!("drop {}: {error}", job.name));
    }

    fn fail_call(&self, comm: &&'static str, error: &Error) {
        self.note(format!("fail {comm}: {error}"));
    }
}

fn failure(what: &str) -> Error {
    Error::InvalidUsage(what.to_string())
}

fn call() -> Call {
    let reduction = Reduction::Builtin(Op::Sum);
    let (func, datatype) = (Func::AllReduce, DataType::Int8);
    Call { func, send: 1, recv: 1, count: 1, datatype, reduction, root: 0, stream: 0, config: None }
}

/// What a group of jobs, and of calls on two communicators, has collected.
fn collected(jobs: &[FakeJob]) -> Collected<FakeJob, &'static str> {
    let mut collector = Collector::EMPTY;
    collector.start();
    collector.add_call("a", call());
    jobs.iter().for_each(|job| collector.add_job(*job));
    collector.add_call("b", call());
    collector.end().expect("a start").expect("the outermost group")
}

fn executed(group: Collected<FakeJob, &'static str>) -> (Result<Outcome, Error>, Vec<String>) {
    let executor = FakeExecutor::default();
    (carry_out(&executor, group), executor.done())
}

#[test]
fn only_the_end_of_the_outermost_group_gives_what_was_collected() {
    let mut collector = Collector::<FakeJob, &str>::EMPTY;
    (0..3).for_each(|_| collector.start());
    collector.add_call("a", call());
    collector.add_job(INIT);
    assert!(collector.end().expect("a start").is_none());
    collector.add_call("b", call());
    assert!(collector.end().expect("a start").is_none());
    assert!(collector.is_open());
    let group = collector.end().expect("a start").expect("the outermost group");
    assert_eq!((group.jobs.len(), comms(&group.calls), group.error), (1, "a, b".to_string(), None));
    assert!(!collector.is_open());
    // Nothing is left.
    collector.start();
    let next = collector.end().expect("a start").expect("the outermost group");
    assert_eq!((next.jobs.len(), next.calls.len()), (0, 0));
}

#[test]
fn a_group_cannot_end_that_has_not_started() {
    let mut collector = Collector::<FakeJob, &str>::EMPTY;
    assert!(matches!(collector.end(), Err(Error::InvalidUsage(_))));
    collector.start();
    collector.end().map(drop).expect("a start");
    assert!(matches!(collector.end(), Err(Error::InvalidUsage(_))));
}

#[test]
fn jobs_come_before_calls_whatever_their_order() {
    let (result, done) = executed(collected(&[INIT]));
    assert_eq!((result, done), (Ok(Outcome::Done), vec!["run: init".to_string(), "launch: a, b".to_string()]));
    let (result, done) = executed(collected(&[]));
    assert_eq!((result, done), (Ok(Outcome::Done), vec!["run: ".to_string(), "launch: a, b".to_string()]));
    let executor = FakeExecutor { jobs_fail: true, ..FakeExecutor::default() };
    assert_eq!(carry_out(&executor, collected(&[INIT])), Err(failure("a job")));
    assert_eq!(executor.done(), ["run: init"]);
}

#[test]
fn what_is_polled_for_goes_to_the_background() {
    let (result, done) = executed(collected(&[POLLED_INIT, POLLED_INIT]));
    assert_eq!(result, Ok(Outcome::InProgress));
    assert_eq!(done, ["in the background: polled init, polled init; a, b"]);
    let executor = FakeExecutor { cannot_begin: true, ..FakeExecutor::default() };
    assert_eq!(carry_out(&executor, collected(&[POLLED_INIT])), Err(failure("a stream")));
    assert_eq!(executor.done(), ["drop polled init: a stream", "fail a: a stream", "fail b: a stream"]);
}

#[test]
fn what_ends_a_communicator_is_waited_for() {
    let (result, done) = executed(collected(&[POLLED_INIT, POLLED_DESTROY]));
    assert_eq!((result, &done[0]), (Ok(Outcome::Done), &"run: polled init, polled destroy".to_string()));
    let (result, done) = executed(collected(&[INIT, POLLED_INIT, POLLED_DESTROY]));
    assert_eq!((result, done.len()), (Ok(Outcome::Done), 2));
}

#[test]
fn jobs_that_are_waited_for_and_jobs_that_are_polled_for_do_not_go_together() {
    let (result, done) = executed(collected(&[INIT, POLLED_INIT]));
    let error = result.expect_err("an error");
    assert!(matches!(&error, Error::InvalidArgument(text) if text.contains("not allowed in the same group")));
    let dropped = ["drop init", "drop polled init", "fail a", "fail b"].map(|what| format!("{what}: {error}"));
    assert_eq!(done, dropped);
}

/// The last error is the one that the end returns, and nothing is carried out.
#[test]
fn an_error_in_a_group_drops_all_of_it_and_is_forgotten_with_it() {
    let mut collector = Collector::<FakeJob, &str>::EMPTY;
    collector.note_error(&failure("outside"));
    collector.start();
    collector.add_job(INIT);
    collector.note_error(&failure("one"));
    collector.start();
    collector.note_error(&failure("two"));
    assert!(collector.end().expect("a start").is_none());
    collector.add_call("a", call());
    let (result, done) = executed(collector.end().expect("a start").expect("the outermost group"));
    assert_eq!(result, Err(failure("two")));
    assert_eq!(done, ["drop init: two", "fail a: two"]);
    collector.start();
    let (result, _) = executed(collector.end().expect("a start").expect("the outermost group"));
    assert_eq!(result, Ok(Outcome::Done));
}

#[test]
fn a_simulated_group_runs_its_jobs_and_launches_nothing() {
    let executor = FakeExecutor::default();
    assert_eq!(simulate(&executor, collected(&[INIT])), Ok(Some(1.5)));
    assert_eq!(executor.done(), ["run: init", "simulate: a, b"]);
    let failed = Collected { error: Some(failure("one")), ..collected(&[INIT]) };
    assert_eq!(simulate(&executor, failed), Err(failure("one")));
    assert_eq!(executor.done(), ["drop init: one"]);
    let executor = FakeExecutor { jobs_fail: true, ..FakeExecutor::default() };
    assert_eq!(simulate(&executor, collected(&[INIT])), Err(failure("a job")));
    assert_eq!(executor.done(), ["run: init"]);
}

#[test]
fn groups_are_their_threads() {
    start();
    start();
    note_error(&failure("one"));
    let other = || {
        assert!(!is_open());
        assert!(matches!(end(), Err(Error::InvalidUsage(_))));
        assert!(matches!(simulate_end(), Err(Error::InvalidUsage(_))));
        start();
        assert_eq!(end(), Ok(Outcome::Done));
    };
    std::thread::scope(|scope| scope.spawn(other).join()).expect("the other thread");
    assert!(is_open());
    // An inner end of either kind carries nothing out.
    assert_eq!(simulate_end(), Ok(None));
    assert!(is_open());
    assert_eq!(end(), Err(failure("one")));
    assert!(!is_open());
    start();
    assert_eq!(simulate_end(), Ok(None));
    assert!(!is_open());
}
