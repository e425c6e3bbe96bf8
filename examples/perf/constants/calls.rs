//! Timed calls of the library, in fresh processes for each setting of its variables.

use std::ffi::OsString;

use super::fit;
use crate::args::Args;
use crate::bench;
use crate::machine::Device;
use crate::orders::{Case, Order};
use crate::processes::Workers;
use crate::subject::Subject;

/// How often a call is timed; the median counts.
const TIMES: usize = 3;

/// A call: what, so many bytes of the larger buffer, and whether each call is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    pub subject: Subject,
    pub bytes: usize,
    pub blocking: bool,
}

/// Ranks as threads of one process: those of several processes take turns on a device that they share.
pub struct Calls<'a> {
    pub device: &'a Device,
    /// What is the same for all calls.
    pub args: Args,
}

impl<'a> Calls<'a> {
    /// Calls of so many ranks, with the number of seconds after which they count as hanging.
    pub fn new(device: &'a Device, nranks: usize, args: &Args) -> Calls<'a> {
        // With `json`, nothing that the ranks print gets between the lines of stdout.
        let args = Args { nranks, threads: true, check: false, json: true, warmup: 3, ..args.clone() };
        Calls { device, args }
    }

    /// The case of a call, out of place.
    pub fn case(&self, subject: Subject, bytes: usize) -> Case {
        bench::case(&self.args, subject, bytes, (self.args.dtypes[0] as usize, self.args.ops[0] as usize))
    }

    /// Does something with ranks that have a communicator and buffers of `bytes` bytes, and these variables.
    ///
    /// # Errors
    /// What failed, for the user.
    pub fn with<T>(
        &self,
        variables: &[(&str, String)],
        bytes: usize,
        mut work: impl FnMut(&mut Workers) -> Result<T, String>,
    ) -> Result<T, String> {
        let shared = [("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")];
        let shared = shared.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
        let variables = shared
            .map(|(name, value)| (name.to_string(), OsString::from(value)))
            .chain(variables.iter().map(|(name, value)| (name.to_string(), OsString::from(value))));
        let device = self.device.with(variables.collect());
        let (mut workers, _) = Workers::start(&self.args, &device)?;
        workers.init()?;
        workers.all(&Order::Allocate(bytes))?;
        let result = work(&mut workers)?;
        workers.quit()?;
        Ok(result)
    }

    /// Microseconds of each call, the median of some times that `perf` would print.
    ///
    /// # Errors
    /// As [`Calls::with`].
    pub fn times(&self, variables: &[(&str, String)], calls: &[Timed]) -> Result<Vec<f64>, String> {
        let largest = calls.iter().map(|call| call.bytes).max().unwrap_or(0);
        self.with(variables, largest, |workers| calls.iter().map(|call| self.time(workers, call)).collect())
    }

    /// Microseconds of one call of ranks that are there.
    ///
    /// # Errors
    /// As [`Calls::with`].
    pub fn time(&self, workers: &mut Workers, call: &Timed) -> Result<f64, String> {
        let args = Args { blocking: call.blocking, ..self.args.clone() };
        let case = self.case(call.subject, call.bytes);
        let times = (0..TIMES).map(|_| Ok(bench::time(&args, workers, case, 0)?.seconds * 1e6));
        Ok(fit::median(times.collect::<Result<Vec<f64>, String>>()?))
    }
}
