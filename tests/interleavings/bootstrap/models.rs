//! The models.

use std::sync::{Arc, Weak};
use std::time::Instant;

use shuttle::thread;

use super::cancel::{Cancel, CancelListener};
use super::shared::Shared;
use crate::explore;

/// What the loop's thread changes.
#[derive(Default)]
struct State {
    answers: u32,
    cancel: Option<Cancel>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Answered,
    Cancelled,
}

fn look(state: &mut State) -> Option<End> {
    match &state.cancel {
        Some(cancel) if cancel.fired() => Some(End::Cancelled),
        _ => (state.answers > 0).then_some(End::Answered),
    }
}

/// Begins to be ended by a cancel, as the driver does.
fn watch(shared: &Arc<Shared<State>>, cancel: &Cancel) {
    let listener: Arc<dyn CancelListener> = shared.clone();
    let listener: Weak<dyn CancelListener> = Arc::downgrade(&listener);
    cancel.listen(listener);
    shared.lock().cancel = Some(cancel.clone());
}

fn wait(shared: &Arc<Shared<State>>, until: Option<Instant>) -> Option<End> {
    shared.wait(&mut shared.lock(), until, look)
}

fn answer(shared: &Arc<Shared<State>>) {
    shared.lock().answers += 1;
    shared.notify();
}

/// A cancel alone ends a wait, whenever it is fired: before, while and after it is watched and the wait begins.
#[test]
fn a_cancel_ends_every_wait() {
    explore(|| {
        let (shared, cancel) = (Arc::new(Shared::new(State::default())), Cancel::new());
        let firing = {
            let cancel = cancel.clone();
            thread::spawn(move || cancel.fire())
        };
        watch(&shared, &cancel);
        assert_eq!(wait(&shared, Some(Instant::now())), Some(End::Cancelled));
        firing.join().expect("no panic");
        assert_eq!(wait(&shared, None), Some(End::Cancelled), "it stays so");
    });
}

/// One cancel ends the waits of several.
#[test]
fn a_cancel_ends_the_waits_of_all() {
    explore(|| {
        let cancel = Cancel::new();
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let cancel = cancel.clone();
                thread::spawn(move || {
                    let shared = Arc::new(Shared::new(State::default()));
                    watch(&shared, &cancel);
                    wait(&shared, None)
                })
            })
            .collect();
        cancel.fire();
        for one in waiting {
            assert_eq!(one.join().expect("no panic"), Some(End::Cancelled));
        }
    });
}

/// What the loop's thread does and a cancel come together: the wait ends, and the next one, without the cancel, too.
#[test]
fn an_answer_and_a_cancel_meet() {
    explore(|| {
        let (shared, cancel) = (Arc::new(Shared::new(State::default())), Cancel::new());
        watch(&shared, &cancel);
        let looping = {
            let shared = shared.clone();
            thread::spawn(move || answer(&shared))
        };
        let firing = thread::spawn(move || cancel.fire());
        assert!(wait(&shared, None).is_some());
        shared.lock().cancel = None;
        assert_eq!(wait(&shared, None), Some(End::Answered));
        looping.join().expect("no panic");
        firing.join().expect("no panic");
    });
}
