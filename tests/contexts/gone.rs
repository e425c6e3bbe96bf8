//! Communicators whose context is gone, or whose device: it was reset, destroyed, lost, or the driver has shut down.
//! Every call returns, with an error that says so; the process does not crash, and where there is a device, can make
//! another one.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use crate::common::abi::{INVALID_ARGUMENT, UNHANDLED_CUDA_ERROR};
use crate::common::c_program::Program;
use crate::common::launch::{Job, Outcome};
use crate::common::need;
use crate::seed;

/// By letters, as `gone.c` has them; those that are no error where all is gone come first: abort, register, revoke.
const CALLS: &str = "AEVDFGRPSKUZMCOI";
const NO_ERROR: usize = 3;
/// Asked for nothing but the state.
const ASK: char = 'G';
/// Calls of a short run, of all that there are.
const SAMPLE: usize = 8;

/// The numbers of a line that begins with a word.
fn numbers(outcome: &Outcome, first: &str) -> Vec<i32> {
    let stdout = &outcome.ranks[0].stdout;
    let line = stdout.lines().find(|line| line.starts_with(first)).unwrap_or_else(|| panic!("no `{first}`\n{outcome}"));
    let line = line.split(" text ").next().unwrap_or_default();
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn check(outcome: &Outcome, call: char, words: &str) {
    outcome.assert_ok();
    let [code, asked, state] = numbers(outcome, "call ")[..] else { panic!("{outcome}") };
    let ends = matches!(call, 'A' | 'D');
    let silent = call == ASK || CALLS[..NO_ERROR].contains(call);
    assert!(code == UNHANDLED_CUDA_ERROR || silent && code == 0, "{call}\n{outcome}");
    assert_eq!(
        (asked, state),
        if ends { (INVALID_ARGUMENT, 0) } else { (0, UNHANDLED_CUDA_ERROR) },
        "{call}\n{outcome}"
    );
    assert!(ends || outcome.ranks[0].stdout.contains(words), "{call}\n{outcome}");
    // It is freed by the first of them, and no handle any more.
    let expected = if ends { [INVALID_ARGUMENT, INVALID_ARGUMENT] } else { [UNHANDLED_CUDA_ERROR, INVALID_ARGUMENT] };
    assert_eq!(numbers(outcome, "destroy "), expected, "{call}\n{outcome}");
    assert_eq!(numbers(outcome, "rank 1 "), [1, 0], "{call}\n{outcome}");
}

fn run(program: &Program, way: &str, call: char, blocking: u32, variables: &[(&str, &str)]) -> Outcome {
    let args = [way.to_string(), call.to_string(), blocking.to_string()];
    Job::program(program.path(), 1).args(args).with(variables).allow_any_warning().run()
}

/// All calls, or a sample.
fn calls() -> Vec<(char, u32)> {
    let all: Vec<_> = CALLS.chars().flat_map(|call| [(call, 0), (call, 1)]).collect();
    if need::long() {
        return all;
    }
    let mut random = SmallRng::seed_from_u64(seed());
    all.sample(&mut random, SAMPLE).copied().collect()
}

fn sweep(way: &str, words: &str, variables: &[(&str, &str)], again: bool) {
    let Some(program) = Program::build("tests/contexts/gone.c", &[]) else { return };
    for (call, blocking) in calls() {
        let outcome = run(&program, way, call, blocking, variables);
        check(&outcome, call, words);
        if again {
            assert_eq!(numbers(&outcome, "again "), [0, 0], "{call}\n{outcome}");
        }
    }
}

#[test]
fn after_a_reset_of_the_device() {
    sweep("r", "is gone: it was reset (cudaDeviceReset) or destroyed", &[], true);
}

#[test]
fn after_the_end_of_a_context() {
    sweep("d", "is gone: it was reset (cudaDeviceReset) or destroyed", &[], true);
}

/// What softcuda needs to be asked to lose a device.
const LOSE: (&str, &str) = ("SOFTCUDA_FAULT", "lose@call");

#[test]
fn after_the_loss_of_a_device() {
    sweep("l", "unspecified launch failure", &[LOSE], false);
}

#[test]
fn after_the_loss_of_a_device_in_a_collective() {
    sweep("k", "unspecified launch failure", &[LOSE], false);
}

/// In an exit handler the driver may be gone already; softcuda works until the end unless it is told.
#[test]
fn after_the_end_of_the_driver() {
    sweep("u", "the CUDA driver is shutting down", &[("SOFTCUDA_UNLOAD", "1")], false);
}
