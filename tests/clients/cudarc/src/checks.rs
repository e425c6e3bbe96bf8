//! Checked values, counted over all threads of the process.

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What was found so far.
#[derive(Default)]
pub struct Checks {
    passed: AtomicUsize,
    failed: AtomicUsize,
}

impl Checks {
    /// Counts whether two values are equal, and says so.
    pub fn equal<T: PartialEq + Debug>(&self, name: &str, got: T, want: T) {
        if got == want {
            self.passed.fetch_add(1, Relaxed);
            println!("OK {name}");
        } else {
            self.failed.fetch_add(1, Relaxed);
            println!("FAILED {name}: got {}, want {}", short(&got), short(&want));
        }
    }

    /// Takes what another process has found, from its last line.
    pub fn add(&self, last_line: &str) {
        let mut numbers = last_line.split_whitespace().filter_map(|word| word.parse::<usize>().ok());
        let (passed, failed) = (numbers.next(), numbers.next());
        self.passed.fetch_add(passed.unwrap_or(0), Relaxed);
        // A process that did not come to its last line has failed.
        self.failed.fetch_add(failed.unwrap_or(1), Relaxed);
    }

    /// Prints the last line; whether all is well.
    pub fn close(&self) -> bool {
        let (passed, failed) = (self.passed.load(Relaxed), self.failed.load(Relaxed));
        println!("{passed} passed, {failed} failed");
        failed == 0 && passed > 0
    }
}

/// The beginning of a long value.
fn short(value: &impl Debug) -> String {
    format!("{value:?}").chars().take(200).collect()
}
