//! The buffers of a call: what they hold before, and whether they hold afterwards what they must.

use std::collections::HashMap;
use std::ffi::c_int;

use crate::common::collectives;
use crate::common::contract::{Block, Content, Contract, Source};
use crate::common::oracle::{DataType, Pattern};
use crate::plan::Call;
use crate::rank::Libraries;

/// Elements after which data repeat: a prime.
const PERIOD: usize = 1021;
/// What memory holds that nothing was written to.
const POISON: u8 = 0xa5;

/// Patterns that were made: making them is slow.
#[derive(Default)]
pub struct Patterns(HashMap<(Content, Option<usize>), Pattern>);

impl Patterns {
    /// What a rank gives; without one, what a reduction gives.
    fn get(&mut self, content: Content, rank: Option<usize>) -> &Pattern {
        let make = || rank.map_or_else(|| content.reduced(PERIOD), |rank| content.input(rank, PERIOD));
        self.0.entry((content, rank)).or_insert_with(make)
    }
}

/// Memory that must hold data of a kind, from a place in its pattern on.
struct Expected {
    buffer: u64,
    bytes: usize,
    content: Content,
    rank: Option<usize>,
    phase: usize,
}

/// What a rank calls in a round.
pub struct Prepared {
    libraries: &'static Libraries,
    actions: Vec<Action>,
    expected: Vec<Expected>,
    memory: Vec<u64>,
}

enum Action {
    Call(collectives::Call, (u64, u64)),
    Send { to: usize, bytes: usize, buffer: u64 },
    Recv { from: usize, bytes: usize, buffer: u64 },
}

impl Prepared {
    pub fn new(libraries: &'static Libraries) -> Prepared {
        Prepared { libraries, actions: Vec::new(), expected: Vec::new(), memory: Vec::new() }
    }

    /// Adds a call of this rank's, with its buffers.
    pub fn add(&mut self, patterns: &mut Patterns, call: &Call, (nranks, rank): (usize, usize), phase: usize) {
        match call {
            Call::Collective { func, count, content, root } => {
                let contract = Contract { func: *func, nranks, root: *root, rank };
                let (count, content) = (*count, *content);
                let size = content.dtype.size();
                let send = self.filled(patterns.get(content, Some(rank)), contract.sends() * count * size, phase);
                let output = contract.output();
                let recv = self.alloc(output.len() * count * size);
                for (at, Block { source, block }) in output.iter().enumerate() {
                    let rank = if let Source::Rank(rank) = source { Some(*rank) } else { None };
                    let (buffer, bytes) = (recv + (at * count * size) as u64, count * size);
                    self.expected.push(Expected { buffer, bytes, content, rank, phase: phase + block * count });
                }
                // In place: the root sends what all receive.
                if *func == crate::common::contract::Func::Bcast && rank == *root {
                    self.fill(patterns.get(content, Some(rank)), recv, count * size, phase);
                }
                let op = content.operator.map_or(0, |op| match op {
                    crate::common::contract::Operator::Plain(op) => op as c_int,
                    crate::common::contract::Operator::PreMulSum { .. } => unreachable!("no plan has it"),
                });
                let call =
                    collectives::Call { func: *func, count, dtype: content.dtype as c_int, op, root: *root as c_int };
                self.actions.push(Action::Call(call, (send, recv)));
            }
            Call::Messages(messages) => {
                for (from, to, bytes) in messages {
                    self.message(patterns, (*from, *to, *bytes), (nranks, rank), phase);
                }
            }
        }
    }

    fn message(
        &mut self,
        patterns: &mut Patterns,
        (from, to, bytes): (usize, usize, usize),
        (nranks, rank): (usize, usize),
        phase: usize,
    ) {
        let content = Content { dtype: DataType::Uint8, operator: None, nranks };
        let phase = phase + to;
        if from == rank {
            let buffer = self.filled(patterns.get(content, Some(from)), bytes, phase);
            self.actions.push(Action::Send { to, bytes, buffer });
        }
        if to == rank {
            let buffer = self.alloc(bytes);
            self.actions.push(Action::Recv { from, bytes, buffer });
            self.expected.push(Expected { buffer, bytes, content, rank: Some(from), phase });
        }
    }

    fn alloc(&mut self, bytes: usize) -> u64 {
        let cuda = &self.libraries.cuda;
        let buffer = cuda.alloc(bytes.max(1)).expect("memory");
        cuda.fill(buffer, POISON, bytes.max(1)).expect("a fill");
        self.memory.push(buffer);
        buffer
    }

    fn fill(&self, pattern: &Pattern, buffer: u64, bytes: usize, phase: usize) {
        let mut host = vec![0; bytes];
        pattern.fill(&mut host, phase);
        self.libraries.cuda.copy_to_device(buffer, &host).expect("a copy");
    }

    fn filled(&mut self, pattern: &Pattern, bytes: usize, phase: usize) -> u64 {
        let buffer = self.alloc(bytes);
        self.fill(pattern, buffer, bytes, phase);
        buffer
    }

    /// How many actions there are: messages must be in a group.
    pub fn has_messages(&self) -> bool {
        self.actions.iter().any(|action| !matches!(action, Action::Call(..)))
    }

    /// Makes all calls; the first failure ends it.
    pub fn submit(&self, mut each: impl FnMut(&Submit) -> bool) {
        for action in &self.actions {
            if !each(&Submit(action)) {
                return;
            }
        }
    }

    /// What is wrong in what the calls have written.
    pub fn wrong(&self, patterns: &mut Patterns) -> Option<String> {
        self.expected.iter().find_map(|expected| {
            let mut host = vec![0; expected.bytes];
            self.libraries.cuda.copy_to_host(&mut host, expected.buffer).expect("a copy");
            let pattern = patterns.get(expected.content, expected.rank);
            let count = pattern.count_wrong(&host, expected.phase);
            let (at, got, want) = pattern.first_wrong(&host, expected.phase)?;
            let Expected { bytes, content, rank, .. } = expected;
            Some(format!(
                "{count} of {bytes} bytes' elements ({:?} of {rank:?}) are wrong, from element {at} on: {got:02x?} \
                 instead of {want:02x?}",
                content.dtype
            ))
        })
    }
}

/// An action, to be carried out.
pub struct Submit<'a>(&'a Action);

impl Submit<'_> {
    /// Calls the function.
    pub fn call(
        &self,
        libraries: &Libraries,
        comm: crate::common::abi::Comm,
        stream: crate::common::cuda::Stream,
    ) -> Result<(), crate::common::nccl::Failure> {
        let calls = &libraries.collectives;
        let byte = DataType::Uint8;
        // SAFETY: the buffers are that large, and live until the round is over, whatever becomes of it.
        unsafe {
            match *self.0 {
                Action::Call(call, buffers) => calls.call(call, buffers, comm, stream.0),
                Action::Send { to, bytes, buffer } => calls.send(buffer, (bytes, byte), to as c_int, comm, stream.0),
                Action::Recv { from, bytes, buffer } => {
                    calls.recv(buffer, (bytes, byte), from as c_int, comm, stream.0)
                }
            }
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        for buffer in &self.memory {
            // SAFETY: the stream has been waited for.
            let _ = unsafe { self.libraries.cuda.free(*buffer) };
        }
    }
}
