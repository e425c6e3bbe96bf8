//! The table that users of nccl-tests know, and the same as JSON.

use serde_json::{Value, json};

use crate::args::Args;
use crate::common::oracle::{DataType, RedOp};

/// Times and errors of one way to make a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Seconds for a call.
    pub seconds: f64,
    /// Elements that were wrong; `None` if nothing was checked.
    pub wrong: Option<usize>,
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    pub count: usize,
    pub dtype: DataType,
    pub op: RedOp,
    pub nranks: usize,
    pub out_of_place: Timing,
    pub in_place: Timing,
}

/// Bytes per second that the hardware carries for each that the call reduces: a ring of n ranks sends
/// every byte 2(n−1)/n times.
pub fn bus_factor(nranks: usize) -> f64 {
    2.0 * (nranks as f64 - 1.0) / nranks as f64
}

impl Row {
    /// Bytes of a rank's input.
    pub fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// Algorithm and bus bandwidth, GB/s (10^9).
    pub fn bandwidth(&self, timing: Timing) -> (f64, f64) {
        let algorithm = if timing.seconds > 0.0 { self.bytes() as f64 / timing.seconds / 1e9 } else { 0.0 };
        (algorithm, algorithm * bus_factor(self.nranks))
    }

    fn json_of(&self, timing: Timing) -> Value {
        let (algbw, busbw) = self.bandwidth(timing);
        json!({"time_us": timing.seconds * 1e6, "algbw": algbw, "busbw": busbw, "wrong": timing.wrong})
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        json!({
            "size": self.bytes(), "count": self.count, "type": self.dtype.name(), "redop": self.op.name(), "root": -1,
            "out_of_place": self.json_of(self.out_of_place), "in_place": self.json_of(self.in_place),
        })
    }

    /// The line.
    pub fn line(&self) -> String {
        format!(
            "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}{}{}",
            self.bytes(),
            self.count,
            self.dtype.name(),
            self.op.name(),
            -1,
            self.cells(self.out_of_place),
            self.cells(self.in_place)
        )
    }

    fn cells(&self, timing: Timing) -> String {
        let (algbw, busbw) = self.bandwidth(timing);
        let wrong = timing.wrong.map_or_else(|| "N/A".into(), |n| n.to_string());
        format!("  {:>7}  {algbw:>6.2}  {busbw:>6.2}  {wrong:>5}", time(timing.seconds * 1e6))
    }
}

/// Microseconds in at most seven characters, as nccl-tests shows them.
fn time(us: f64) -> String {
    match us {
        us if us < 99.995 => format!("{us:.2}"),
        us if us < 9_999.95 => format!("{us:.1}"),
        us if us < 9_999_999.5 => format!("{us:.0}"),
        us => format!("{:.1}s", us / 1e6),
    }
}

/// The lines above the table.
pub fn header() -> String {
    let group = format!("{:>34}", "");
    format!(
        "#{group}{:>17}{:>29}{:>33}\n\
         #{:>11}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>5}  {:>7}  {:>6}  {:>6}  {:>5}\n\
         #{:>11}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>5}  {:>7}  {:>6}  {:>6}  {:>5}",
        "",
        "out-of-place",
        "in-place",
        "size",
        "count",
        "type",
        "redop",
        "root",
        "time",
        "algbw",
        "busbw",
        "#wrong",
        "time",
        "algbw",
        "busbw",
        "#wrong",
        "(B)",
        "(elements)",
        "",
        "",
        "",
        "(us)",
        "(GB/s)",
        "(GB/s)",
        "",
        "(us)",
        "(GB/s)",
        "(GB/s)",
        "",
    )
}

/// Elements that were wrong in all rows.
pub fn wrong(rows: &[Row]) -> usize {
    rows.iter().flat_map(|row| [row.out_of_place.wrong, row.in_place.wrong]).flatten().sum()
}

/// The mean of the bus bandwidths of all rows, in place and out of place, GB/s.
pub fn average_bus_bandwidth(rows: &[Row]) -> f64 {
    let all = rows.iter().flat_map(|row| [row.bandwidth(row.out_of_place).1, row.bandwidth(row.in_place).1]);
    all.sum::<f64>() / (2 * rows.len()).max(1) as f64
}

/// One figure from the seconds of all ranks, as `-a` says.
pub fn over_ranks(args: &Args, seconds: &[f64]) -> f64 {
    let sum: f64 = seconds.iter().sum();
    match args.average {
        0 => seconds.first().copied().unwrap_or(0.0),
        2 => seconds.iter().copied().fold(f64::INFINITY, f64::min),
        3 => seconds.iter().copied().fold(0.0, f64::max),
        _ => sum / seconds.len().max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seconds: f64, wrong: Option<usize>) -> Row {
        let timing = Timing { seconds, wrong };
        let (dtype, op) = (DataType::Float32, RedOp::Sum);
        Row { count: 1 << 20, dtype, op, nranks: 4, out_of_place: timing, in_place: timing }
    }

    #[test]
    fn bus_bandwidth_is_what_nccl_tests_define() {
        assert_eq!(bus_factor(2), 1.0);
        assert_eq!(bus_factor(4), 1.5);
        assert_eq!(bus_factor(1), 0.0);
        let row = row(1e-3, None);
        let (algorithm, bus) = row.bandwidth(row.in_place);
        assert!((algorithm - 4.194304).abs() < 1e-9 && (bus - 6.291456).abs() < 1e-9);
        assert!((average_bus_bandwidth(&[row]) - 6.291456).abs() < 1e-9);
        assert_eq!(average_bus_bandwidth(&[]), 0.0);
    }

    #[test]
    fn lines_stand_under_their_headings() {
        let line = row(1234.5e-6, Some(3)).line();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>()[..6], ["4194304", "1048576", "float", "sum", "-1", "1234.5"]);
        for heading in header().lines().skip(1) {
            assert!(heading.len() <= line.len() + 2, "{heading}\n{line}");
        }
        assert_eq!(wrong(&[row(1.0, Some(3)), row(1.0, None)]), 6);
    }

    #[test]
    fn times_keep_their_width() {
        for (us, text) in [(0.1234, "0.12"), (99.99, "99.99"), (123.45, "123.5"), (123456.7, "123457"), (2e7, "20.0s")] {
            assert_eq!(time(us), text);
        }
    }

    #[test]
    fn ranks_are_summed_up_as_asked() {
        let pick = |average| over_ranks(&Args { average, ..Args::default() }, &[2.0, 1.0, 6.0]);
        assert_eq!([pick(0), pick(1), pick(2), pick(3)], [2.0, 3.0, 1.0, 6.0]);
    }
}
