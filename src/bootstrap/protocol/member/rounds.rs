//! Exchanges that all go round the ring, as NCCL's do (`OXCCL_BOOTSTRAP_ALGO=ring`): in each of `n - 1` rounds every
//! rank passes one block on to the next rank. Blocks come in the order of the ring, the previous rank's first.

use std::sync::Arc;

use super::super::roots::Algorithm;
use super::super::wire::{Decoder, Encoder, FrameKind, HEADER, Malformed};
use super::super::{MAX_BLOCK, ranks};
use super::gather::{GatherStage, PIECE};
use super::{Failure, Link, Member, Role};

/// An exchange.
pub(super) struct RingRounds {
    blocks: Vec<Vec<u8>>,
    /// The rank whose block comes next, or has come in part.
    origin: u32,
    /// The rank whose block comes last.
    next: u32,
    /// Blocks that have not come.
    left: u32,
}

impl RingRounds {
    /// Whether the next rank's block has not come yet: it comes last.
    pub(super) fn awaits_next(&self) -> bool {
        self.left > 0
    }

    /// Why an exchange is late: whose blocks are missing.
    pub(super) fn late(&self, rank: u32, nranks: u32, seconds: f32) -> Failure {
        let mut missing: Vec<u32> = (0..self.left).map(|far| (self.origin + nranks - far) % nranks).collect();
        missing.sort_unstable();
        let culprit = if missing.len() == 1 { Some(missing[0]) } else { None };
        let text = format!("rank {rank} has waited {seconds} s for the blocks of {}", ranks::name(&missing));
        Failure::timeout(culprit, text)
    }
}

/// A piece of a block.
struct RoundPiece<'a> {
    sequence: u64,
    origin: u32,
    /// The size of the whole block.
    size: usize,
    data: &'a [u8],
}

impl<'a> RoundPiece<'a> {
    fn encode(&self) -> Arc<[u8]> {
        let encoder = Encoder::new(FrameKind::Round, 16 + self.data.len()).u64(self.sequence).u32(self.origin);
        encoder.u32(self.size as u32).raw(self.data).finish()
    }

    fn decode(payload: &'a [u8]) -> Result<RoundPiece<'a>, Malformed> {
        let mut decoder = Decoder(payload);
        let (sequence, origin, size) = (decoder.u64()?, decoder.u32()?, decoder.u32()? as usize);
        let data = decoder.0;
        if size > MAX_BLOCK || data.len() > size || (data.is_empty() && size > 0) {
            return Err(Malformed(format!("{} bytes of a block of {size}", data.len())));
        }
        Ok(RoundPiece { sequence, origin, size, data })
    }
}

/// Reads bytes as a piece, for tests of garbage.
#[cfg(test)]
pub(super) fn decode_as_anything(bytes: &[u8]) {
    let _ = RoundPiece::decode(bytes);
}

impl Member {
    /// Whether all exchanges go round the ring; one rank alone exchanges nothing.
    pub(super) fn goes_round(&self) -> bool {
        self.config.algorithm == Algorithm::Ring && self.config.nranks > 1
    }

    pub(super) fn next_has_answered(&self) -> bool {
        let link = self.gather.next.and_then(|conn| self.links.get(&conn));
        matches!(link, Some(Link { role: Role::Out(_, _, true), .. }))
    }

    /// Begins an exchange.
    pub(super) fn begin_rounds(&mut self, own: Vec<u8>) {
        let (rank, nranks) = (self.config.rank, self.config.nranks);
        let mut blocks = vec![Vec::new(); nranks as usize];
        if nranks == 1 {
            return self.gathered(vec![own]);
        }
        let (sequence, size) = (self.gather.sequence, own.len());
        let piece = |data| RoundPiece { sequence, origin: rank, size, data }.encode();
        match own.is_empty() {
            true => self.gather.queue.push_back(piece(&[])),
            false => self.gather.queue.extend(own.chunks(PIECE).map(piece)),
        }
        blocks[rank as usize] = own;
        let (origin, next) = ((rank + nranks - 1) % nranks, (rank + 1) % nranks);
        self.gather.stage = GatherStage::Rounds(RingRounds { blocks, origin, next, left: nranks - 1 });
        self.ring_flush();
        for payload in std::mem::take(&mut self.gather.early) {
            if let Err(bad) = self.round_piece(payload) {
                return self.fail_with(&Failure::remote(Some(origin), format!("{} sent {bad}", self.name(origin))));
            }
        }
    }

    /// A piece of a block from the previous rank: kept, and passed on unless the next rank made it.
    pub(super) fn round_piece(&mut self, payload: Vec<u8>) -> Result<(), Malformed> {
        let RoundPiece { sequence, origin, size, data } = RoundPiece::decode(&payload)?;
        let current = self.gather.sequence;
        if sequence < current || self.gather.is_refused(sequence) {
            // The previous rank did not know yet that this exchange was refused.
            return Ok(());
        }
        let GatherStage::Rounds(rounds) = &mut self.gather.stage else {
            return self.come_early(sequence, payload);
        };
        if sequence > current {
            return self.come_early(sequence, payload);
        }
        let block = &mut rounds.blocks[rounds.origin as usize];
        if origin != rounds.origin || block.len() + data.len() > size {
            return Err(Malformed(format!("a piece of rank {origin} where one of rank {} is due", rounds.origin)));
        }
        block.extend_from_slice(data);
        let (passes, complete) = (origin != rounds.next, block.len() == size);
        let nranks = self.config.nranks;
        if complete {
            (rounds.origin, rounds.left) = ((rounds.origin + nranks - 1) % nranks, rounds.left - 1);
        }
        let over = rounds.left == 0;
        if passes {
            let frame: Arc<[u8]> = Encoder::new(FrameKind::Round, payload.len()).raw(&payload).finish();
            debug_assert_eq!(frame.len(), HEADER + payload.len());
            self.gather.queue.push_back(frame);
            self.ring_flush();
        }
        if over && let GatherStage::Rounds(rounds) = &mut self.gather.stage {
            let blocks = std::mem::take(&mut rounds.blocks);
            self.gathered(blocks);
        }
        Ok(())
    }

    /// A piece of an exchange that this rank has not begun: the next one, but for those that are refused.
    fn come_early(&mut self, sequence: u64, payload: Vec<u8>) -> Result<(), Malformed> {
        let first = self.gather.sequence + u64::from(self.gather.active());
        if (first..sequence).all(|between| self.gather.refused.contains_key(&between)) {
            self.gather.early.push_back(payload);
            return Ok(());
        }
        Err(Malformed(format!("a piece for exchange {sequence} in exchange {}", self.gather.sequence)))
    }
}
