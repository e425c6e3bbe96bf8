//! What a finished run shows: whether every output holds what the collective promises.

use std::collections::HashSet;

use super::super::call::Func;
use super::super::schedule::LinkId;
use super::run::Finished;
use super::terms::{Input, Term, TermId};
use super::{Fault, SimulatedCall};

/// A finished run of collectives.
pub struct SimulationOutcome {
    /// One after the other.
    pub(super) calls: Vec<SimulatedCall>,
    pub(super) pieces: u32,
    pub(super) finished: Finished,
}

/// A sum that was proved on another rank before, as what it was proved: chunk, piece and call.
type Sum = (TermId, u32, u32, u32);

/// What a chunk of an output has to be.
enum Wanted {
    /// A chunk of one rank's input, unchanged.
    Copy { rank: u32, chunk: u32 },
    /// The reduction of this chunk of every rank's input, with `post` applied at the end.
    Sum { chunk: u32 },
}

impl SimulationOutcome {
    /// Proves that every chunk of every output holds what the function promises: the right input unchanged, or
    /// every rank's contribution exactly once, with `post` applied once, at the very end. After an AllReduce, all
    /// ranks have the same order of reduction, thus the same bits.
    ///
    /// What an output must not hold needs no proof here: a rank without output has nothing that a step could write
    /// ([`Fault::NoBuffer`]), and everything else in an output is wanted.
    ///
    /// # Errors
    /// [`Fault::Wrong`], naming the first chunk that is not so.
    pub fn prove(&self) -> Result<(), Fault> {
        let ranks = self.finished.ranks.iter();
        let mut known = HashSet::new();
        for (&rank, calls) in ranks.zip(&self.finished.outputs) {
            for (call, cells) in calls.iter().enumerate() {
                self.prove_output(rank, call as u32, cells, &mut known)?;
            }
        }
        let alike = |(i, call): (usize, &SimulatedCall)| {
            if call.func == Func::AllReduce { self.prove_alike(i) } else { Ok(()) }
        };
        self.calls.iter().enumerate().try_for_each(alike)
    }

    fn prove_output(
        &self,
        rank: u32,
        call: u32,
        cells: &[Option<TermId>],
        known: &mut HashSet<Sum>,
    ) -> Result<(), Fault> {
        let chunks = (cells.len() as u32 / self.pieces).max(1);
        for (i, cell) in cells.iter().enumerate() {
            let (piece, chunk) = (i as u32 / chunks, i as u32 % chunks);
            let wrong = |what| Fault::Wrong { rank, chunk, what };
            let id = cell.ok_or(wrong("never written"))?;
            match self.wanted(call, rank, chunk) {
                Wanted::Copy { rank, chunk } => self.prove_copy(id, Input { rank, chunk, piece, call }),
                Wanted::Sum { chunk } if known.insert((id, chunk, piece, call)) => {
                    self.prove_sum(id, chunk, piece, call)
                }
                Wanted::Sum { .. } => Ok(()),
            }
            .map_err(wrong)?;
        }
        Ok(())
    }

    fn wanted(&self, call: u32, rank: u32, chunk: u32) -> Wanted {
        let SimulatedCall { func, root } = self.calls[call as usize];
        match func {
            Func::AllReduce | Func::Reduce => Wanted::Sum { chunk },
            Func::ReduceScatter => Wanted::Sum { chunk: rank },
            Func::Broadcast | Func::Send | Func::Recv => Wanted::Copy { rank: root, chunk },
            Func::AllGather | Func::Gather => Wanted::Copy { rank: chunk, chunk: 0 },
            Func::AlltoAll => Wanted::Copy { rank: chunk, chunk: rank },
            Func::Scatter => Wanted::Copy { rank: root, chunk: rank },
        }
    }

    fn prove_copy(&self, id: TermId, wanted: Input) -> Result<(), &'static str> {
        match self.finished.terms.get(id) {
            Term::Input(input) if input == wanted => Ok(()),
            Term::Input(_) => Err("data of another rank, chunk, piece or call"),
            _ => Err("not an input unchanged"),
        }
    }

    fn prove_sum(&self, id: TermId, chunk: u32, piece: u32, call: u32) -> Result<(), &'static str> {
        let Term::Posted(sum) = self.finished.terms.get(id) else { return Err("not finished with post") };
        let inputs = self.finished.terms.inputs(sum).ok_or("post applied twice")?;
        let mut seen = vec![false; self.finished.ranks.len()];
        for input in inputs {
            if (input.chunk, input.piece, input.call) != (chunk, piece, call) {
                return Err("data of another chunk, piece or call");
            }
            match seen.get_mut(input.rank as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err("a contribution twice"),
            }
        }
        if seen.into_iter().all(|seen| seen) { Ok(()) } else { Err("a contribution is missing") }
    }

    /// Proves that a call's outputs are the same on all ranks.
    fn prove_alike(&self, call: usize) -> Result<(), Fault> {
        let outputs = self.finished.outputs.iter().map(|calls| &calls[call]);
        let first = &self.finished.outputs[0][call];
        let nchunks = (first.len() as u32 / self.pieces).max(1);
        for (&rank, cells) in self.finished.ranks.iter().zip(outputs) {
            if let Some(i) = cells.iter().zip(first).position(|(cell, first)| cell != first) {
                let what = "another value or order than on the first rank";
                return Err(Fault::Wrong { rank, chunk: i as u32 % nchunks, what });
            }
        }
        Ok(())
    }

    /// Slots that went over each link in each call and piece, signals included, where all calls are alike.
    pub fn carried(&self) -> impl Iterator<Item = (LinkId, u64)> {
        let times = self.calls.len() as u64 * u64::from(self.pieces);
        self.finished.posted.iter().map(move |(link, posted)| (*link, posted / times.max(1)))
    }

    /// Turns that all ranks took together.
    pub fn turns(&self) -> u64 {
        self.finished.turns
    }

    /// The order of reduction of a chunk of a rank's output: ranks from left to right.
    pub fn order(&self, rank: u32, chunk: u32) -> Vec<u32> {
        let inputs = self.sum(rank, chunk).and_then(|sum| self.finished.terms.inputs(sum));
        inputs.unwrap_or_default().iter().map(|input| input.rank).collect()
    }

    /// Whether a chunk of a rank's output was reduced as ((a + b) + c) + d, with no sums of sums.
    pub fn is_one_by_one(&self, rank: u32, chunk: u32) -> bool {
        self.sum(rank, chunk).is_some_and(|sum| self.finished.terms.is_one_by_one(sum))
    }

    /// The first piece of a chunk of the first call's result, without `post`.
    fn sum(&self, rank: u32, chunk: u32) -> Option<TermId> {
        let actor = self.finished.ranks.iter().position(|r| *r == rank)?;
        let id = (*self.finished.outputs[actor].first()?.get(chunk as usize)?)?;
        match self.finished.terms.get(id) {
            Term::Posted(sum) => Some(sum),
            _ => Some(id),
        }
    }
}
