//! What `perf predict --measured` sets beside its predictions: how the library carries calls out on the machine at
//! hand, and what they take.

use std::path::PathBuf;

use nccl::plan::call::Func;

use crate::args::Args;
use crate::constants::{Calls, Timed};
use crate::machine::Device;
use crate::orders::Order;
use crate::subject::Subject;
use crate::ways::{self, Way};

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
    let way = |bytes: usize| log.as_ref().map(|log| ways::of_log(log, func.name(), bytes)).transpose();
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
