//! A rank's user buffers, as the executor knows them.

use super::super::call::Func;
use super::super::schedule::Schedule;
use super::super::shape::{self, InPlace, Shape};
use super::terms::{Input, Term, TermId, Terms};

/// What a cell holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub value: Option<TermId>,
    /// By a step: before, it holds what the user left there.
    pub written: bool,
}

/// Which memory cell is which chunk, for one rank and call. A cell is one piece of one chunk.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Cells by chunk of the input; empty: the rank has no input.
    input: Vec<usize>,
    /// Cells by chunk of the output; empty: the rank has no output.
    output: Vec<usize>,
    /// Cells of one piece.
    cells: usize,
    /// Chunks differ in size: data of one cannot be moved as if it were another.
    pub divided: bool,
}

impl Layout {
    pub fn new(func: Func, root: u32, nranks: u32, schedule: &Schedule, in_place: bool) -> Layout {
        let rank = schedule.rank;
        let shape = shape::shape(func, nranks);
        let (inputs, outputs) = match shape {
            Shape::Divided => (schedule.nchunks, schedule.nchunks),
            Shape::Uniform { input, output } => (input, output),
        };
        let inputs = if shape::has_input(func, root, rank) { inputs as usize } else { 0 };
        let outputs = if shape::has_output(func, root, rank) { outputs as usize } else { 0 };
        let mut layout = Layout {
            input: (0..inputs).collect(),
            output: (inputs..inputs + outputs).collect(),
            cells: inputs + outputs,
            divided: shape == Shape::Divided,
        };
        if in_place && inputs > 0 && outputs > 0 {
            match shape::in_place(func, rank) {
                InPlace::Never => (),
                InPlace::Whole => layout.output.clone_from(&layout.input),
                InPlace::InputIs(chunk) => layout.input[0] = layout.output[chunk as usize],
                InPlace::OutputIs(chunk) => layout.output[0] = layout.input[chunk as usize],
            }
        }
        layout
    }

    /// The cell of a chunk of the input.
    pub fn input(&self, piece: u32, chunk: u32) -> Option<usize> {
        Some(piece as usize * self.cells + self.input.get(chunk as usize)?)
    }

    /// The cell of a chunk of the output.
    pub fn output(&self, piece: u32, chunk: u32) -> Option<usize> {
        Some(piece as usize * self.cells + self.output.get(chunk as usize)?)
    }

    /// All cells of some pieces: the input filled in for a call, all else unwritten.
    pub fn fresh(&self, terms: &mut Terms, rank: u32, call: u32, pieces: u32) -> Vec<Cell> {
        let mut cells = vec![Cell::default(); pieces as usize * self.cells];
        for piece in 0..pieces {
            for chunk in 0..self.input.len() as u32 {
                if let Some(cell) = self.input(piece, chunk) {
                    cells[cell].value = Some(terms.id(Term::Input(Input { rank, chunk, piece, call })));
                }
            }
        }
        cells
    }

    /// The cells of the output, by piece and chunk.
    pub fn outputs_of(&self, pieces: u32) -> impl Iterator<Item = usize> {
        (0..pieces as usize).flat_map(move |piece| self.output.iter().map(move |cell| piece * self.cells + cell))
    }
}
