//! Runs of ranks on several hosts (network namespaces), all by a seed: random calls with checked results, and one
//! random fault at a random moment. A process is killed, stopped, or aborts; a host's cable is pulled; a gateway that
//! all connections go through holds up, stalls, cuts, or changes what they carry.
//!
//! What must hold: each rank that is left gets right results or an error, and never a wrong result without one; where
//! the fault can be known, the error comes by itself, and an abort ends all else, soon; nothing is left behind. Data
//! that are not encrypted have no protection from who changes them, so that of these only handshakes are changed.
//!
//! `OXCCL_SEED=N` does one run, with all that its ranks print.

#[path = "../common/mod.rs"]
mod common;

mod data;
mod gateway;
mod plan;
mod rank;
mod soak;

use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use common::hosts::Hosts;
use common::launch::{self, Job, Outcome, Running};
use common::need;
use plan::{Expected, Fault, Harm, MOST_HOSTS, Plan};

/// Which run a process belongs to.
const SEED: &str = "OXCCL_TEST_SEED";
/// Runs in the short form, and in the long one.
const RUNS: [u64; 2] = [20, 1000];
/// Runs at a time: most of them wait most of the time.
const WORKERS: usize = 2;
/// How long a run may take.
const DEADLINE: Duration = Duration::from_secs(150);
/// How often the test looks what its ranks do.
const POLL: Duration = Duration::from_millis(2);

/// What is to be done from outside, while ranks run.
struct Course<'a> {
    hosts: &'a Hosts,
    plan: &'a Plan,
    /// When the rank was seen to be stopped, or the cable was pulled.
    began: Option<Instant>,
    /// It goes on, or the cable is back.
    over: bool,
}

impl Course<'_> {
    fn step(&mut self, running: &Running) {
        match (self.plan.fault, self.began) {
            (Fault::Stop { rank, .. }, None) if is_stopped(running.pid(rank)) => self.began = Some(Instant::now()),
            (Fault::Unplug { host, .. }, None) if running.dir().join("unplug").exists() => {
                self.hosts.plug(host, false);
                self.began = Some(Instant::now());
            }
            (Fault::Stop { pause: Some(pause), .. } | Fault::Unplug { pause: Some(pause), .. }, Some(began))
                if !self.over && began.elapsed() > pause =>
            {
                self.undo(running);
            }
            _ => {}
        }
    }

    /// The rank goes on, the cable is back.
    fn undo(&mut self, running: &Running) {
        self.over = true;
        match self.plan.fault {
            Fault::Stop { rank, .. } => running.signal(rank, Signal::CONT),
            Fault::Unplug { host, .. } => self.hosts.plug(host, true),
            _ => {}
        }
    }

    /// Waits for all ranks that end by themselves, and then for the others.
    fn wait(mut self, mut running: Running) -> Outcome {
        let until = Instant::now() + DEADLINE;
        let ranks = 0..self.plan.places.len();
        let held = |rank: usize| matches!(self.plan.fault, Fault::Stop { rank: r, pause: None, .. } if r == rank);
        while !ranks.clone().all(|rank| running.ended(rank) || (held(rank) && self.began.is_some()))
            && Instant::now() < until
        {
            self.step(&running);
            thread::sleep(POLL);
        }
        if self.began.is_some() && !self.over {
            self.undo(&running);
        }
        while !ranks.clone().all(|rank| running.ended(rank)) && Instant::now() < until {
            thread::sleep(POLL);
        }
        fs::write(running.dir().join("over"), b"").expect("the job's folder can be written");
        running.wait()
    }
}

/// Whether a process is stopped, as the kernel tells.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// What a rank has said of its end.
fn ends(outcome: &Outcome, rank: usize) -> Option<&str> {
    outcome.ranks[rank].stdout.lines().rev().find_map(|line| line.strip_prefix("END "))
}

/// Fails unless all ranks have ended as they must; one word on how they did.
fn judge(plan: &Plan, outcome: &Outcome) -> String {
    let harmed = outcome.ranks.last().is_some_and(|gateway| gateway.stdout.contains("HARM"));
    let unharmed = matches!(plan.fault, Fault::Gateway { harm, .. } if harm != Harm::Delay && !harmed);
    let expected = match plan.expected() {
        Expected::EndsByItself if unharmed => Expected::Success,
        expected => expected,
    };
    let mut words = Vec::new();
    for rank in 0..plan.places.len() {
        let killed = matches!(plan.fault, Fault::Kill { rank: r, .. } if r == rank);
        if killed && outcome.ranks[rank].signal() == Some(9) {
            words.push("killed");
            continue;
        }
        assert!(outcome.ranks[rank].status.success(), "rank {rank} failed: {plan}\n{outcome}");
        let end = ends(outcome, rank).unwrap_or_else(|| panic!("rank {rank} says nothing: {plan}\n{outcome}"));
        let word = ["finished", "Error", "Patience", "Own"].into_iter().find(|word| end.starts_with(word));
        let word = word.unwrap_or_else(|| panic!("{end}"));
        let allowed = match expected {
            Expected::Success => word == "finished",
            Expected::EndsByItself => word != "Patience",
            Expected::Ends => true,
        };
        assert!(allowed, "rank {rank} ends with {word}, {expected:?} is expected: {plan}\n{outcome}");
        words.push(word);
    }
    let mut counts: Vec<String> = Vec::new();
    for word in ["finished", "Error", "Patience", "Own", "killed"] {
        let count = words.iter().filter(|said| **said == word).count();
        counts.extend((count > 0).then(|| format!("{count} {}", word.to_lowercase())));
    }
    counts.join(", ") + if unharmed { " (no harm was done)" } else { "" }
}

/// One run; how it ended.
fn run(hosts: &Hosts, seed: u64) -> String {
    let plan = Plan::new(seed);
    let gateway = plan.has_gateway();
    let nranks = plan.places.len();
    let job = Job::this_test("by_seed", nranks + usize::from(gateway)).env(SEED, seed.to_string()).deadline(DEADLINE);
    let job = job.env("SOFTCUDA_DEVICES", "4").with(&plan.settings);
    let job = if plan.fault == Fault::None { job.allow_warning("NCCL_ALGO") } else { job.allow_any_warning() };
    let job = if gateway { gateway::publish(&plan, job) } else { job };
    let places: Vec<usize> = plan.places.iter().copied().chain(gateway.then_some(MOST_HOSTS)).collect();
    let running = hosts.place(job, &places, true).start();
    let start = Instant::now();
    let outcome = Course { hosts, plan: &plan, began: None, over: false }.wait(running);
    let seconds = start.elapsed().as_secs_f64();
    if env::var_os("OXCCL_SEED").is_some() {
        println!("{plan}\n{:?}\n{outcome}", plan.rounds);
    }
    hosts.assert_empty();
    let ended = judge(&plan, &outcome);
    format!("{plan}: {ended}, {seconds:.1} s")
}

/// The seeds of this test's runs.
fn seeds() -> std::ops::Range<u64> {
    match env::var("OXCCL_SEED").ok().and_then(|text| text.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 1..RUNS[usize::from(need::long())] + 1,
    }
}

/// Does runs until none is left; the seeds of those that failed, and why.
fn work(next: &AtomicU64, last: u64, failures: &Mutex<Vec<String>>) {
    let mut hosts = None;
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= last {
            return;
        }
        let Some(ready) = hosts.take().or_else(gateway::hosts) else { return };
        match catch_unwind(AssertUnwindSafe(|| run(&ready, seed))) {
            Ok(line) => {
                println!("{line}");
                hosts = Some(ready);
            }
            Err(why) => {
                let text = why.downcast_ref::<String>().cloned().unwrap_or_default();
                println!("seed {seed} FAILED");
                failures.lock().expect("no panic").push(format!("seed {seed}: {text}"));
            }
        }
    }
}

#[test]
fn by_seed() {
    if let Some(me) = launch::child() {
        let seed = env::var(SEED).expect("a seed").parse().expect("a number");
        let plan = Plan::new(seed);
        return match plan.fault {
            Fault::Gateway { harm, place } if me.rank == plan.places.len() => gateway::live(&me, &plan, harm, place),
            _ => rank::live(&me, plan),
        };
    }
    let seeds = seeds();
    let (next, failures) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..WORKERS.min((seeds.end - seeds.start) as usize) {
            let name = thread::current().name().unwrap_or_default().to_string();
            let work = || work(&next, seeds.end, &failures);
            thread::Builder::new().name(name).spawn_scoped(scope, work).expect("a thread");
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{} runs failed:\n{}", failures.len(), failures.join("\n"));
}
