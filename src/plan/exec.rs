//! The symbolic executor: runs the schedules of all ranks on names instead of numbers, with bounded slots.
//!
//! A rank waits only for its own links, and counters only grow; so the run is confluent: if one order of
//! events finishes, every order does, with the same result. One run proves a schedule for all timings.
//! Schedules that reach into a peer's buffers ([`Setting::direct`]) are confluent only if no two ranks are at
//! one place at the same time, which is checked as well.
//!
//! Values are terms: which rank's input, and what was added to what in which order. Two ranks that hold
//! the same term hold the same bits.
//!
//! Every schedule is run several times in a row on the same links, as calls are. A rank that is done with a
//! call begins the next one at once, with another input in the same buffers.

mod memory;
mod outcome;
mod races;
mod run;
mod terms;

use super::call::Func;
use super::schedule::{LinkId, Schedule};
use memory::Layout;
use run::{Actor, Run, ScheduleJob};

pub use outcome::SimulationOutcome;
pub use terms::Input;

/// How the schedules are run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Slots of every link.
    pub slots: u32,
    /// Pieces of every chunk: with two or more, slots are used again and pieces could be mixed up.
    pub pieces: u32,
    /// The call is in place, on the ranks where that means something.
    pub in_place: bool,
    /// Calls in a row.
    pub calls: u32,
    /// Whether links carry the peer's buffer in place of slots.
    pub direct: DirectAccess,
}

/// Which ends of links carry the peer's buffer in place of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectAccess {
    /// Who receives data reads the sender's input, at its own step's input chunk and piece.
    pub read: bool,
    /// Who sends data writes the receiver's output, at its own step's output chunk and piece. The receiver gets a
    /// signal.
    pub write: bool,
}

/// The call whose schedules are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedCall {
    /// The function.
    pub func: Func,
    /// The root; 0 where there is none.
    pub root: u32,
}

/// What is wrong with a set of schedules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The schedules do not belong together, or a step is malformed.
    #[error("{0}")]
    Malformed(String),
    /// Some ranks wait for each other for ever; one of them, and the link it waits for.
    #[error("deadlock: {blocked} ranks wait, e.g. rank {rank} for {link:?}")]
    Deadlock {
        /// Ranks (or halves of ranks) that wait.
        blocked: usize,
        /// One of them.
        rank: u32,
        /// The link it waits for.
        link: LinkId,
    },
    /// A rank uses a chunk of a buffer that it does not have, or that may be NULL.
    #[error("rank {rank} has no chunk {chunk} of its {buffer}")]
    NoBuffer {
        /// The rank whose buffer it is.
        rank: u32,
        /// The chunk.
        chunk: u32,
        /// `input` or `output`.
        buffer: &'static str,
    },
    /// A rank reads an output chunk that was not written.
    #[error("rank {rank} reads chunk {chunk} of its output before it is written")]
    Unwritten {
        /// The rank.
        rank: u32,
        /// The chunk.
        chunk: u32,
    },
    /// In place: a rank reads an input chunk after it was overwritten.
    #[error("rank {rank} reads chunk {chunk} of its input after it was overwritten")]
    Overwritten {
        /// The rank.
        rank: u32,
        /// The chunk.
        chunk: u32,
    },
    /// A step moves as many elements as one chunk has, but the data is another chunk's.
    #[error("rank {rank} moves chunk {chunk} as if it were chunk {as_chunk}")]
    Size {
        /// The rank.
        rank: u32,
        /// The chunk that the data is of.
        chunk: u32,
        /// The chunk that says how many elements move.
        as_chunk: u32,
    },
    /// Data is received by a step that expects a signal, or a signal by one that expects data.
    #[error("rank {rank} takes {link:?} for {took}, but it carries {carried}")]
    Signal {
        /// The rank.
        rank: u32,
        /// The link.
        link: LinkId,
        /// What the step expects.
        took: &'static str,
        /// What was sent.
        carried: &'static str,
    },
    /// Two ranks are at one place of a user's buffer, and nothing says who is first.
    #[error("rank {rank} is at the {buffer} of rank {owner} while rank {other} may be there")]
    Race {
        /// The rank that comes second in the run that was tried.
        rank: u32,
        /// The rank that comes first.
        other: u32,
        /// Whose buffer it is.
        owner: u32,
        /// `input` or `output`.
        buffer: &'static str,
    },
    /// A link has slots left in it.
    #[error("{link:?} is left with {left} slots filled")]
    NotDrained {
        /// The link.
        link: LinkId,
        /// Slots that nobody read.
        left: u64,
    },
    /// A result is not what the collective promises.
    #[error("rank {rank}, chunk {chunk}: {what}")]
    Wrong {
        /// The rank.
        rank: u32,
        /// The chunk.
        chunk: u32,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// Runs the schedules of all ranks of a collective, in the order of ranks, to the end: as often in a row as the
/// setting says.
///
/// # Errors
/// The first [`Fault`] that shows.
pub fn execute(call: SimulatedCall, schedules: &[Schedule], setting: Setting) -> Result<SimulationOutcome, Fault> {
    run_calls(&vec![(call, schedules); setting.calls as usize], setting)
}

/// Runs different calls in a row, each with the schedules of all ranks; [`Setting::calls`] does not matter.
///
/// # Errors
/// The first [`Fault`] that shows.
pub fn execute_calls(calls: &[(SimulatedCall, Vec<Schedule>)], setting: Setting) -> Result<SimulationOutcome, Fault> {
    let calls: Vec<(SimulatedCall, &[Schedule])> =
        calls.iter().map(|(call, schedules)| (*call, schedules.as_slice())).collect();
    run_calls(&calls, setting)
}

fn run_calls(calls: &[(SimulatedCall, &[Schedule])], setting: Setting) -> Result<SimulationOutcome, Fault> {
    let nranks = calls.first().map_or(0, |(_, schedules)| schedules.len());
    let mut run = Run::new(setting.slots, setting.direct);
    for rank in 0..nranks {
        let jobs = calls.iter().map(|(call, schedules)| job_of(*call, schedules, rank, setting));
        run.add(Actor::new(rank as u32, jobs.collect::<Result<_, _>>()?))?;
    }
    let finished = run.complete()?;
    Ok(SimulationOutcome { calls: calls.iter().map(|(call, _)| *call).collect(), pieces: setting.pieces, finished })
}

fn job_of<'a>(
    call: SimulatedCall,
    schedules: &'a [Schedule],
    rank: usize,
    setting: Setting,
) -> Result<ScheduleJob<'a>, Fault> {
    let malformed = |what: String| Err(Fault::Malformed(what));
    let Some(schedule) = schedules.get(rank) else { return malformed(format!("no schedule of rank {rank}")) };
    if schedule.nchunks != schedules[0].nchunks {
        return malformed(format!("rank {rank} has {} chunks", schedule.nchunks));
    }
    let layout = Layout::new(call.func, call.root, schedules.len() as u32, schedule, setting.in_place);
    Ok(ScheduleJob { schedule, layout, pieces: setting.pieces })
}

/// A message of a group of sends and receives, as one rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedMessage<'a> {
    /// One of [`super::point_to_point`]'s schedules.
    pub schedule: &'a Schedule,
    /// Pieces that the message is cut into.
    pub pieces: u32,
}

impl<'a> SimulatedMessage<'a> {
    fn job(self) -> ScheduleJob<'a> {
        let sends = self.schedule.steps.iter().any(|step| step.nsend > 0);
        let func = if sends { Func::Send } else { Func::Recv };
        let layout = Layout::new(func, 0, 2, self.schedule, false);
        ScheduleJob { schedule: self.schedule, layout, pieces: self.pieces }
    }
}

/// Runs lists of messages: every list belongs to the rank of its schedules and goes on by itself, so that a rank
/// can have one for what it sends and one for what it receives. The result has, by list and message, what the
/// pieces of its output hold.
///
/// # Errors
/// The first [`Fault`] that shows.
pub fn execute_messages(
    lists: &[Vec<SimulatedMessage<'_>>],
    slots: u32,
) -> Result<Vec<Vec<Vec<Option<Input>>>>, Fault> {
    let mut run = Run::new(slots, DirectAccess::default());
    for list in lists {
        let rank = list.first().map_or(0, |m| m.schedule.rank);
        run.add(Actor::new(rank, list.iter().map(|m| m.job()).collect()))?;
    }
    let finished = run.complete()?;
    let pieces = |cells: &Vec<_>| cells.iter().map(|cell| finished.input(*cell)).collect();
    Ok(finished.outputs.iter().map(|messages| messages.iter().map(pieces).collect()).collect())
}

#[cfg(test)]
mod tests;
