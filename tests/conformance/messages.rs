//! Messages from rank to rank by Send and Recv.

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::common::contract::{Content, Source};
use crate::common::oracle::DataType;
use crate::member::{Action, Item, Member, POISON, Part, Prepared, STREAMS};

/// One message; both ends know it.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub from: usize,
    pub to: usize,
    pub count: usize,
    pub dtype: DataType,
    /// Where in the sender's pattern it begins.
    pub phase: usize,
    /// Elements by which the buffers are off a cache line.
    pub offsets: (usize, usize),
    pub stream: usize,
}

impl Message {
    /// A message between two of `n` ranks, to itself among them; `most` is the largest count.
    pub fn random(rng: &mut SmallRng, n: usize, most: usize) -> Message {
        let dtype = DataType::all().nth(rng.random_range(0..12)).expect("there are twelve");
        let offset = |rng: &mut SmallRng| rng.random_range(0..64 / dtype.size());
        let count = match rng.random_range(0..4u32) {
            0 => rng.random_range(0..4),
            1 => rng.random_range(0..=most),
            _ => rng.random_range(0..=most.min(600)),
        };
        Message {
            from: rng.random_range(0..n),
            to: rng.random_range(0..n),
            count,
            dtype,
            phase: rng.random_range(0..1021),
            offsets: (offset(rng), offset(rng)),
            stream: rng.random_range(0..STREAMS),
        }
    }

    /// Bytes from one rank to another, aligned, on the first stream.
    pub fn bytes((from, to): (usize, usize), count: usize, phase: usize) -> Message {
        Message { from, to, count, dtype: DataType::Uint8, phase, offsets: (0, 0), stream: 0 }
    }

    /// The calls that this rank makes for it.
    pub fn prepare(&self, member: &mut Member) -> Vec<Prepared> {
        let mut calls = Vec::new();
        if ![self.from, self.to].contains(&member.rank) {
            return calls;
        }
        let what = (self.count, self.dtype);
        let call = |action, region| Prepared {
            item: Item::Message(*self),
            action,
            buffers: (0, 0),
            scalar: 0,
            operator: None,
            regions: vec![region],
            stream: self.stream,
            title: format!("{self:?}"),
            size: self.dtype.size(),
        };
        if self.from == member.rank {
            let region = member.region(&self.part(member, true));
            calls.push(call(Action::Send { peer: self.to as i32, what, buffer: region.address() }, region));
        }
        if self.to == member.rank {
            let region = member.region(&self.part(member, false));
            calls.push(call(Action::Recv { peer: self.from as i32, what, buffer: region.address() }, region));
        }
        calls
    }

    /// The buffer of one end.
    pub fn part(&self, member: &Member, sent: bool) -> Part {
        let size = self.dtype.size();
        let mut after = vec![0; self.count * size];
        let content = Content { dtype: self.dtype, operator: None, nranks: member.nranks };
        member.tile(content, Source::Rank(self.from)).fill(&mut after, self.phase);
        if sent {
            return Part { name: "message sent", offset: self.offsets.0 * size, before: after.clone(), after };
        }
        Part { name: "message received", offset: self.offsets.1 * size, before: vec![POISON; after.len()], after }
    }
}
