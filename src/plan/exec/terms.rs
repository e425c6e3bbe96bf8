//! Values as names: whose input, and what was added to what in which order.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A term by number. Equal terms have equal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TermId(u32);

/// A rank's own input, before anything was done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Input {
    /// The rank.
    pub rank: u32,
    /// The chunk of its input.
    pub chunk: u32,
    /// The piece of the chunk.
    pub piece: u32,
    /// The call, counted from 0 for each rank.
    pub call: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Term {
    Input(Input),
    /// Left, then right.
    Reduced(TermId, TermId),
    /// What `post` was applied to.
    Posted(TermId),
    /// A signal: no data.
    Nothing,
}

/// Multiplies and folds: keys are not an attacker's, and the usual hasher takes most of a run's time.
#[derive(Default)]
pub(super) struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        let product = u128::from(self.0 ^ n ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }
}

/// All terms of a run; each is kept once.
pub(super) struct Terms {
    list: Vec<Term>,
    ids: HashMap<Term, TermId, BuildHasherDefault<Folded>>,
}

impl Terms {
    /// The signal, in every run.
    pub const NOTHING: TermId = TermId(0);

    pub fn new() -> Terms {
        let mut terms = Terms { list: Vec::new(), ids: HashMap::default() };
        // The first one gets number 0.
        terms.id(Term::Nothing);
        terms
    }

    pub fn id(&mut self, term: Term) -> TermId {
        let list = &mut self.list;
        *self.ids.entry(term).or_insert_with(|| {
            list.push(term);
            TermId(list.len() as u32 - 1)
        })
    }

    pub fn get(&self, id: TermId) -> Term {
        self.list[id.0 as usize]
    }

    /// The inputs of a term from left to right. `None` where `post` was applied in it, or a signal reduced.
    pub fn inputs(&self, id: TermId) -> Option<Vec<Input>> {
        let (mut inputs, mut open) = (Vec::new(), vec![id]);
        while let Some(id) = open.pop() {
            match self.get(id) {
                Term::Reduced(left, right) => open.extend([right, left]),
                Term::Input(input) => inputs.push(input),
                Term::Posted(_) | Term::Nothing => return None,
            }
        }
        Some(inputs)
    }

    /// Whether a term is ((a + b) + c) + d: one input after the other, with no sums of sums.
    pub fn is_one_by_one(&self, id: TermId) -> bool {
        let mut at = id;
        while let Term::Reduced(left, right) = self.get(at) {
            if !matches!(self.get(right), Term::Input(_)) {
                return false;
            }
            at = left;
        }
        matches!(self.get(at), Term::Input(_))
    }
}
