//! Both tables, for every state.

use super::CallKind as Call;
use super::Effect::{
    LeaveKernels, Log, OweGoodbye, Report, SayGoodbye, Show, Stop, StopSharers, Tell, WakeGraphWaiters,
};
use super::*;

static ERROR: Error = Error::Aborted;

const PHASES: [CommPhase; 4] = [InProgress, Ready, Failed, Ended];
const STOPS: [Option<StoppedBy>; 3] = [None, Some(StoppedBy::Shrink), Some(StoppedBy::Revoke)];

/// Every state that there can be.
fn states() -> Vec<CommState> {
    let mut all = Vec::new();
    for phase in PHASES {
        for stopped in STOPS {
            for marks in 0..16 {
                let mark = |place: u32| marks >> place & 1 == 1;
                let (finalized, suspended, aborted, owes_goodbye) = (mark(0), mark(1), mark(2), mark(3));
                all.push(CommState { phase, stopped, finalized, suspended, aborted, owes_goodbye });
            }
        }
    }
    all
}

/// What an event makes of a phase, and what is to be done.
type Transition = (CommPhase, &'static [Effect]);

/// For every event the cells of [`PHASES`], in their order; of a communicator that is not stopped.
fn events() -> [(CommEvent<'static>, [Transition; 4]); 18] {
    const NOTHING: &[Effect] = &[];
    let stays = |effects: &'static [Effect]| PHASES.map(|phase| (phase, effects));
    let unchanged = [(Ready, NOTHING), (Failed, NOTHING), (Ended, NOTHING)];
    let [ready, failed, ended] = unchanged;
    let same = (InProgress, NOTHING);
    let found: &[Effect] = &[Log, Tell, Show, Report, OweGoodbye];
    [
        (CommEvent::Begun, [same, (InProgress, &[Show]), failed, ended]),
        (CommEvent::Completed, [(Ready, &[Show]), ready, failed, ended]),
        (CommEvent::WorkFailed(&ERROR), [(Failed, &[Tell, Show]), (Ready, &[Tell]), (Failed, &[Tell]), ended]),
        (
            CommEvent::PolledInitFailed(&ERROR),
            [(Failed, &[Log, Tell, Show]), (Ready, &[Tell]), (Failed, &[Tell]), ended],
        ),
        (CommEvent::Failed(&ERROR), [(Failed, &[Show]), (Failed, &[Show]), failed, ended]),
        (CommEvent::PolledCallFailed(&ERROR), [same, (Failed, &[Show]), failed, ended]),
        (CommEvent::KernelFailed(&ERROR), [same, (Failed, found), failed, ended]),
        (CommEvent::Lost(&ERROR), [same, (Failed, found), failed, ended]),
        (
            CommEvent::SharerAborted(&ERROR),
            [(Failed, &[Show, Stop]), (Failed, &[Show, Stop]), (Failed, &[Show, Stop]), ended],
        ),
        (CommEvent::GoodbyeOwed, stays(&[Show])),
        (CommEvent::GoodbyeTaken, stays(NOTHING)),
        (CommEvent::Finalized, stays(&[Show])),
        (CommEvent::Suspended, stays(&[Show])),
        (CommEvent::Resumed, stays(&[Show])),
        (CommEvent::Shrunk, stays(&[Show])),
        (CommEvent::Revoked, stays(&[Show, LeaveKernels])),
        (CommEvent::Aborted, stays(&[Show, Stop, WakeGraphWaiters, StopSharers])),
        (CommEvent::Ended, PHASES.map(|_| (Ended, &[Show][..]))),
    ]
}

/// What an event makes of the marks.
fn marked(before: CommState, event: CommEvent<'_>) -> CommState {
    match event {
        CommEvent::GoodbyeOwed => CommState { owes_goodbye: true, ..before },
        CommEvent::GoodbyeTaken => CommState { owes_goodbye: false, ..before },
        CommEvent::Finalized => CommState { finalized: true, ..before },
        CommEvent::Suspended => CommState { suspended: true, ..before },
        CommEvent::Resumed => CommState { suspended: false, ..before },
        CommEvent::Shrunk if before.stopped.is_none() => CommState { stopped: Some(StoppedBy::Shrink), ..before },
        CommEvent::Revoked => CommState { stopped: Some(StoppedBy::Revoke), ..before },
        CommEvent::Aborted => CommState { aborted: true, ..before },
        _ => before,
    }
}

#[test]
fn every_event_does_what_the_table_says_whatever_the_state() {
    for before in states() {
        for (event, cells) in events() {
            let place = PHASES.iter().position(|phase| *phase == before.phase).expect("it is one of them");
            let (phase, effects) = match event {
                CommEvent::PolledCallFailed(_) | CommEvent::KernelFailed(_) if before.stopped.is_some() => {
                    (before.phase, &[][..])
                }
                CommEvent::GoodbyeTaken if before.owes_goodbye => (before.phase, &[Show, SayGoodbye][..]),
                _ => cells[place],
            };
            let expected = CommState { phase, ..marked(before, event) };
            assert_eq!(before.after(event), (expected, effects), "{event:?} of {before:?}");
        }
    }
}

#[test]
fn nothing_happens_to_what_a_forked_child_has_inherited() {
    for seen in states().into_iter().map(CommState::inherited) {
        for (event, _) in events() {
            assert_eq!(seen.after(event), (seen, &[][..]), "{event:?} of {seen:?}");
        }
    }
}

#[test]
fn an_error_is_kept_from_the_failure_to_the_end() {
    let first = Error::Internal("the first".to_string());
    for state in states() {
        let failure = (state.phase == Failed).then(|| first.clone());
        let life = Lifecycle { state, failure };
        for (event, _) in events() {
            let (next, _) = life.after(event);
            let expected = match (state.phase, next.state.phase) {
                (Failed, Failed) => Some(&first),
                (_, Failed) => Some(&ERROR),
                _ => None,
            };
            assert_eq!(next.failure(), expected, "{event:?} of {state:?}");
        }
    }
}

#[test]
fn what_changes_is_shown_and_told_before_only_where_a_call_or_a_poll_tells_it() {
    for before in states() {
        for (event, _) in events() {
            let (after, effects) = before.after(event);
            let shown = effects.iter().position(|effect| *effect == Show);
            assert!(after == before || shown.is_some(), "{event:?} of {before:?}");
            assert!(effects.iter().filter(|effect| **effect == Show).count() <= 1);
            // Under the lock nothing is done that takes another one of a communicator.
            let under_lock = &effects[..shown.unwrap_or(effects.len())];
            assert!(under_lock.iter().all(|effect| matches!(effect, Log | Tell)), "{event:?} of {before:?}");
        }
    }
}

/// What a call needs: refusals by marks that come first, the phases in which it is permitted, refusals that come last.
type Row = (CallKind, fn(CommState) -> Option<Refusal>, &'static [CommPhase], fn(CommState) -> Option<Refusal>);

fn calls() -> [Row; 11] {
    const ALL: &[CommPhase] = &[InProgress, Ready, Failed, Ended, Inherited];
    let nothing = |_: CommState| None;
    let suspended = |state: CommState| state.suspended.then_some(Refusal::Suspended);
    [
        (Call::Use, nothing, &[Ready], nothing),
        (Call::Data("AllReduce"), |of| of.stopped.map(|by| Refusal::Stopped(by, "AllReduce")), &[Ready], nothing),
        (Call::Enqueue, nothing, &[Ready], suspended),
        (Call::Continue, nothing, &[Ready, InProgress], nothing),
        (Call::Launch, |of| of.stopped.map(|by| Refusal::Stopped(by, "the launch")), &[Ready, InProgress], suspended),
        (Call::Stop, nothing, &[Ready, Failed], nothing),
        (
            Call::Revoke,
            |of| of.finalized.then_some(Refusal::FinalizedAlready("ncclCommRevoke")),
            &[Ready, Failed],
            |of| (of.stopped == Some(StoppedBy::Revoke)).then_some(Refusal::RevokedAlready),
        ),
        (
            Call::Finalize,
            |of| (of.stopped == Some(StoppedBy::Revoke)).then_some(Refusal::FinalizedAfterRevoke),
            ALL,
            |of| of.finalized.then_some(Refusal::FinalizedAlready("ncclCommFinalize")),
        ),
        (Call::Suspend, nothing, ALL, |of| of.suspended.then_some(Refusal::SuspendedAlready)),
        (Call::Resume, nothing, ALL, |of| (!of.suspended).then_some(Refusal::NotSuspended)),
        (Call::Refuse, nothing, &[Ready, Failed], nothing),
    ]
}

#[test]
fn every_call_is_permitted_where_the_table_says_whatever_the_state() {
    let seen = states().into_iter().flat_map(|state| [state, state.inherited()]);
    for state in seen {
        for (call, first, phases, last) in calls() {
            let by_phase = match state.phase {
                phase if phases.contains(&phase) => None,
                InProgress => Some(Refusal::InProgress),
                Failed => Some(Refusal::Failed),
                Inherited => Some(Refusal::Inherited),
                Ready | Ended => Some(Refusal::Ended),
            };
            let expected = first(state).or(by_phase).or(last(state));
            assert_eq!(state.permits(call).err(), expected, "{call:?} of {state:?}");
        }
    }
}

#[test]
fn a_step_of_what_is_in_progress_is_permitted_meanwhile() {
    let ready = CommState { phase: Ready, ..CommState::CREATED };
    for (busy, permitted) in [(false, false), (true, true)] {
        for call in [CallKind::step(busy), CallKind::launch(busy)] {
            assert_eq!(
                (CommState::CREATED.permits(call).is_ok(), ready.permits(call)),
                (permitted, Ok(())),
                "{call:?}"
            );
        }
    }
}

#[test]
fn a_state_fits_in_a_byte() {
    let mut seen = std::collections::BTreeSet::new();
    for state in states() {
        assert_eq!(CommState::of_bits(state.bits()), state);
        assert!(seen.insert(state.bits()));
    }
}

#[test]
fn a_refusal_has_the_words_of_the_interface() {
    let text = |refusal: Refusal| refusal.error(None).to_string();
    assert_eq!(text(Refusal::Stopped(StoppedBy::Revoke, "AllReduce")), "AllReduce: communicator was revoked");
    assert_eq!(text(Refusal::Ended), "Error: corrupted comm object detected");
    assert_eq!(Refusal::Failed.error(Some(&ERROR)), ERROR);
    assert_eq!(text(Refusal::Failed), text(Refusal::Ended), "it has ended in the meantime");
    assert_eq!(
        text(Refusal::InProgress),
        "Attempt to use communicator before the previous operation returned ncclSuccess"
    );
}
