//! What a communicator costs: descriptors, threads, memory of host and device of each rank, before and after its first
//! small AllReduce; and how long creation takes.
//!
//! ```text
//! cargo run --release --example costs                  # 2, 4 and 8 ranks; creation of 2 to 64
//! cargo run --release --example costs -- 16            # no more than 16
//! ```
//!
//! Ranks are processes of this host on softcuda, with a device each.

#[path = "../../tests/common/mod.rs"]
mod common;

mod rank;

use std::collections::BTreeMap;
use std::process::ExitCode;

use common::launch::{self, Job, Outcome};

/// Ranks of the communicators whose cost is measured.
const RANKS: [usize; 3] = [2, 4, 8];
/// Ranks of the communicators whose creation is timed.
const CREATED: [usize; 6] = [2, 4, 8, 16, 32, 64];
/// How ranks reach each other, and the variable that makes them do so.
const TRANSPORTS: [(&str, &str); 2] = [("P2P", "0"), ("SHM", "1")];

fn main() -> ExitCode {
    if let Some(me) = launch::child() {
        rank::run(&me);
        return ExitCode::SUCCESS;
    }
    let most = match std::env::args().nth(1).map(|text| text.parse::<usize>()) {
        None => CREATED[CREATED.len() - 1],
        Some(Ok(most)) => most,
        Some(Err(_)) => {
            eprintln!("usage: costs [most ranks]");
            return ExitCode::from(2);
        }
    };
    costs(most);
    creations(most);
    ExitCode::SUCCESS
}

/// Runs the ranks of a communicator; what each of them has printed, by name.
fn measure(what: &str, n: usize, p2p_disable: &str) -> Vec<BTreeMap<String, f64>> {
    let program = std::env::current_exe().expect("the path of this program");
    let job = Job::program(program, n)
        .args([what])
        .env("SOFTCUDA_DEVICES", n.to_string())
        .env("NCCL_P2P_DISABLE", p2p_disable);
    let outcome = job.run();
    outcome.assert_ok();
    parse(&outcome)
}

fn parse(outcome: &Outcome) -> Vec<BTreeMap<String, f64>> {
    let words = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_string(), value.parse().ok()?))
    };
    outcome.ranks.iter().map(|rank| rank.stdout.lines().filter_map(words).collect()).collect()
}

/// The most that a rank has of something.
fn most(ranks: &[BTreeMap<String, f64>], name: &str) -> f64 {
    ranks.iter().filter_map(|rank| rank.get(name)).copied().fold(f64::NEG_INFINITY, f64::max)
}

fn costs(limit: usize) {
    println!("per communicator and rank, the most of all ranks; {} at once", rank::AT_ONCE);
    let columns = rank::COLUMNS.map(|(_, title)| title);
    println!("{:<5} {:>2}  {:<16} {}", "", "n", "", columns.map(|title| format!("{title:>12}")).join(" "));
    for (transport, disable) in TRANSPORTS {
        for n in RANKS.into_iter().filter(|n| *n <= limit) {
            let ranks = measure("costs", n, disable);
            for state in rank::STATES {
                let row = rank::COLUMNS.map(|(name, _)| format!("{:>12.1}", most(&ranks, &format!("{state}.{name}"))));
                println!("{transport:<5} {n:>2}  {state:<16} {}", row.join(" "));
            }
        }
    }
}

fn creations(limit: usize) {
    println!("\ncreation, until the last rank has it: milliseconds, median of {}", rank::CREATIONS);
    println!("{:>4} {:>10} {:>10}", "n", "P2P", "SHM");
    for n in CREATED.into_iter().filter(|n| *n <= limit) {
        let times = TRANSPORTS.map(|(_, disable)| {
            let ranks = measure("creations", n, disable);
            let mut all: Vec<f64> = (0..rank::CREATIONS).map(|k| most(&ranks, &format!("creation.{k}"))).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        });
        println!("{n:>4} {:>10.1} {:>10.1}", times[0], times[1]);
    }
}
