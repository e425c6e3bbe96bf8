//! The table that users of nccl-tests know, and the same as JSON.

use serde_json::{Value, json};

use crate::args::Args;
use crate::orders::Case;

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
    /// The call, out of place.
    pub case: Case,
    pub nranks: usize,
    pub out_of_place: Timing,
    /// `None` where there is no such form.
    pub in_place: Option<Timing>,
}

impl Row {
    /// Bytes of the larger buffer of a rank.
    pub fn bytes(&self) -> usize {
        self.case.count * self.case.dtype().size() * self.case.subject.blocks(self.nranks)
    }

    /// Algorithm and bus bandwidth, GB/s (10^9).
    pub fn bandwidth(&self, timing: Timing) -> (f64, f64) {
        let algorithm = if timing.seconds > 0.0 { self.bytes() as f64 / timing.seconds / 1e9 } else { 0.0 };
        (algorithm, algorithm * self.case.subject.bus_factor(self.nranks))
    }

    fn json_of(&self, timing: Timing) -> Value {
        let (algbw, busbw) = self.bandwidth(timing);
        json!({"time_us": timing.seconds * 1e6, "algbw": algbw, "busbw": busbw, "wrong": timing.wrong})
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        json!({
            "collective": self.case.subject.word(), "size": self.bytes(), "count": self.case.count,
            "type": self.case.dtype().name(), "redop": self.redop(), "root": self.root(),
            "out_of_place": self.json_of(self.out_of_place),
            "in_place": self.in_place.map(|timing| self.json_of(timing)),
        })
    }

    fn redop(&self) -> &'static str {
        if self.case.subject.reduces() { self.case.op().name() } else { "none" }
    }

    /// The root, -1 where there is none.
    fn root(&self) -> i64 {
        if self.case.subject.rooted() { self.case.root as i64 } else { -1 }
    }

    /// The line, with what was called in front where a table has several.
    pub fn line(&self, named: bool) -> String {
        let name = if named { format!("{:<14}", self.case.subject.word()) } else { String::new() };
        format!(
            "{name}{:>12}  {:>12}  {:>8}  {:>6}  {:>6}{}{}",
            self.bytes(),
            self.case.count,
            self.case.dtype().name(),
            self.redop(),
            self.root(),
            self.cells(Some(self.out_of_place)),
            self.cells(self.in_place)
        )
    }

    fn cells(&self, timing: Option<Timing>) -> String {
        let Some(timing) = timing else {
            return format!("  {:>7}  {:>6}  {:>6}  {:>5}", "N/A", "N/A", "N/A", "N/A");
        };
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

/// The lines above the table; `named`: with a column in front for what was called.
pub fn header(named: bool) -> String {
    let group = format!("{:>34}", "");
    let text = format!(
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
    );
    let front = if named { format!("#{:<14}", "") } else { "#".into() };
    text.replace('#', &front).replace(&format!("{front}wrong"), "#wrong")
}

/// All timings, each with its row.
fn timings(rows: &[Row]) -> impl Iterator<Item = (&Row, Timing)> {
    rows.iter()
        .flat_map(|row| [Some(row.out_of_place), row.in_place].into_iter().flatten().map(move |timing| (row, timing)))
}

/// Elements that were wrong in all rows.
pub fn wrong(rows: &[Row]) -> usize {
    timings(rows).filter_map(|(_, timing)| timing.wrong).sum()
}

/// The mean of the bus bandwidths of all rows, in place and out of place, GB/s.
pub fn average_bus_bandwidth(rows: &[Row]) -> f64 {
    let all = timings(rows).map(|(row, timing)| row.bandwidth(timing).1);
    all.sum::<f64>() / timings(rows).count().max(1) as f64
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
    use crate::common::oracle::{DataType, RedOp};
    use crate::subject::Subject;

    fn row(seconds: f64, wrong: Option<usize>) -> Row {
        let timing = Timing { seconds, wrong };
        let (dtype, op) = (DataType::Float32 as usize, RedOp::Sum as usize);
        let case = Case { subject: Subject::AllReduce, count: 1 << 20, dtype, op, root: 0, in_place: false };
        Row { case, nranks: 4, out_of_place: timing, in_place: Some(timing) }
    }

    #[test]
    fn bus_bandwidth_is_what_nccl_tests_define() {
        let row = row(1e-3, None);
        let (algorithm, bus) = row.bandwidth(row.out_of_place);
        assert!((algorithm - 4.194304).abs() < 1e-9 && (bus - 6.291456).abs() < 1e-9);
        assert!((average_bus_bandwidth(&[row]) - 6.291456).abs() < 1e-9);
        assert_eq!(average_bus_bandwidth(&[]), 0.0);
    }

    #[test]
    fn lines_stand_under_their_headings() {
        let line = row(1234.5e-6, Some(3)).line(false);
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>()[..6],
            ["4194304", "1048576", "float", "sum", "-1", "1234.5"]
        );
        for heading in header(false).lines().skip(1) {
            assert!(heading.len() <= line.len() + 2, "{heading}\n{line}");
        }
        let mut apart = row(1.0, None);
        apart.case.subject = Subject::Scatter;
        apart.in_place = None;
        let line = apart.line(true);
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>()[..6],
            ["scatter", "16777216", "1048576", "float", "none", "0"]
        );
        assert!(line.ends_with("N/A"), "{line}");
        for heading in header(true).lines().skip(1) {
            assert!(
                heading.len() <= line.len() + 2 && heading.contains("#wrong") == heading.contains("redop"),
                "{heading}"
            );
        }
        assert_eq!(wrong(&[row(1.0, Some(3)), row(1.0, None)]), 6);
    }

    #[test]
    fn times_keep_their_width() {
        for (us, text) in [(0.1234, "0.12"), (99.99, "99.99"), (123.45, "123.5"), (123456.7, "123457"), (2e7, "20.0s")]
        {
            assert_eq!(time(us), text);
        }
    }

    #[test]
    fn ranks_are_summed_up_as_asked() {
        let pick = |average| over_ranks(&Args { average, ..Args::default() }, &[2.0, 1.0, 6.0]);
        assert_eq!([pick(0), pick(1), pick(2), pick(3)], [2.0, 3.0, 1.0, 6.0]);
    }
}
