//! How long calls took: each process prints what it has measured, and the test reads it from there.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::common::launch::Outcome;

/// What lines with measurements begin with: then the function, then microseconds.
const MARK: &str = "took";

/// Measurements of a process.
#[derive(Default)]
pub struct Times(Mutex<BTreeMap<&'static str, Vec<Duration>>>);

impl Times {
    /// Makes a call, and keeps how long it took.
    pub fn of<R>(&self, name: &'static str, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        let elapsed = start.elapsed();
        self.0.lock().expect("no panic").entry(name).or_default().push(elapsed);
        result
    }

    /// Prints all of it, for [`collect`].
    pub fn print(&self) {
        let mut text = String::new();
        for (name, all) in self.0.lock().expect("no panic").iter() {
            let _ = write!(text, "{MARK} {name}");
            all.iter().for_each(|one| write!(text, " {}", one.as_micros()).expect("a string"));
            text.push('\n');
        }
        print!("{text}");
    }
}

/// What all ranks of a job have measured, by function, sorted.
pub fn collect(outcome: &Outcome) -> BTreeMap<String, Vec<Duration>> {
    let mut times: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
    for line in outcome.ranks.iter().flat_map(|rank| rank.stdout.lines()) {
        let mut words = line.split(' ').skip_while(|word| *word != MARK).skip(1);
        let Some(name) = words.next() else { continue };
        let all = words.filter_map(|word| word.parse().ok()).map(Duration::from_micros);
        times.entry(name.to_string()).or_default().extend(all);
    }
    times.values_mut().for_each(|all| all.sort_unstable());
    times
}

/// Prints a table, and fails where a call took longer than `limit` allows for its name.
pub fn report(times: &BTreeMap<String, Vec<Duration>>, limit: impl Fn(&str) -> Duration) {
    println!("{:<28} {:>6} {:>10} {:>10} {:>10}", "call", "n", "p50 us", "p99 us", "max us");
    for (name, all) in times {
        let at = |percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)].as_micros();
        println!("{name:<28} {:>6} {:>10} {:>10} {:>10}", all.len(), at(50), at(99), at(100));
    }
    for (name, all) in times {
        let (longest, limit) = (all[all.len() - 1], limit(name));
        assert!(longest < limit, "{name} took {longest:?}, which is more than {limit:?}");
    }
}
