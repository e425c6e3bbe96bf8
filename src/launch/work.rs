//! Work items: what one launch tells the kernel.

use super::Collective;
use crate::comm::{Parts, Schedules};
use crate::device::Stream;
use crate::error::Error;
use crate::plan::call::DataType;
use crate::plan::layout::{LaunchArgs, MAX_WORK, Work};
use crate::plan::operator::Operator;
use crate::plan::work::Geometry;

/// The work items of one launch, being collected.
pub(super) struct Batch<'a> {
    schedules: &'a Schedules,
    arguments: LaunchArgs,
    datatype: Option<DataType>,
}

impl<'a> Batch<'a> {
    /// An empty batch. `flag` is the address of the communicator's abort word.
    pub(super) fn new(schedules: &'a Schedules, flag: u64) -> Batch<'a> {
        Batch { schedules, arguments: schedules.arguments(flag), datatype: None }
    }

    /// Whether a call can join the launch: one datatype, one number of channels, and room.
    fn fits(&self, call: &Collective, geometry: &Geometry) -> bool {
        let alike =
            self.datatype.is_none_or(|datatype| datatype == call.datatype && self.arguments.nchannels == geometry.nchannels);
        alike && (self.arguments.nwork + geometry.nchannels) as usize <= MAX_WORK
    }

    /// Adds a call, one work item for each channel; launches what was collected when it does not fit.
    pub(super) fn add(&mut self, parts: &Parts, stream: Stream, call: &Collective, nranks: u32) -> Result<(), Error> {
        let geometry = self.schedules.split(call.count as u64, call.datatype)?;
        if !self.fits(call, &geometry) {
            self.launch(parts, stream)?;
        }
        let operator = Operator::builtin(call.op, call.datatype, nranks);
        self.datatype = Some(call.datatype);
        self.arguments.nchannels = geometry.nchannels;
        for channel in 0..geometry.nchannels {
            let item = self.schedules.work(&geometry, channel, call.datatype, &operator);
            self.arguments.work[self.arguments.nwork as usize] = Work { input: call.send, output: call.recv, ..item };
            self.arguments.nwork += 1;
        }
        Ok(())
    }

    /// Launches what was collected, and starts anew.
    pub(super) fn launch(&mut self, parts: &Parts, stream: Stream) -> Result<(), Error> {
        let Some(datatype) = self.datatype.take() else { return Ok(()) };
        let (blocks, threads) = (self.arguments.nchannels, self.schedules.threads);
        // SAFETY: the kernels take this structure by value; steps and links live as long as the
        // communicator, which waits for its launches before it frees them; buffers are the user's.
        let launched = unsafe { parts.kernels.launch(self.schedules.kernel(datatype), blocks, threads, stream, &self.arguments) };
        self.arguments.nwork = 0;
        launched
    }
}
