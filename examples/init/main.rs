//! How long creating a communicator takes where it has many ranks, and what that costs each of them.
//!
//! ```text
//! cargo run --release --example init                   # 8 to 256 ranks
//! cargo run --release --example init -- 64             # no more than 64
//! cargo run --release --example init -- 64 --only      # 64
//! cargo run --release --example init -- 64 --ids 4     # by ncclCommInitRankScalable, with 4 ids
//! cargo run --release --example init -- 64 --late 5    # the last rank comes 5 seconds late
//! ```
//!
//! Ranks are processes of this host on softcuda, with a device each. They begin together: all wait for one lock. Times
//! are those of the slowest rank. The first creation of a process loads kernels, the second does not. Settings, such as
//! `OXCCL_BOOTSTRAP_ALGO`, are taken from the environment.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../perf/flags.rs"]
#[allow(dead_code)]
mod flags;

mod rank;

use std::collections::BTreeMap;
use std::fs::File;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::launch::{self, Job};
use rank::{LATE, LOCK, Turn};
use rustix::fs::{FlockOperation, flock};

/// Ranks of the communicators.
const RANKS: [usize; 6] = [8, 16, 32, 64, 128, 256];
/// Longest time for all processes to start, and to end.
const DEADLINE: Duration = Duration::from_secs(300);

/// What is wanted.
struct Wanted {
    least: usize,
    most: usize,
    ids: usize,
    late: f64,
}

fn main() -> ExitCode {
    if let Some(code) = flags::main_if_peer() {
        return ExitCode::from(code as u8);
    }
    if let Some(me) = launch::child() {
        rank::run(&me);
        return ExitCode::SUCCESS;
    }
    let Some(wanted) = wanted() else {
        eprintln!("usage: init [most ranks] [--only] [--ids N] [--late SECONDS]");
        return ExitCode::from(2);
    };
    let exchange = flags::exchange_ns().map_or("not measured".to_string(), |ns| format!("{ns:.0} ns"));
    println!("flag exchange between two cores {exchange}; ids {}, last rank late by {} s", wanted.ids, wanted.late);
    println!("{:>4} {:>7} | {:^45} | {:^45}", "", "start", "first creation", "second creation");
    let columns = format!("{:>9} {:>11} {:>11} {:>11}", "wall s", "CPU s sum", "CPU s most", "RSS MiB");
    println!("{:>4} {:>7} | {columns} | {columns} {:>5} {:>8}", "n", "s", "fds", "threads");
    for n in RANKS.into_iter().filter(|n| (wanted.least..=wanted.most).contains(n)) {
        row(n, &wanted);
    }
    ExitCode::SUCCESS
}

fn wanted() -> Option<Wanted> {
    let mut wanted = Wanted { least: 0, most: RANKS[RANKS.len() - 1], ids: 1, late: 0.0 };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--only" => wanted.least = wanted.most,
            "--ids" => wanted.ids = args.next()?.parse().ok()?,
            "--late" => wanted.late = args.next()?.parse().ok()?,
            most => wanted.most = most.parse().ok()?,
        }
    }
    Some(wanted)
}

/// Runs the ranks of two communicators, one after the other; prints what they took.
fn row(n: usize, wanted: &Wanted) {
    let begun = Instant::now();
    let turns: Vec<(Turn, File)> = Turn::ALL.into_iter().map(|turn| (turn, locked(turn))).collect();
    let job = Job::program(std::env::current_exe().expect("the path of this program"), n)
        .args([wanted.ids.min(n).to_string()])
        .env("SOFTCUDA_DEVICES", n.to_string())
        .env(LOCK, std::process::id().to_string())
        .env(LATE, wanted.late.to_string())
        .deadline(DEADLINE);
    let running = job.start();
    let mut started = 0.0;
    for (turn, lock) in turns {
        let ready = |rank: usize| running.dir().join(turn.ready(rank)).exists();
        let until = Instant::now() + DEADLINE;
        while !(0..n).all(ready) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        if turn == Turn::First {
            started = begun.elapsed().as_secs_f64();
        }
        // All are at the lock a moment after they have said that they are ready.
        std::thread::sleep(Duration::from_millis(200));
        drop(lock);
        let _ = std::fs::remove_file(turn.path());
    }
    let outcome = running.wait();
    outcome.assert_ok();
    let words = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_string(), value.parse::<f64>().ok()?))
    };
    let ranks: Vec<BTreeMap<String, f64>> =
        outcome.ranks.iter().map(|rank| rank.stdout.lines().filter_map(words).collect()).collect();
    let values = |name: &str| ranks.iter().filter_map(|rank| rank.get(name)).copied().collect::<Vec<f64>>();
    let most = |name: &str| values(name).into_iter().fold(0.0, f64::max);
    let half = |turn: Turn| {
        let (wall, cpu, rss) = (format!("{turn:?}.wall"), format!("{turn:?}.cpu"), format!("{turn:?}.rss"));
        let sum: f64 = values(&cpu).iter().sum();
        format!("{:>9.3} {sum:>11.3} {:>11.4} {:>11.1}", most(&wall), most(&cpu), most(&rss) / 1024.0)
    };
    let (first, second) = (half(Turn::First), half(Turn::Second));
    println!("{n:>4} {started:>7.1} | {first} | {second} {:>5} {:>8}", most("fds"), most("threads"));
}

/// A lock that the ranks wait for at this turn.
fn locked(turn: Turn) -> File {
    let file = File::create(turn.path()).expect("a file for the lock");
    flock(&file, FlockOperation::LockExclusive).expect("a lock");
    file
}
