//! How long the phases of a creation take.

use std::time::{Duration, Instant};

/// How long each phase took, for the log.
pub(super) struct InitTimings {
    start: Instant,
    last: Instant,
    /// To load kernels and prepare.
    pub kernels: Duration,
    /// To meet the other ranks.
    pub bootstrap: Duration,
    /// To hear that all have succeeded.
    pub allgathers: Duration,
    /// To plan, probe and upload.
    pub connections: Duration,
}

impl InitTimings {
    /// They begin now.
    pub fn begin() -> InitTimings {
        let now = Instant::now();
        let zero = Duration::ZERO;
        InitTimings { start: now, last: now, kernels: zero, bootstrap: zero, allgathers: zero, connections: zero }
    }

    /// The time since the last call.
    pub fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.last, now)
    }

    /// The line of the log that says it.
    pub fn line(&self, function: &str, (rank, nranks): (i32, i32)) -> String {
        let total = self.start.elapsed();
        let known = self.kernels + self.bootstrap + self.allgathers + self.connections;
        let rest = total.saturating_sub(known);
        let [total, kernels, bootstrap, allgathers, connections, rest] =
            [total, self.kernels, self.bootstrap, self.allgathers, self.connections, rest]
                .map(|time| time.as_secs_f64());
        format!(
            "Init timings - {function}: rank {rank} nranks {nranks} total {total:.2} (kernels {kernels:.2}, \
             alloc 0.00, bootstrap {bootstrap:.2}, allgathers {allgathers:.2}, topo 0.00, graphs 0.00, \
             connections {connections:.2}, rest {rest:.2})"
        )
    }
}
