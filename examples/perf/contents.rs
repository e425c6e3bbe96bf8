//! What the buffers of a call hold before it, and what they must hold afterwards.

use std::collections::HashMap;
use std::rc::Rc;

use crate::common::contract::{Content, Contract, Source};
use crate::common::cuda::Cuda;
use crate::common::oracle::{PERIOD, Pattern};
use crate::orders::{Case, to_hex};
use crate::subject::Subject;
use crate::worker::Outcome;

/// Bytes that are written or compared at a time, so that checking needs little memory.
const CHUNK: usize = 8 << 20;
/// What output buffers hold before a checked call: no pattern has it for long.
const POISON: u8 = 0xa5;

/// A part of a buffer, and what it holds.
struct Piece {
    name: &'static str,
    start: u64,
    bytes: usize,
    pattern: Rc<Pattern>,
    phase: usize,
}

/// One rank's side of a call.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    pub case: Case,
    pub nranks: usize,
    pub rank: usize,
    /// Addresses of the two buffers.
    pub buffers: (u64, u64),
}

impl Side {
    fn block(&self) -> usize {
        self.case.count * self.case.dtype().size()
    }

    fn contract(&self) -> Option<Contract> {
        let func = self.case.subject.func()?;
        Some(Contract { func, nranks: self.nranks, root: self.case.root, rank: self.rank })
    }

    /// The neighbours of the exchange: to whom, from whom.
    pub fn neighbours(&self) -> (usize, usize) {
        ((self.rank + 1) % self.nranks, (self.rank + self.nranks - 1) % self.nranks)
    }

    /// The addresses that the call gets.
    pub fn arguments(&self) -> (u64, u64) {
        let (send, recv) = self.buffers;
        match self.contract() {
            Some(contract) if self.case.in_place => {
                let (send_at, recv_at) = contract.in_place();
                (recv + (send_at * self.block()) as u64, recv + (recv_at * self.block()) as u64)
            }
            _ => (send, recv),
        }
    }

    /// Blocks that the call reads, and what it writes, in the order of its receive buffer.
    fn roles(&self) -> (usize, Vec<(Source, usize)>) {
        match self.contract() {
            Some(contract) => {
                let output = contract.output().into_iter().map(|block| (block.source, block.block));
                (contract.sends(), output.collect())
            }
            None => (1, vec![(Source::Rank(self.neighbours().1), 0)]),
        }
    }
}

/// Patterns that were made: making them takes longer than using them.
#[derive(Default)]
pub struct Contents {
    known: HashMap<(Content, Option<usize>), Rc<Pattern>>,
}

impl Contents {
    fn pattern(&mut self, content: Content, source: Source) -> Rc<Pattern> {
        let rank = if let Source::Rank(rank) = source { Some(rank) } else { None };
        let make = || Rc::new(rank.map_or_else(|| content.reduced(PERIOD), |rank| content.input(rank, PERIOD)));
        Rc::clone(self.known.entry((content, rank)).or_insert_with(make))
    }

    fn input(&mut self, side: &Side, phase: usize) -> Piece {
        let pattern = self.pattern(side.case.content(side.nranks), Source::Rank(side.rank));
        Piece { name: "input", start: side.arguments().0, bytes: side.roles().0 * side.block(), pattern, phase }
    }

    /// Writes known data to the input, and other data to the output.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn write(&mut self, cuda: &Cuda, side: &Side, phase: usize) -> Outcome<()> {
        let text = |failure: crate::common::cuda::Failure| failure.to_string();
        cuda.fill(side.buffers.1, POISON, side.block() * side.case.subject.blocks(side.nranks)).map_err(text)?;
        let input = self.input(side, phase);
        let mut staging = vec![0; input.bytes.min(CHUNK)];
        let size = side.case.dtype().size();
        for at in (0..input.bytes).step_by(CHUNK) {
            let part = &mut staging[..CHUNK.min(input.bytes - at)];
            input.pattern.fill(part, phase + at / size);
            cuda.copy_to_device(input.start + at as u64, part).map_err(text)?;
        }
        Ok(())
    }

    /// Compares output and input with what they must be; adds to the number of wrong elements, and keeps the first.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn compare(
        &mut self,
        cuda: &Cuda,
        side: &Side,
        phase: usize,
        total: &mut (usize, Option<String>),
    ) -> Outcome<()> {
        let (content, (_, output)) = (side.case.content(side.nranks), side.roles());
        let mut start = side.arguments().1;
        let mut pieces = Vec::new();
        for (source, block) in &output {
            let pattern = self.pattern(content, *source);
            let phase = phase + block * side.case.count;
            pieces.push(Piece { name: "output", start, bytes: side.block(), pattern, phase });
            start += side.block() as u64;
        }
        if !side.case.in_place {
            pieces.push(self.input(side, phase));
            if output.is_empty() {
                // This rank gets nothing: its buffer stays as it was.
                let pattern = Rc::new(Pattern::of(content.dtype.size(), 1, |_| u64::from_ne_bytes([POISON; 8])));
                pieces.push(Piece {
                    name: "unused output",
                    start: side.buffers.1,
                    bytes: side.block(),
                    pattern,
                    phase: 0,
                });
            }
        }
        pieces.iter().try_for_each(|piece| compare_piece(cuda, side, piece, total))
    }
}

fn compare_piece(cuda: &Cuda, side: &Side, piece: &Piece, total: &mut (usize, Option<String>)) -> Outcome<()> {
    let size = side.case.dtype().size();
    let mut staging = vec![0; piece.bytes.min(CHUNK)];
    for at in (0..piece.bytes).step_by(CHUNK) {
        let part = &mut staging[..CHUNK.min(piece.bytes - at)];
        cuda.copy_to_host(part, piece.start + at as u64).map_err(|failure| failure.to_string())?;
        let phase = piece.phase + at / size;
        total.0 += piece.pattern.count_wrong(part, phase);
        if total.1.is_none() {
            total.1 = piece.pattern.first_wrong(part, phase).map(|(index, got, want)| {
                let index = at / size + index;
                let subject = if side.case.subject == Subject::AllReduce { "" } else { side.case.subject.word() };
                let name = format!("{subject} rank {} {}", side.rank, piece.name);
                format!("{}[{index}] is {}, not {}", name.trim_start(), bits(&got), bits(&want))
            });
        }
    }
    Ok(())
}

/// An element's bits, the highest first.
fn bits(bytes: &[u8]) -> String {
    let high_first: Vec<u8> = bytes.iter().rev().copied().collect();
    format!("0x{}", to_hex(&high_first))
}
