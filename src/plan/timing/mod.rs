//! A clock for schedules: what calls would take on a machine, by a simulation of the turns that kernels take.
//!
//! It runs the same schedules as [`super::exec`], without values but with time: links have a bandwidth and a latency,
//! blocks have so many loads in flight, and a turn, a fence, a poll and a launch have their price
//! ([`MachineModel`], [`KernelModel`]). A few channels are run; the others are like them and share the links.
//!
//! The machines' constants come from public measurements, and say which. No GPU has confirmed what follows from them.

mod kernel;
mod machine;
mod nccl;
mod run;

#[cfg(test)]
mod tests;

use super::algorithm::{self, Algo, ScheduleKind};
use super::call::{DataType, Func};
use super::layout::Proto;
use super::schedule::Schedule;
use super::work::{Geometry, Request};
use crate::error::Error;
use crate::topology::Graph;
use run::{Clock, PieceRun};

pub use kernel::KernelModel;
pub use machine::{BlockModel, MachineModel, PathModel};
pub use nccl::nccl_ring;

/// PieceRun that are run; of more, the time is continued in a straight line.
const MAX_PIECES: u64 = 16;

/// How a call is carried out, as far as its time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedCall {
    /// The function; its root is 0.
    pub func: Func,
    /// The algorithm.
    pub algorithm: Algo,
    /// The protocol.
    pub protocol: Proto,
    /// Bytes of the larger buffer.
    pub bytes: u64,
    /// The most channels.
    pub channels: u32,
    /// Bytes of a slot, with what the protocol needs.
    pub slot_bytes: u32,
}

/// The schedules of all ranks of one channel.
///
/// # Errors
/// As [`algorithm::compile`].
pub fn schedules(func: Func, algorithm: Algo, graph: &Graph) -> Result<Vec<Schedule>, Error> {
    let kind = ScheduleKind { func, algo: algorithm, root: 0 };
    (0..graph.nranks()).map(|rank| algorithm::compile(kind, graph, 0, rank)).collect()
}

/// Microseconds that a call takes on a machine.
///
/// # Errors
/// [`Error::Internal`] where there is no such algorithm, or slots are of an impossible size.
pub fn predict(machine: &MachineModel, kernel: &KernelModel, call: &TimedCall) -> Result<f64, Error> {
    let graph = Graph::of_host(machine.ranks);
    predict_schedules(machine, kernel, call, &schedules(call.func, call.algorithm, &graph)?)
}

/// The same with schedules that are there already.
///
/// # Errors
/// As [`predict`].
pub fn predict_schedules(
    machine: &MachineModel,
    kernel: &KernelModel,
    call: &TimedCall,
    schedules: &[Schedule],
) -> Result<f64, Error> {
    let blocks = super::shape::shape(call.func, 1) != super::shape::Shape::Divided;
    let nchunks = schedules.first().map_or(1, |schedule| schedule.nchunks);
    let datatype = DataType::Float32;
    let elements = call.bytes.div_ceil(datatype.size() as u64);
    let geometry = Geometry::new(&Request {
        count: if blocks { elements.div_ceil(u64::from(nchunks)) } else { elements },
        datatype,
        nchunks,
        blocks,
        max_channels: call.channels.clamp(1, machine.channels),
        slot_bytes: u64::from(call.slot_bytes),
        proto: call.protocol,
        min_channel_bytes: 1,
    })?;
    let size = datatype.size() as u64;
    let (part, piece) = (geometry.part * size, geometry.piece * size);
    let count = part.div_ceil(piece).max(1);
    let run = |count: u64, part: u64| {
        let pieces = PieceRun { part, piece, count };
        Clock::new(machine, kernel, call.protocol, geometry.nchannels, pieces, schedules).complete()
    };
    if count <= MAX_PIECES {
        return Ok(machine.launch + run(count, part)?);
    }
    let (some, more) = (run(MAX_PIECES / 2, piece * MAX_PIECES / 2)?, run(MAX_PIECES, piece * MAX_PIECES)?);
    let each = (more - some) / (MAX_PIECES - MAX_PIECES / 2) as f64;
    Ok(machine.launch + more + each * (part as f64 / piece as f64 - MAX_PIECES as f64))
}

/// The factor from a call's bytes in a time to the bandwidth of a bus, as nccl-tests counts it.
pub fn bus_factor(func: Func, nranks: u32) -> f64 {
    let n = f64::from(nranks);
    match func {
        Func::AllReduce => 2.0 * (n - 1.0) / n,
        Func::AllGather | Func::ReduceScatter | Func::AlltoAll | Func::Gather | Func::Scatter => (n - 1.0) / n,
        _ => 1.0,
    }
}
