//! The models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shuttle::thread;

use super::lifecycle::CallKind;
use super::{Comm, arena, background};
use crate::{error, explore};

/// Three threads give, take and look up handles, also those of others and those that are gone.
#[test]
fn a_handle_is_taken_back_once() {
    explore(|| {
        // Fewer handles than communicators: numbers are used again.
        let cells = Arc::new(arena::Cells::new(4).expect("address space"));
        let first = cells.insert(Comm::new(0)).expect("a handle");
        let taken = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (1..=3)
            .map(|number| {
                let (cells, taken) = (cells.clone(), taken.clone());
                thread::spawn(move || {
                    let own = cells.insert(Comm::new(number)).expect("a handle");
                    assert_ne!(own, first, "a handle that may be in use");
                    assert_eq!(cells.get(own).expect("it is alive").number, number);
                    // All of them end the first one: one succeeds.
                    taken.fetch_add(
                        usize::from(cells.remove(first).is_some_and(|comm| comm.number == 0)),
                        Ordering::Relaxed,
                    );
                    assert!(cells.get(first).is_none_or(|comm| comm.number > 3), "it was taken back");
                    let mut alive = 0;
                    cells.each(|comm| alive += usize::from(comm.number == number));
                    assert_eq!(alive, 1, "its own is seen once");
                    assert!(cells.all().len() <= 4);
                    assert_eq!(cells.remove(own).expect("it is alive").number, number);
                    assert!(cells.get(own + 1).is_none() && cells.get(own + 64 * 4).is_none(), "garbage");
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(taken.load(Ordering::Relaxed), 1, "one thread has ended it");
        assert!(cells.all().is_empty());
    });
}

/// Handles that are used again: who holds a stale one finds nothing, or what has the number now, and never what is
/// gone.
#[test]
fn numbers_are_used_again() {
    explore(|| {
        let cells = Arc::new(arena::Cells::new(2).expect("address space"));
        let threads: Vec<_> = (0..2)
            .map(|number| {
                let cells = cells.clone();
                thread::spawn(move || {
                    for round in 0..3 {
                        let comm = Comm::new(10 * number + round);
                        let handle = cells.insert(comm.clone()).expect("there are two handles for two");
                        assert!(cells.get(handle).is_some_and(|found| Arc::ptr_eq(&found, &comm)));
                        assert!(cells.remove(handle).is_some_and(|found| Arc::ptr_eq(&found, &comm)));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(cells.insert(Comm::new(0)).and(cells.insert(Comm::new(1))).is_ok());
        assert!(cells.insert(Comm::new(2)).is_err(), "all are in use");
    });
}

/// How the work in the background comes out.
#[derive(Clone, Copy)]
enum Work {
    Succeeds,
    Fails,
    Panics,
}

/// An abort comes at any moment of work in the background: it returns when the work touches the communicators no more.
fn abort_meets(work: Work, n: usize) {
    explore(move || {
        let comms: Vec<Arc<Comm>> = (0..n).map(Comm::new).collect();
        let ours = comms.clone();
        let begun = background::start(comms.clone(), move || {
            ours.iter().for_each(|comm| comm.touch());
            thread::yield_now();
            match work {
                Work::Succeeds => ours.iter().for_each(|comm| comm.succeed()),
                Work::Fails => return Err(error::Error::Aborted),
                Work::Panics => std::panic::resume_unwind(Box::new("a panic of the model")),
            }
            Ok(())
        });
        assert!(begun.is_ok());
        let poller = {
            let comm = comms[0].clone();
            thread::spawn(move || {
                for _ in 0..3 {
                    assert!(!comm.was_freed() || comm.has_ended());
                    thread::yield_now();
                }
            })
        };
        let enders: Vec<_> = comms
            .iter()
            .map(|comm| {
                let comm = comm.clone();
                thread::spawn(move || {
                    comm.end();
                    let far = Instant::now() + Duration::from_secs(3600);
                    assert!(comm.leave_background(far), "the thread has come to its end");
                    comm.free();
                })
            })
            .collect();
        enders.into_iter().for_each(|thread| thread.join().expect("no panic"));
        poller.join().expect("no panic");
        assert!(comms.iter().all(|comm| comm.has_ended()), "what the work came to is of no account");
    });
}

#[test]
fn an_abort_meets_work_that_succeeds() {
    abort_meets(Work::Succeeds, 1);
    abort_meets(Work::Succeeds, 2);
}

#[test]
fn an_abort_meets_work_that_fails() {
    abort_meets(Work::Fails, 2);
}

#[test]
fn an_abort_meets_work_that_panics() {
    abort_meets(Work::Panics, 1);
}

/// Work on work: a polled communicator is created and, as soon as it is ready, finalized, then ended. Each thread is
/// the last one that there is to wait for.
#[test]
fn one_work_after_another() {
    explore(|| {
        let comm = Comm::new(0);
        for _ in 0..2 {
            let theirs = comm.clone();
            let begun = background::start(vec![comm.clone()], move || {
                theirs.touch();
                theirs.succeed();
                Ok(())
            });
            assert!(begun.is_ok());
            while comm.is_busy() {
                thread::yield_now();
            }
        }
        comm.end();
        assert!(comm.leave_background(Instant::now() + Duration::from_secs(3600)));
        comm.free();
        assert!(comm.leave_background(Instant::now()), "there is nothing to wait for any more");
    });
}

/// One of two revokes is carried out, and a goodbye is said once, whoever comes first.
#[test]
fn what_happens_once_happens_once() {
    explore(|| {
        let comm = Comm::new(0);
        comm.succeed();
        comm.owe_goodbye();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let comm = comm.clone();
                thread::spawn(move || (usize::from(comm.revoke()), comm.take_goodbye()))
            })
            .collect();
        let done = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        let sum = done.fold((0, 0), |sum, done| (sum.0 + done.0, sum.1 + done.1));
        assert_eq!(sum, (1, 1), "revokes and goodbyes");
        assert!(comm.permits(CallKind::Data("AllReduce")).is_err());
    });
}

/// Who asks while work fails and somebody ends the communicator gets an answer that fits a moment of its life, and the
/// failure is told before it is seen.
#[test]
fn an_answer_fits_a_moment() {
    explore(|| {
        let comm = Comm::new(0);
        let (working, ending) = (comm.clone(), comm.clone());
        let worker = thread::spawn(move || working.fail_work());
        let ender = thread::spawn(move || ending.end());
        for _ in 0..3 {
            let error = comm.permits(CallKind::Use).expect_err("it is never ready");
            let known = matches!(&error, error::Error::Aborted | error::Error::InvalidArgument(_));
            assert!(known, "{error}");
            thread::yield_now();
        }
        assert!(!worker.join().expect("no panic"), "seen before it was told");
        ender.join().expect("no panic");
        assert!(comm.has_ended() && comm.permits(CallKind::Stop).is_err());
    });
}
