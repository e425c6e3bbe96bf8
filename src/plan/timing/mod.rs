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
mod processors;
mod run;

#[cfg(test)]
mod tests;

use super::algorithm::{self, Algo, ScheduleKind};
use super::call::{DataType, Func};
use super::layout::Proto;
use super::point_to_point;
use super::schedule::Schedule;
use super::shape::{Shape, shape};
use super::work::{Geometry, Request};
use super::zero_copy;
use crate::error::Error;
use crate::topology::Graph;
use run::{Clock, PieceRun, channels_run};

pub use kernel::KernelModel;
pub use machine::{BlockModel, MachineModel, NetworkModel, PathModel, SharingModel};
pub use nccl::nccl_ring;

/// PieceRun that are run; of more, the time is continued in a straight line.
const MAX_PIECES: u64 = 16;
/// Calls that are run one behind the other where ranks share processors; the second half counts.
const CALLS: u32 = 8;
/// The type of the elements: times hardly depend on it.
const ELEMENT: DataType = DataType::Float32;
/// Bytes of a slot where none is used.
const WHATEVER: u32 = 1 << 12;

/// How a call is carried out, as far as its time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedCall {
    /// The function; its root is 0. [`Func::Send`]: each rank sends to the next and receives from the one before.
    pub func: Func,
    /// The algorithm; messages have but one way.
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

impl TimedCall {
    /// A call without slots ([`zero_copy`]). All of a channel's part is one piece, whatever [`Self::geometry`] says.
    pub fn zero_copy(func: Func, bytes: u64, channels: u32) -> TimedCall {
        let slot_bytes = WHATEVER;
        TimedCall { func, algorithm: zero_copy::algo(func), protocol: Proto::Simple, bytes, channels, slot_bytes }
    }

    /// How the call is split, by schedules with so many chunks; its elements count as 4 bytes.
    ///
    /// # Errors
    /// [`Error::Internal`] where slots are of an impossible size.
    pub fn geometry(&self, nchunks: u32) -> Result<Geometry, Error> {
        let blocks = shape(self.func, 1) != Shape::Divided;
        let elements = self.bytes.div_ceil(ELEMENT.size() as u64);
        Geometry::new(&Request {
            count: if blocks { elements.div_ceil(u64::from(nchunks)) } else { elements },
            datatype: ELEMENT,
            nchunks,
            blocks,
            max_channels: self.channels.max(1),
            slot_bytes: u64::from(self.slot_bytes),
            proto: self.protocol,
            min_channel_bytes: 1,
        })
    }
}

/// Microseconds that a call takes on a machine.
///
/// # Errors
/// [`Error::Internal`] where there is no such algorithm, or slots are of an impossible size.
pub fn predict(machine: &MachineModel, kernel: &KernelModel, call: &TimedCall) -> Result<f64, Error> {
    let schedules = schedules(machine, call)?;
    let geometry = geometry_on(machine, call, &schedules)?;
    let size = ELEMENT.size() as u64;
    let (part, piece) = (geometry.part * size, geometry.piece * size);
    let count = part.div_ceil(piece).max(1);
    let run = |count: u64, part: u64| {
        let clock = |calls| {
            let pieces = PieceRun { part, piece, count, calls };
            Clock::new(machine, kernel, call.protocol, geometry.nchannels, pieces, &schedules)
        };
        one_call(machine, clock)
    };
    if count <= MAX_PIECES {
        return run(count, part);
    }
    let (some, more) = (run(MAX_PIECES / 2, piece * MAX_PIECES / 2)?, run(MAX_PIECES, piece * MAX_PIECES)?);
    let each = (more - some) / (MAX_PIECES - MAX_PIECES / 2) as f64;
    Ok(more + each * (part as f64 / piece as f64 - MAX_PIECES as f64))
}

/// Microseconds of one call by a clock of so many. Where ranks share processors, it is one of many: then launches take
/// turns as well.
fn one_call<'a>(machine: &MachineModel, clock: impl Fn(u32) -> Clock<'a>) -> Result<f64, Error> {
    if machine.sharing.processors == 0 {
        return Ok(machine.launch + clock(1).complete()?);
    }
    let (some, more) = (clock(CALLS / 2).complete()?, clock(CALLS).complete()?);
    Ok((more - some) / f64::from(CALLS - CALLS / 2))
}

/// Microseconds that a call takes in which ranks agree to use each other's buffers in place of slots, and do.
///
/// # Errors
/// [`Error::Internal`] where they cannot ([`zero_copy::can_agree`]).
pub fn predict_zero_copy(
    machine: &MachineModel,
    kernel: &KernelModel,
    func: Func,
    bytes: u64,
    channels: u32,
) -> Result<f64, Error> {
    let graph = machine.graph();
    let call = TimedCall::zero_copy(func, bytes, channels);
    let kind = ScheduleKind { func, algo: call.algorithm, root: 0 };
    let schedules: Result<Vec<Schedule>, Error> =
        (0..machine.ranks).map(|rank| zero_copy::agreed(kind, &graph, 0, rank)).collect();
    let schedules = vec![schedules?];
    let geometry = geometry_on(machine, &call, &schedules)?;
    let part = geometry.part * ELEMENT.size() as u64;
    one_call(machine, |calls| {
        let pieces = PieceRun { part, piece: part, count: 1, calls };
        Clock::new(machine, kernel, call.protocol, geometry.nchannels, pieces, &schedules).zero_copy()
    })
}

fn geometry_on(machine: &MachineModel, call: &TimedCall, schedules: &[Vec<Schedule>]) -> Result<Geometry, Error> {
    let nchunks = schedules.iter().flatten().next().map_or(1, |schedule| schedule.nchunks);
    TimedCall { channels: call.channels.min(machine.channels), ..*call }.geometry(nchunks)
}

/// What the blocks do, of all ranks, by channel; further channels repeat them.
fn schedules(machine: &MachineModel, call: &TimedCall) -> Result<Vec<Vec<Schedule>>, Error> {
    let ranks = machine.ranks;
    if call.func == Func::Send {
        let halves = |rank| {
            let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            [point_to_point::send(rank, next), point_to_point::receive(rank, before)]
        };
        return Ok(vec![(0..ranks).flat_map(halves).collect::<Result<_, Error>>()?]);
    }
    let graph: Graph = machine.graph();
    let kind = ScheduleKind { func: call.func, algo: call.algorithm, root: 0 };
    let of = |channel| (0..ranks).map(|rank| algorithm::compile(kind, &graph, channel, rank)).collect();
    (0..graph.nchannels().min(channels_run(machine, call.channels))).map(of).collect()
}
