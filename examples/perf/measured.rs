//! What `perf predict --measured` sets beside its predictions: how the library carries calls out on the machine at hand,
//! and what they take.

use std::path::PathBuf;

use nccl::plan::algorithm::Algo;
use nccl::plan::call::Func;
use nccl::plan::layout::Proto;

use crate::args::Args;
use crate::constants::{Calls, Timed};
use crate::machine::Device;
use crate::orders::Order;
use crate::subject::Subject;

/// How a call was carried out: algorithm, protocol, and the most channels.
pub type Way = (Algo, Proto, u32);

/// A call that was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Bytes of the larger buffer.
    pub bytes: u64,
    /// None where the library has but one.
    pub way: Option<Way>,
    /// Microseconds, as `perf` measures them.
    pub us: f64,
}

/// The library's log. Dropping it removes the file.
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes calls of these sizes, by ranks that are threads of one process. First once each with a log that says how the
/// library carries them out; then without it, to time them.
///
/// # Errors
/// What failed, for the user.
pub fn run(
    (subject, func): (Subject, Func),
    sizes: &[u64],
    args: &Args,
    device: &Device,
) -> Result<Vec<Measured>, String> {
    let calls = Calls::new(device, args.nranks, args);
    let element = args.dtypes[0].size();
    let bytes = |size: &u64| {
        let case = calls.case(subject, usize::try_from(*size).unwrap_or(usize::MAX));
        case.count * element * subject.blocks(args.nranks)
    };
    let sizes: Vec<usize> = sizes.iter().map(bytes).collect();
    let timed: Vec<Timed> = sizes.iter().map(|bytes| Timed { subject, bytes: *bytes, blocking: false }).collect();
    let log = if func == Func::Send { None } else { Some(logged(subject, &sizes, &calls)?) };
    let times = calls.times(&[], &timed)?;
    let way = |bytes: usize| log.as_ref().map(|log| way_of(log, func.name(), bytes)).transpose();
    let rows = sizes.iter().zip(times).map(|(bytes, us)| Ok(Measured { bytes: *bytes as u64, way: way(*bytes)?, us }));
    rows.collect()
}

/// What the library says about calls of these sizes.
fn logged(subject: Subject, sizes: &[usize], calls: &Calls<'_>) -> Result<String, String> {
    let log = Log(std::env::temp_dir().join(format!("oxccl-perf-{}.log", std::process::id())));
    let text = |error: std::io::Error| format!("{}: {error}", log.0.display());
    let variables = [
        ("NCCL_DEBUG", "INFO".to_string()),
        ("NCCL_DEBUG_SUBSYS", "TUNING".to_string()),
        ("NCCL_DEBUG_FILE", log.0.display().to_string()),
    ];
    let largest = sizes.iter().copied().max().unwrap_or(0);
    calls.with(&variables, largest, |workers| {
        sizes.iter().try_for_each(|bytes| {
            let order = Order::Run { case: calls.case(subject, *bytes), calls: 1, blocking: true };
            workers.all(&order).map(drop)
        })
    })?;
    std::fs::read_to_string(&log.0).map_err(text)
}

/// How the log says that a call was carried out: `AllReduce 64 B: direct/LL, 1 channels, est. ...`.
fn way_of(log: &str, function: &str, bytes: usize) -> Result<Way, String> {
    let call = format!(" {function} {bytes} B: ");
    let found = log.lines().find_map(|line| {
        let (_, said) = line.split_once(&call)?;
        let mut parts = said.split(", ");
        let (algorithm, protocol) = parts.next()?.split_once('/')?;
        let channels = parts.next()?.strip_suffix(" channels")?.parse().ok()?;
        let algorithm = Algo::ALL.into_iter().find(|known| known.name() == algorithm)?;
        Some((algorithm, Proto::ALL.into_iter().find(|known| known.name() == protocol)?, channels))
    });
    found.ok_or_else(|| format!("the library's log does not say how it carries out{}", call.trim_end_matches(": ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_understood() {
        let log = "h:1:2 [0] NCCL INFO AllReduce 64 B: direct/LL, 1 channels, est. 7.9 us; ring/LL 8.5 us\n\
                   h:1:2 [0] NCCL INFO AllReduce 4096 B: direct2/LL128, 4 channels, est. 8.3 us\n";
        assert_eq!(way_of(log, "AllReduce", 4096), Ok((Algo::TwoStep, Proto::Ll128, 4)));
        assert_eq!(way_of(log, "AllReduce", 64), Ok((Algo::Direct, Proto::Ll, 1)));
        assert!(way_of(log, "AllReduce", 6).expect_err("nothing").contains("AllReduce 6 B"));
        assert!(way_of(log, "Reduce", 64).is_err());
    }
}
