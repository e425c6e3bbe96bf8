//! What a call takes on GPUs without slots, in closed form: what [`crate::plan::timing::predict_zero_copy`] simulates.
//!
//! Four signals go from rank to rank one after the other, whatever the function: offers, verdicts, that all have begun,
//! and that all have finished. Between the last two of them the busiest rank moves its data, in one piece.

use super::turns::{LikeTurns, between, like};
use crate::error::Error;
use crate::plan::algorithm::ScheduleKind;
use crate::plan::call::{DataType, Func};
use crate::plan::layout::{Proto, step_flag};
use crate::plan::schedule::Schedule;
use crate::plan::timing::{KernelModel, MachineModel, TimedCall};
use crate::plan::zero_copy;
use crate::topology::Graph;

/// Signals that ranks wait for one after the other.
const SIGNALS: f64 = 4.0;

/// What the ranks of a call without slots do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ZeroCopyTurns {
    func: Func,
    nchunks: u32,
    /// Those that data wait for: of any rank, or of the root and of another one.
    turns: Vec<LikeTurns>,
    /// Chunks that go out of a rank, or into it, whichever rank and way has most.
    carried: f64,
}

/// What a function's calls do; None where ranks cannot agree on them.
pub(super) fn of(func: Func, graph: &Graph) -> Option<ZeroCopyTurns> {
    let kind = ScheduleKind { func, algo: zero_copy::algo(func), root: 0 };
    if !zero_copy::can_agree(func, kind.algo, graph) {
        return None;
    }
    let schedules: Result<Vec<Schedule>, Error> =
        (0..graph.nranks()).map(|rank| zero_copy::agreed(kind, graph, 0, rank)).collect();
    let schedules = schedules.ok()?;
    let rooted = matches!(func, Func::Broadcast | Func::Reduce | Func::Gather | Func::Scatter);
    let turns = schedules.iter().take(if rooted { 2 } else { 1 }).flat_map(like).collect();
    Some(ZeroCopyTurns { func, nchunks: schedules.first()?.nchunks, turns, carried: carried(&schedules) })
}

/// Chunks that go over a rank's links one way: what it sends, and what others read from it; or the other way round.
fn carried(schedules: &[Schedule]) -> f64 {
    let (mut out, mut into) = (vec![0.0; schedules.len()], vec![0.0; schedules.len()]);
    for schedule in schedules {
        for step in schedule.steps.iter().filter(|step| step.flags & step_flag::NO_DATA == 0) {
            let (recv, send) = (&step.recv[..usize::from(step.nrecv)], &step.send[..usize::from(step.nsend)]);
            for id in recv.iter().chain(send).filter_map(|&link| schedule.links.get(usize::from(link))) {
                out[id.from as usize] += f64::from(step.repeat);
                into[id.to as usize] += f64::from(step.repeat);
            }
        }
    }
    out.into_iter().chain(into).fold(0.0, f64::max)
}

impl ZeroCopyTurns {
    /// Microseconds of a call.
    pub(super) fn estimate(&self, machine: &MachineModel, kernel: &KernelModel, bytes: u64, channels: u32) -> f64 {
        let call = TimedCall::zero_copy(self.func, bytes, channels);
        let Ok(geometry) = call.geometry(self.nchunks) else { return f64::INFINITY };
        let part = geometry.part * DataType::Float32.size() as u64;
        let between = between(machine, kernel);
        let fence = machine.path.fence * f64::from(kernel.fences);
        let signal = between * 1.5 + fence + machine.path.latency + machine.block.poll / 2.0;
        let time = |turns: &LikeTurns| {
            let loads = turns.loads(machine.path.remote_load, machine.block.load);
            turns.count * kernel.move_time(&machine.block, Proto::Simple, part, &loads[..turns.nsrc()], turns.ndst)
        };
        let moves: f64 = self.turns.iter().filter(|turns| !turns.is_local()).map(&time).sum();
        // A rank's own data: copied before or after what goes over links, but where only other ranks use those.
        let own = self.turns.iter().filter(|turns| turns.is_local() && self.func != Func::Gather);
        let own: f64 = own.map(time).sum();
        // Who sends to one after the other waits for each, and has a turn and a fence for it.
        let sends: f64 = self.turns.iter().filter(|turns| turns.sent > 0).map(|turns| turns.count).sum();
        let waits = (sends - 1.0).max(0.0) * (2.0 * between + fence);
        let wire = self.carried * part as f64 * f64::from(geometry.nchannels) / machine.path.bandwidth;
        machine.launch + SIGNALS * signal + own + (moves + waits).max(wire)
    }
}
