//! A rank's schedule: its steps and the links they use. Made once per communicator and kind of call.

use serde::{Deserialize, Serialize};

use super::layout::{MAX_FAN, Proto, Step, step_flag};
use crate::error::Error;

/// A link: one direction between two ranks. Both ends give it the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LinkId {
    /// The rank that sends.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// What it serves.
    pub class: LinkClass,
    /// How its slots carry data.
    pub proto: Proto,
    /// The channel; links of one channel are used by one block of a launch.
    pub channel: u32,
}

/// What a link serves. Links of different classes never share slots, so that what runs at the same time cannot
/// get into each other's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LinkClass {
    /// Collectives along the ring: from each rank to the next, with large slots.
    Ring,
    /// Collectives along the trees, with small slots: from each rank to its parents and children.
    Tree,
    /// Collectives by PAT, with small slots: between ranks that are a power of two apart in the ring.
    Pat,
    /// Direct collectives, with small slots: between any two ranks.
    Direct,
    /// Sends and receives, between any two ranks.
    Peer,
    /// Hierarchical collectives, with small slots: in a host, and between ranks of two hosts that stand for them.
    Hierarchical,
}

impl LinkClass {
    /// All classes.
    pub const ALL: [LinkClass; 6] =
        [LinkClass::Ring, LinkClass::Tree, LinkClass::Pat, LinkClass::Direct, LinkClass::Peer, LinkClass::Hierarchical];
    /// Those of collectives.
    pub const COLLECTIVE: [LinkClass; 5] =
        [LinkClass::Ring, LinkClass::Tree, LinkClass::Pat, LinkClass::Direct, LinkClass::Hierarchical];
}

impl LinkId {
    /// The Simple link of the first channel between two ranks.
    pub fn new(class: LinkClass, from: u32, to: u32) -> LinkId {
        LinkId { from, to, class, proto: Proto::Simple, channel: 0 }
    }
}

/// What one rank does: steps for a kernel, and the links that they name by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The rank whose schedule this is.
    pub rank: u32,
    /// The class of all its links.
    pub class: LinkClass,
    /// Chunks that the data is divided into; equal on all ranks.
    pub nchunks: u32,
    /// Slots that a link must have, or the ranks wait for each other for ever.
    pub slots: u32,
    /// The steps, which run in this order for every piece.
    pub steps: Vec<Step>,
    /// The links; [`Step::recv`] and [`Step::send`] are indices into this list.
    pub links: Vec<LinkId>,
}

/// One step as an algorithm writes it down: ranks, not link indices.
#[derive(Clone, Copy, Debug, Default)]
pub struct Draft<'a> {
    /// [`step_flag`]s.
    pub flags: u8,
    /// Ranks to receive from, in the order of reduction.
    pub recv: &'a [u32],
    /// Ranks to send to.
    pub send: &'a [u32],
    /// Where among the sources the own chunk stands.
    pub place: u8,
    /// The chunk of the input.
    pub in_chunk: u32,
    /// The chunk of the output.
    pub out_chunk: u32,
    /// How often the step runs; 0 leaves the step out.
    pub repeat: u32,
    /// What is added to both chunk numbers each time.
    pub stride: i16,
}

impl Draft<'_> {
    /// A step that runs once.
    pub const ONCE: Draft<'static> =
        Draft { flags: 0, recv: &[], send: &[], place: 0, in_chunk: 0, out_chunk: 0, repeat: 1, stride: 0 };

    /// The same chunk number on both sides.
    pub fn chunk(self, chunk: u32) -> Self {
        Draft { in_chunk: chunk, out_chunk: chunk, ..self }
    }
}

impl Schedule {
    /// An empty schedule of `rank`. `slots` is what [`Schedule::slots`] says.
    pub fn new(rank: u32, class: LinkClass, nchunks: u32, slots: u32) -> Schedule {
        Schedule { rank, class, nchunks, slots, steps: Vec::new(), links: Vec::new() }
    }

    /// Appends a step, and the links that are new with it.
    ///
    /// # Errors
    /// [`Error::Internal`] where the draft does not fit a [`Step`].
    pub fn push(&mut self, draft: Draft<'_>) -> Result<(), Error> {
        if draft.repeat == 0 {
            return Ok(());
        }
        let too_big = |what: &str, n: usize| Error::Internal(format!("schedule of rank {}: {what} {n}", self.rank));
        if draft.recv.len().max(draft.send.len()) > MAX_FAN {
            return Err(too_big("links of one step:", draft.recv.len().max(draft.send.len())));
        }
        let repeat = u16::try_from(draft.repeat).map_err(|_| too_big("repetitions:", draft.repeat as usize))?;
        let mut step = Step {
            flags: draft.flags,
            nrecv: draft.recv.len() as u8,
            nsend: draft.send.len() as u8,
            place: draft.place,
            repeat,
            stride: draft.stride,
            in_chunk: draft.in_chunk,
            out_chunk: draft.out_chunk,
            ..Step::default()
        };
        for (index, &from) in step.recv.iter_mut().zip(draft.recv) {
            *index = self.link(LinkId::new(self.class, from, self.rank))?;
        }
        for (index, &to) in step.send.iter_mut().zip(draft.send) {
            *index = self.link(LinkId::new(self.class, self.rank, to))?;
        }
        self.steps.push(step);
        Ok(())
    }

    /// Appends a step once for each of some chunks, in their order, with as few steps as repetitions allow.
    ///
    /// # Errors
    /// As [`Schedule::push`].
    pub fn push_run(&mut self, draft: Draft<'_>, chunks: impl Iterator<Item = u32>) -> Result<(), Error> {
        let chunks: Vec<u32> = chunks.collect();
        let n = i64::from(self.nchunks.max(1));
        // The shorter way around, which fits a step's stride for longer.
        let stride = |from: u32, to: u32| {
            let ahead = (i64::from(to) - i64::from(from)).rem_euclid(n);
            i16::try_from(if ahead * 2 > n { ahead - n } else { ahead }).ok()
        };
        let mut at = 0;
        while let Some(&first) = chunks.get(at) {
            let by = chunks.get(at + 1).and_then(|&second| stride(first, second));
            let more =
                chunks[at..].windows(2).take_while(|pair| by.is_some() && stride(pair[0], pair[1]) == by).count();
            let repeat = (more + 1).min(usize::from(u16::MAX));
            self.push(
                Draft { repeat: repeat as u32, stride: by.filter(|_| repeat > 1).unwrap_or(0), ..draft }.chunk(first),
            )?;
            at += repeat;
        }
        Ok(())
    }

    /// The index of a link, which is added where it is new.
    fn link(&mut self, id: LinkId) -> Result<u8, Error> {
        let index = self.links.iter().position(|&l| l == id).unwrap_or_else(|| {
            self.links.push(id);
            self.links.len() - 1
        });
        u8::try_from(index).map_err(|_| Error::Internal(format!("schedule of rank {}: over 256 links", self.rank)))
    }

    /// Checks all that a kernel takes on trust, before the schedule is loaded to a device whose links have
    /// `slots` slots.
    ///
    /// # Errors
    /// [`Error::Internal`], naming the step and what is wrong with it.
    pub fn check(&self, slots: u32) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Internal(format!("schedule of rank {}: {text}", self.rank)));
        if self.slots > slots {
            return refuse(format!("needs links of {} slots, there are {slots}", self.slots));
        }
        if self.nchunks == 0 || self.nchunks > i32::MAX as u32 {
            return refuse(format!("{} chunks", self.nchunks));
        }
        for (i, step) in self.steps.iter().enumerate() {
            if let Some(fault) = self.fault(step) {
                return refuse(format!("step {i}: {fault}"));
            }
        }
        Ok(())
    }

    /// What is wrong with a step.
    fn fault(&self, step: &Step) -> Option<&'static str> {
        let own = |f: u8| step.flags & f != 0;
        let (recv, send) = (usize::from(step.nrecv), usize::from(step.nsend));
        if recv > MAX_FAN || send > MAX_FAN {
            return Some("too many links");
        }
        let link = |&i: &u8| self.links.get(usize::from(i));
        if !step.recv[..recv].iter().all(|i| link(i).is_some_and(|l| l.to == self.rank)) {
            return Some("receives from a link that does not end here");
        }
        if !step.send[..send].iter().all(|i| link(i).is_some_and(|l| l.from == self.rank)) {
            return Some("sends to a link that does not begin here");
        }
        let stride = u32::from(step.stride.unsigned_abs());
        if step.in_chunk >= self.nchunks || step.out_chunk >= self.nchunks || stride >= self.nchunks.max(2) {
            return Some("a chunk that does not exist");
        }
        if step.repeat == 0 || step.place > step.nrecv {
            return Some("malformed");
        }
        if !own(step_flag::NO_DATA) && recv + usize::from(own(step_flag::IN)) == 0 {
            return Some("has no source");
        }
        if own(step_flag::FROM_OUT) && !own(step_flag::IN) {
            return Some("reads the output without being told to read");
        }
        None
    }
}
