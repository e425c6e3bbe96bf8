//! Right values or a named error on every stream, of whatever context and thread.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use crate::common::c_program::Program;
use crate::common::launch::{Job, STRICT};
use crate::common::need;
use crate::seed;

/// The primary context, one of `cuCtxCreate`, a green one.
const CONTEXTS: [&str; 3] = ["p", "c", "g"];
/// With the legacy default stream, and as `nvcc --default-stream per-thread` has it.
const BUILDS: [&[&str]; 2] = [&[], &["PER_THREAD"]];
/// What the library says to a stream of another context, and of one that a context does not have.
const REFUSALS: [&str; 2] = ["belongs to CUDA context", "cuStreamIsCapturing"];

fn table(args: &[&str], build: &[&str], variables: &[(&str, &str)]) {
    let Some(program) = Program::build("tests/contexts/table.c", build) else { return };
    let job = Job::program(program.path(), 1).args(args).with(variables);
    let outcome = REFUSALS.iter().fold(job, |job, text| job.allow_warning(text)).run();
    outcome.assert_ok();
    let said = &outcome.ranks[0].stdout;
    assert!(said.contains(" steps, 0 failed") && !said.contains("\n0 steps"), "{outcome}");
}

/// Every context, with one of the builds unless all are wanted.
#[test]
fn every_stream_in_every_context() {
    let mut random = SmallRng::seed_from_u64(seed());
    for context in CONTEXTS {
        let one = BUILDS.choose(&mut random).expect("there are some");
        BUILDS.iter().filter(|build| need::long() || *build == one).for_each(|build| table(&[context], build, &[]));
    }
}

/// The same on the strictest device; one of them, unless all are wanted.
#[test]
fn every_stream_on_the_strictest_device() {
    let all: Vec<_> = CONTEXTS.into_iter().flat_map(|context| BUILDS.map(|build| (context, build))).collect();
    let one = *all.choose(&mut SmallRng::seed_from_u64(seed())).expect("there are some");
    let wanted = all.into_iter().filter(|case| need::long() || *case == one);
    wanted.for_each(|(context, build)| table(&[context], build, &STRICT));
}

/// Two ranks in contexts of one device, which do not reach each other's memory. Many streams share the device: with few
/// hardware queues one waits behind another's.
#[test]
fn two_contexts_of_one_device() {
    let variables = [("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("SOFTCUDA_CONNECTIONS", "32")];
    let streams = if need::long() { "012o" } else { "2" };
    table(&["c", streams, "1"], &[], &variables);
}

fn own_thread(case: &str, words: &[&str]) {
    let Some(program) = Program::build("tests/contexts/own_thread.c", &[]) else { return };
    for variables in [&[][..], &STRICT] {
        let job = Job::program(program.path(), 1).args([case]).with(variables);
        let outcome = words.iter().fold(job, |job, text| job.allow_warning(text)).run();
        outcome.assert_ok();
        assert!(outcome.ranks[0].stdout.contains(&format!("{case} done, rank 1 0")), "{outcome}");
    }
}

#[test]
fn another_thread_polls_in_vain() {
    own_thread("p", &[]);
}

/// The peer hears of it, if it gets so far.
#[test]
fn the_thread_that_called_ends() {
    let peer = ["could not be linked with", "after an error of its own"];
    own_thread("e", &[&["the thread that made a call on its default stream has ended"], &peer[..]].concat());
}

#[test]
fn a_capture_ends_before_the_call_is_in_it() {
    own_thread("c", &["capture of stream 0x2"]);
}

#[test]
fn another_thread_aborts() {
    // The peer may be about to map what is gone.
    own_thread("a", &["corrupted comm object", "could not be linked with"]);
}

#[test]
fn a_group_that_splits() {
    own_thread("g", &[]);
}

#[test]
fn the_process_forks() {
    own_thread("f", &[]);
}
