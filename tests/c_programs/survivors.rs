//! Ranks of a C program when one of them fails. SIGPIPE has its default action there, so that a write to a peer that is
//! gone would end a rank without a word; every survivor must be told what has happened instead.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::build_with_ours;
use crate::common::abi::{INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS};
use crate::common::c_program::Program;
use crate::common::launch::{Job, Outcome};
use crate::common::need;

/// What was not done.
const NOT: i32 = -1;

/// Runs of each way and number of ranks.
const RUNS: usize = 2;
const LONG_RUNS: usize = 20;

/// When a rank ends or aborts during a creation: at any moment of it.
const MOMENTS_US: u32 = 12_000;

/// What creations use of the driver, but for what `cudaSetDevice` uses, and how often.
const USED: [&str; 18] = [
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetId",
    "cuCtxPushCurrent",
    "cuDeviceCanAccessPeer",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxGetState",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuMemAlloc",
    "cuMemHostRegister",
    "cuMemcpyHtoDAsync",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuStreamCreate",
    "cuStreamSynchronize",
];
const USES: usize = 8;
/// Faults of a short run.
const FAULTS: usize = 12;

struct Client {
    program: Program,
}

/// What a rank has printed.
#[derive(Clone, Debug)]
struct Answer {
    created: i32,
    derived: i32,
    child: bool,
    text: String,
}

impl Answer {
    /// Fails unless the codes are these and the text has all parts.
    #[track_caller]
    fn is(&self, created: i32, derived: i32, parts: &[&str]) {
        assert_eq!((self.created, self.derived), (created, derived), "{self:?}");
        let missing = parts.iter().find(|part| !self.text.contains(**part));
        assert_eq!(missing, None, "{self:?}");
    }
}

impl Client {
    fn new() -> Option<Client> {
        Some(Client { program: build_with_ours("cc", "survivors.c")? })
    }

    /// What the ranks were told: none for one that has said nothing. No rank ended by a signal but one that was killed.
    #[track_caller]
    fn run(&self, way: &str, nranks: usize, more: &[&str]) -> Vec<Option<Answer>> {
        let args = [way.to_string(), nranks.to_string()];
        let job = Job::program(self.program.path(), 1).args(args).args(more);
        let outcome = job.env("SOFTCUDA_DEVICES", "8").env("NCCL_DEBUG", "").allow_any_warning().run();
        outcome.assert_ok();
        for rank in 0..nranks {
            let killed = rank == nranks - 1 && way.starts_with("killed");
            let end = if killed { "signal 9" } else { "exit 0" };
            let line = format!("rank {rank} ended by {end}");
            assert!(outcome.ranks[0].stdout.lines().any(|other| other == line), "{way}: not `{line}`\n{outcome}");
        }
        (0..nranks).map(|rank| answer(&outcome, rank)).collect()
    }

    /// Runs one way often, with few and with many ranks; `check` gets the answer of each rank that has one, and whether
    /// it is the culprit, and its number's name.
    fn runs(&self, way: &str, check: impl Fn(&Answer, bool, &str)) {
        let mut random = random();
        for nranks in [3, 8] {
            for _ in 0..if need::long() { LONG_RUNS } else { RUNS } {
                let moment = random.random_range(0..MOMENTS_US).to_string();
                let answers = self.run(way, nranks, &[&moment]);
                let culprit = format!("rank {}", nranks - 1);
                for (rank, answer) in answers.iter().enumerate() {
                    let is_culprit = rank == nranks - 1;
                    let silent = is_culprit && (way == "exit" || way.starts_with("killed"));
                    assert_eq!(answer.is_none(), silent, "{way}: rank {rank} of {nranks}");
                    answer.iter().for_each(|answer| check(answer, is_culprit, &culprit));
                }
            }
        }
    }
}

/// The same in every run, unless `OXCCL_SEED` says otherwise.
fn random() -> SmallRng {
    let seed = std::env::var("OXCCL_SEED").ok().and_then(|text| text.parse().ok());
    SmallRng::seed_from_u64(seed.unwrap_or(1))
}

fn answer(outcome: &Outcome, rank: usize) -> Option<Answer> {
    let begin = format!("rank {rank} create ");
    let line = outcome.ranks[0].stdout.lines().find_map(|line| line.strip_prefix(&begin))?;
    let (numbers, text) = line.split_once(": ")?;
    let words: Vec<&str> = numbers.split(' ').collect();
    let [created, "derive", derived, "child", child] = words[..] else { panic!("{line}") };
    let number = |word: &str| word.parse().expect("a code");
    Some(Answer { created: number(created), derived: number(derived), child: child == "yes", text: text.to_string() })
}

#[test]
fn one_device_for_all() {
    let Some(client) = Client::new() else { return };
    client.runs("duplicate", |answer, _, _| {
        answer.is(INVALID_USAGE, NOT, &["Duplicate GPU detected", "rank 0 and rank 1"])
    });
}

#[test]
fn a_wrong_configuration_in_a_split() {
    let Some(client) = Client::new() else { return };
    client.runs("config", |answer, is_culprit, culprit| match is_culprit {
        true => answer.is(SUCCESS, INVALID_ARGUMENT, &["minCTAs"]),
        false => answer.is(SUCCESS, REMOTE_ERROR, &[culprit, "minCTAs"]),
    });
}

#[test]
fn a_killed_rank_and_a_split() {
    let Some(client) = Client::new() else { return };
    client.runs("killed-split", |answer, _, culprit| answer.is(SUCCESS, REMOTE_ERROR, &[culprit, "is gone"]));
}

#[test]
fn a_killed_rank_and_a_shrink() {
    let Some(client) = Client::new() else { return };
    client.runs("killed-shrink", |answer, _, _| {
        answer.is(SUCCESS, SUCCESS, &[]);
        assert!(answer.child);
    });
}

/// Whether the process of the root is named as gone, to which a rank came late.
fn late(answer: &Answer) -> bool {
    answer.created == REMOTE_ERROR && answer.text.contains("the process that made the ncclUniqueId has")
}

#[test]
fn an_exit_during_the_creation() {
    let Some(client) = Client::new() else { return };
    client.runs("exit", |answer, _, culprit| {
        // On a busy machine it may have been complete by then.
        if answer.created != SUCCESS && !late(answer) {
            answer.is(REMOTE_ERROR, NOT, &[culprit, "is gone"]);
        }
    });
}

#[test]
fn an_abort_during_the_creation() {
    let Some(client) = Client::new() else { return };
    client.runs("abort", |answer, is_culprit, culprit| {
        if !is_culprit && answer.created != SUCCESS && !late(answer) {
            answer.is(REMOTE_ERROR, NOT, &[culprit]);
        }
    });
}

/// The driver of one rank fails at any call of a creation: nobody is left without an error, whatever it is.
#[test]
fn a_driver_that_fails() {
    let Some(client) = Client::new() else { return };
    let all: Vec<(&str, usize)> = USED.iter().flat_map(|name| (1..=USES).map(move |use_| (*name, use_))).collect();
    let mut random = random();
    let sample = if need::long() { all } else { all.sample(&mut random, FAULTS).copied().collect() };
    let mut failed = 0;
    for (name, number) in sample {
        let nranks = random.random_range(2..=4);
        let answers = client.run("fault", nranks, &[&format!("{name}:{number}")]);
        let answers: Vec<Answer> =
            answers.into_iter().map(|answer| answer.expect("every rank has an answer")).collect();
        let (culprit, others) = answers.split_last().expect("ranks");
        if culprit.created == SUCCESS {
            // The call is not used so often, or something else does as well.
            others.iter().for_each(|other| other.is(SUCCESS, NOT, &[]));
            continue;
        }
        failed += 1;
        assert!(!culprit.text.is_empty(), "{name}:{number}: {culprit:?}");
        let name = format!("rank {}", nranks - 1);
        for other in others.iter().filter(|other| !late(other)) {
            other.is(REMOTE_ERROR, NOT, &[&name]);
        }
    }
    assert!(failed > 0, "no fault made a creation fail");
}
