//! The all-gather: blocks go up the tree, all blocks come down; where they are too large for that, only
//! the sizes do, and the blocks go round a ring in pieces.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::super::roots::Algorithm;
use super::super::wire::{Decoder, Encoder, FrameKind, HEADER, Malformed};
use super::super::{Conn, MAX_BLOCK, MAX_FACTS};
use super::rounds::RingRounds;
use super::{Error, Failure, Link, Member, Purpose, Role, TreePlace};

/// The most bytes of blocks that travel over the tree whatever their number. A rank sends them to up to eight children.
const TREE_BYTES: u64 = 4 << 20;
/// Blocks that are no larger on average travel over the tree however many there are: round the ring, every rank would
/// pass on every one of them.
const SMALL_BLOCK: u64 = 4 << 10;
/// But no more bytes than these.
const TREE_MOST: u64 = 256 << 20;
/// The most bytes of a frame that travels over the tree: the blocks, their sizes, and what they share.
pub(super) const TREE_FRAME: usize = 512 << 20;
/// The most bytes of a block that travel round the ring at once, so that a long block is passed on while it arrives.
pub(super) const PIECE: usize = 256 << 10;

/// Sizes of the blocks of a range of ranks, and the blocks, where they fit.
struct Up {
    sizes: Vec<u32>,
    /// All blocks of the range one after the other; `None` if they are too large for the tree.
    data: Option<Vec<u8>>,
    /// What blocks have in common, where the exchange is one of entries.
    shared: SharedFacts,
}

/// What the blocks of ranks have in common, such as what is known of their host: each once.
#[derive(Default)]
pub(super) struct SharedFacts {
    pub table: Vec<Vec<u8>>,
    /// By rank: which of the table it has. Empty where blocks share nothing.
    pub of: Vec<u32>,
}

impl SharedFacts {
    /// The next rank has this.
    pub(super) fn add(&mut self, common: &[u8]) {
        let last = self.of.last().filter(|last| self.table[**last as usize] == common).copied();
        let known = last.or_else(|| self.table.iter().position(|known| known == common).map(|at| at as u32));
        self.of.push(known.unwrap_or_else(|| {
            self.table.push(common.to_vec());
            self.table.len() as u32 - 1
        }));
    }

    /// Takes in, one after the other, what ranges of ranks have.
    fn join(parts: impl Iterator<Item = SharedFacts>) -> SharedFacts {
        let (mut numbers, mut of) = (HashMap::new(), Vec::new());
        for part in parts {
            let next = |numbers: &mut HashMap<Vec<u8>, u32>, common| {
                let next = numbers.len() as u32;
                *numbers.entry(common).or_insert(next)
            };
            let renumbered: Vec<u32> = part.table.into_iter().map(|common| next(&mut numbers, common)).collect();
            of.extend(part.of.into_iter().map(|number| renumbered[number as usize]));
        }
        let mut table = vec![Vec::new(); numbers.len()];
        numbers.into_iter().for_each(|(common, number)| table[number as usize] = common);
        SharedFacts { table, of }
    }

    fn encode(&self, encoder: Encoder) -> Encoder {
        self.of.iter().fold(encoder.list(&self.table), |encoder, number| encoder.u32(*number))
    }

    fn decode(decoder: &mut Decoder<'_>, count: u32) -> Result<SharedFacts, Malformed> {
        let table = decoder.list(MAX_FACTS)?;
        let mut of = Vec::new();
        if !table.is_empty() {
            of = words(decoder.raw(4 * count as usize)?);
        }
        match of.iter().find(|number| **number as usize >= table.len()) {
            Some(number) => Err(Malformed(format!("shared facts {number} of {}", table.len()))),
            None => Ok(SharedFacts { table, of }),
        }
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Whether blocks of these sizes travel over the tree.
fn take_the_tree(sizes: &[u32]) -> bool {
    let total: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
    total <= TREE_BYTES || total <= TREE_MOST.min(SMALL_BLOCK * sizes.len() as u64)
}

/// One exchange.
pub(super) enum GatherStage {
    Idle,
    /// Waiting for the children, then for the parent.
    Tree {
        own: Vec<u8>,
        common: Option<Vec<u8>>,
        sent: bool,
    },
    /// All exchanges go round the ring.
    Rounds(RingRounds),
    /// Blocks go round the ring, since they are large.
    Ring {
        blocks: Vec<Vec<u8>>,
        sizes: Vec<u32>,
        missing: u64,
    },
}

/// The state of exchanges.
pub(super) struct Gather {
    pub(super) stage: GatherStage,
    pub(super) sequence: u64,
    /// What the children have sent, and for which exchange: this one or the next, but for those that are refused.
    ups: Vec<Option<(u64, Up)>>,
    /// Exchanges to come that some rank takes no part in.
    pub(super) refused: BTreeMap<u64, Failure>,
    /// The connection to the next rank of the ring, and what waits until it is answered.
    pub(super) next: Option<Conn>,
    /// The connection from the previous rank, where all exchanges go round the ring.
    pub(super) previous: Option<Conn>,
    pub(super) queue: VecDeque<Arc<[u8]>>,
    /// The next rank has closed its connection: why, and whether it had said so.
    next_gone: Option<(String, bool)>,
    /// So has the previous rank.
    previous_gone: Option<(String, bool)>,
    /// Pieces that came before this rank knew that the blocks take the ring.
    pub(super) early: VecDeque<Vec<u8>>,
    result: Option<Vec<Vec<u8>>>,
    /// What the blocks of the last result have in common.
    shared: SharedFacts,
}

impl Gather {
    pub(super) fn new(place: &TreePlace) -> Gather {
        Gather {
            stage: GatherStage::Idle,
            sequence: 0,
            ups: place.children.iter().map(|_| None).collect(),
            refused: BTreeMap::new(),
            next: None,
            previous: None,
            queue: VecDeque::new(),
            next_gone: None,
            previous_gone: None,
            early: VecDeque::new(),
            result: None,
            shared: SharedFacts::default(),
        }
    }

    pub(super) fn active(&self) -> bool {
        !matches!(self.stage, GatherStage::Idle)
    }

    pub(super) fn take(&mut self) -> Option<Vec<Vec<u8>>> {
        if self.queue.is_empty() { self.result.take() } else { None }
    }

    /// Whether the end of a connection in the tree ends the exchange. While blocks go round the ring, a
    /// rank that has them all may say goodbye; a rank that dies takes the ring with it.
    pub(super) fn needs_tree(&self, bye: bool) -> bool {
        match self.stage {
            GatherStage::Idle | GatherStage::Rounds(_) => false,
            GatherStage::Tree { .. } => true,
            GatherStage::Ring { .. } => !bye,
        }
    }

    /// Whether the exchange needs the next rank, which has gone. One that has left in peace had all it wanted.
    pub(super) fn next_lost(&mut self, why: &str, bye: bool) -> bool {
        self.next_gone = Some((why.to_string(), bye));
        if bye {
            self.queue.clear();
        }
        // Its block cannot come any more, unless it has.
        let awaited = matches!(&self.stage, GatherStage::Rounds(rounds) if !bye && rounds.awaits_next());
        awaited || !self.queue.is_empty()
    }

    /// Whether the exchange needs the previous rank, which has gone.
    pub(super) fn previous_lost(&mut self, why: &str, bye: bool) -> bool {
        self.previous_gone = Some((why.to_string(), bye));
        matches!(self.stage, GatherStage::Ring { .. } | GatherStage::Rounds(_))
    }

    /// What the blocks of the result that was taken last have in common.
    pub(super) fn take_shared(&mut self) -> SharedFacts {
        std::mem::take(&mut self.shared)
    }

    /// The number of the exchange in progress, or of the next one.
    pub(super) fn number(&self) -> u64 {
        self.sequence
    }

    /// Whether an exchange was begun whose result has not been taken.
    pub(super) fn in_progress(&self) -> bool {
        self.active() || self.result.is_some() || !self.queue.is_empty()
    }

    /// Ends the exchange in progress without a result, and all that are to come.
    pub(super) fn stop(&mut self) {
        self.stage = GatherStage::Idle;
        self.result = None;
        self.queue.clear();
        self.early.clear();
    }

    pub(super) fn is_refused(&self, number: u64) -> bool {
        self.refused.contains_key(&number)
    }

    /// Some rank takes no part in an exchange: what the children have sent for it is of no use.
    pub(super) fn refuse(&mut self, number: u64, failure: Failure) {
        self.refused.insert(number, failure);
        self.ups.iter_mut().for_each(|up| drop(up.take_if(|(sequence, _)| *sequence == number)));
    }

    /// If the exchange in progress, or the next one, is refused: goes on to the one after it, and says why.
    pub(super) fn pass_refused(&mut self) -> Option<Failure> {
        let failure = self.refused.remove(&self.sequence)?;
        self.stop();
        self.sequence += 1;
        Some(failure)
    }

    /// Joins what this rank and its children have: the whole span, in the order of ranks.
    fn merge(&mut self, own: &[u8], common: Option<Vec<u8>>) -> Up {
        let mut ups: Vec<Up> = self.ups.iter_mut().filter_map(Option::take).map(|(_, up)| up).collect();
        let sizes: Vec<u32> =
            std::iter::once(own.len() as u32).chain(ups.iter().flat_map(|up| up.sizes.iter().copied())).collect();
        let mine = common.map(|common| SharedFacts { table: vec![common], of: vec![0] }).unwrap_or_default();
        let parts = std::iter::once(mine).chain(ups.iter_mut().map(|up| std::mem::take(&mut up.shared)));
        let shared = SharedFacts::join(parts);
        if !take_the_tree(&sizes) || ups.iter().any(|up| up.data.is_none()) {
            return Up { sizes, data: None, shared };
        }
        let mut data = Vec::with_capacity(sizes.iter().map(|size| *size as usize).sum());
        data.extend_from_slice(own);
        for up in &ups {
            data.extend_from_slice(up.data.as_deref().unwrap_or_default());
        }
        Up { sizes, data: Some(data), shared }
    }
}

/// Reads bytes as whatever an exchange is made of, for tests of garbage.
#[cfg(test)]
pub(super) fn decode_as_anything(bytes: &[u8], nranks: u32) {
    let _ = Up::decode(bytes, nranks).map(|(_, up)| up.split());
    let _ = SharedFacts::decode(&mut Decoder(bytes), nranks);
}

impl Up {
    fn encode(&self, kind: FrameKind, sequence: u64) -> Arc<[u8]> {
        let data = self.data.as_deref().unwrap_or_default();
        let mut encoder =
            Encoder::new(kind, 64 + 8 * self.sizes.len() + data.len()).u64(sequence).u8(u8::from(self.data.is_some()));
        // Blocks are mostly alike in size.
        let alike = self.sizes.windows(2).all(|pair| pair[0] == pair[1]);
        encoder = encoder.u8(u8::from(alike));
        for size in self.sizes.iter().take(if alike { 1 } else { usize::MAX }) {
            encoder = encoder.u32(*size);
        }
        self.shared.encode(encoder).raw(data).finish()
    }

    /// Reads sizes of `count` ranks, and blocks that must fit them.
    fn decode(payload: &[u8], count: u32) -> Result<(u64, Up), Malformed> {
        let mut decoder = Decoder(payload);
        let sequence = decoder.u64()?;
        let whole = decoder.u8()? != 0;
        let sizes = match decoder.u8()? {
            0 => words(decoder.raw(4 * count as usize)?),
            _ => vec![decoder.u32()?; count as usize],
        };
        if let Some(size) = sizes.iter().find(|size| **size as usize > MAX_BLOCK) {
            return Err(Malformed(format!("a block of {size} bytes")));
        }
        let shared = SharedFacts::decode(&mut decoder, count)?;
        let data = if whole {
            let total: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
            if !take_the_tree(&sizes) {
                return Err(Malformed(format!("blocks of {total} bytes over the tree")));
            }
            Some(decoder.raw(total as usize)?.to_vec())
        } else {
            None
        };
        decoder.end()?;
        Ok((sequence, Up { sizes, data, shared }))
    }

    /// The blocks, one per rank.
    fn split(&self) -> Option<Vec<Vec<u8>>> {
        let mut data = Decoder(self.data.as_deref()?);
        self.sizes.iter().map(|size| data.raw(*size as usize).ok().map(<[u8]>::to_vec)).collect()
    }
}

impl Member {
    /// Begins an all-gather; blocks may differ in size. The result comes by [`Member::take_gathered`].
    ///
    /// # Errors
    /// `InvalidArgument` for a block beyond [`MAX_BLOCK`]; the first error of the communicator.
    pub fn start_all_gather(&mut self, now: Duration, block: &[u8]) -> Result<(), Error> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        if block.len() > MAX_BLOCK {
            return Err(Error::InvalidArgument(format!(
                "a block of {} bytes for an all-gather of the bootstrap, {MAX_BLOCK} are allowed",
                block.len()
            )));
        }
        debug_assert!(self.joined() && !self.gather.active(), "one operation at a time, after the rendezvous");
        self.check_exchange()?;
        if let Some((rank, why, bye)) = self.absent_neighbour() {
            let failure = self.absence(rank, &why, bye);
            self.bad_news(&failure);
            return Err(failure.error());
        }
        self.limit = self.config.timeout.map(|timeout| now + timeout);
        self.begin_gather(now, block.to_vec(), None);
        Ok(())
    }

    /// The blocks of all ranks, once they are there.
    pub fn take_gathered(&mut self) -> Option<Vec<Vec<u8>>> {
        let result = self.gather.take()?;
        self.limit = None;
        Some(result)
    }

    /// A neighbour in the tree, or in the ring, that went away between two operations.
    fn absent_neighbour(&self) -> Option<(u32, String, bool)> {
        let parent = self.place.parent.map(|rank| (rank, self.parent));
        let children = self.place.children.iter().map(|span| span.start).zip(self.children.iter().copied());
        let (rank, nranks) = (self.config.rank, self.config.nranks);
        let ring = [(1, self.gather.next), (nranks - 1, self.gather.previous)].into_iter();
        let ring = ring.filter(|_| self.goes_round()).map(|(far, conn)| ((rank + far) % nranks, conn));
        let mut neighbours = parent.into_iter().chain(children).chain(ring);
        let gone = neighbours
            .find(|(_, conn)| !conn.is_some_and(|conn| self.links.get(&conn).is_some_and(|link| !link.bye)))?;
        let (why, bye) = self.messages.why_gone(gone.0);
        Some((gone.0, why, bye))
    }

    /// Begins an exchange; `common` is what this rank's block may have in common with those of others.
    pub(super) fn begin_gather(&mut self, now: Duration, own: Vec<u8>, common: Option<Vec<u8>>) {
        self.gather.result = None;
        match self.config.algorithm {
            Algorithm::Tree => {
                self.gather.stage = GatherStage::Tree { own, common, sent: false };
                self.climb(now);
            }
            Algorithm::Ring => self.begin_rounds(own),
        }
    }

    /// Sends the blocks of this rank's span to the parent, once they are all there; rank 0 sends them down.
    fn climb(&mut self, now: Duration) {
        let now_due =
            |up: &Option<(u64, Up)>| up.as_ref().is_some_and(|(sequence, _)| *sequence == self.gather.sequence);
        let complete = self.gather.ups.iter().all(now_due);
        let GatherStage::Tree { own, common, sent: sent @ false } = &mut self.gather.stage else {
            return;
        };
        if !complete {
            return;
        }
        *sent = true;
        let (own, common) = (std::mem::take(own), common.take());
        let up = self.gather.merge(&own, common);
        let sequence = self.gather.sequence;
        match self.parent {
            Some(parent) => {
                self.gather.stage = GatherStage::Tree { own, common: None, sent: true };
                self.send(parent, up.encode(FrameKind::Up, sequence));
            }
            None => {
                self.pass_down(&up.encode(FrameKind::Down, sequence));
                self.descend(now, up, own);
            }
        }
    }

    pub(super) fn up(&mut self, now: Duration, from: u32, payload: &[u8]) -> Result<(), Malformed> {
        let index = self.place.children.iter().position(|span| span.start == from);
        let index = index.ok_or_else(|| Malformed(format!("blocks of rank {from}, which is no child")))?;
        let span = self.place.children[index].clone();
        let (sequence, up) = Up::decode(payload, span.end - span.start)?;
        // In an exchange that this rank has passed up already, the child is at the next one: it has had the result
        // before us.
        let passed = matches!(self.gather.stage, GatherStage::Ring { .. } | GatherStage::Tree { sent: true, .. });
        let expected = self.gather.sequence + u64::from(passed);
        if sequence < self.gather.sequence {
            // The child did not know yet that this exchange was refused.
            return Ok(());
        }
        let reached =
            sequence >= expected && (expected..sequence).all(|between| self.gather.refused.contains_key(&between));
        if !reached || self.gather.ups[index].is_some() {
            return Err(Malformed(format!("blocks for exchange {sequence} in exchange {expected}")));
        }
        if self.gather.refused.contains_key(&sequence) {
            return Ok(());
        }
        self.gather.ups[index] = Some((sequence, up));
        self.climb(now);
        Ok(())
    }

    pub(super) fn down(&mut self, now: Duration, payload: Vec<u8>) -> Result<(), Malformed> {
        let (sequence, all) = Up::decode(&payload, self.config.nranks)?;
        let GatherStage::Tree { own, sent: true, .. } = &mut self.gather.stage else {
            return Err(Malformed("a result that nobody waits for".to_string()));
        };
        let rank = self.config.rank as usize;
        if sequence != self.gather.sequence || all.sizes[rank] as usize != own.len() {
            return Err(Malformed(format!("the result of exchange {sequence} in exchange {}", self.gather.sequence)));
        }
        let own = std::mem::take(own);
        if !self.children.is_empty() {
            self.pass_down(&Encoder::new(FrameKind::Down, payload.len()).raw(&payload).finish());
        }
        self.descend(now, all, own);
        Ok(())
    }

    /// For simulations of more ranks than there is memory for: passes a result on and forgets it, unread.
    #[cfg(test)]
    pub(in super::super) fn pass_on_unread(&mut self, frame: &Arc<[u8]>) {
        self.pass_down(frame);
        self.gather.stage = GatherStage::Idle;
        self.gather.sequence += 1;
        (self.phase, self.limit) = (super::MemberPhase::Ready, None);
    }

    fn pass_down(&mut self, frame: &Arc<[u8]>) {
        for conn in self.children.clone().into_iter().flatten() {
            self.send(conn, frame.clone());
        }
    }

    /// All sizes are known: the blocks are here, or come round the ring.
    fn descend(&mut self, now: Duration, mut all: Up, own: Vec<u8>) {
        self.gather.shared = std::mem::take(&mut all.shared);
        if let Some(blocks) = all.split() {
            return self.gathered(blocks);
        }
        let rank = self.config.rank;
        let missing = all.sizes.iter().map(|size| u64::from(*size)).sum::<u64>() - own.len() as u64;
        let mut blocks = vec![Vec::new(); all.sizes.len()];
        self.ring_send(rank, &own);
        blocks[rank as usize] = own;
        self.gather.stage = GatherStage::Ring { blocks, sizes: all.sizes, missing };
        if missing > 0
            && let Some((why, bye)) = self.gather.previous_gone.clone()
        {
            let previous = (rank + self.config.nranks - 1) % self.config.nranks;
            return self.fail_with(&self.absence(previous, &why, bye));
        }
        self.ring_connect(now);
        for piece in std::mem::take(&mut self.gather.early) {
            if let Err(bad) = self.ring_piece(now, piece) {
                let previous = (rank + self.config.nranks - 1) % self.config.nranks;
                return self.fail_with(&Failure::remote(Some(previous), format!("{} sent {bad}", self.name(previous))));
            }
        }
        self.ring_complete();
    }

    pub(super) fn gathered(&mut self, blocks: Vec<Vec<u8>>) {
        self.gather.stage = GatherStage::Idle;
        self.gather.sequence += 1;
        self.gather.result = Some(blocks);
        self.roster_complete();
    }

    /// Connects to the next rank, at the first exchange that needs it, and sends what waits for it.
    fn ring_connect(&mut self, now: Duration) {
        let next = (self.config.rank + 1) % self.config.nranks;
        let dialled = self.gather.next.is_some() || self.dials.has(super::dial::Target::Peer(next, Purpose::Ring));
        if next != self.config.rank
            && !dialled
            && let Err(bad) = self.dial(now, next, Purpose::Ring)
        {
            return self.fail_with(&Failure::remote(Some(next), bad.0));
        }
        self.ring_flush();
    }

    pub(super) fn ring_flush(&mut self) {
        let Some(conn) = self.gather.next else { return };
        if let Some((why, bye)) = self.gather.next_gone.clone() {
            let next = (self.config.rank + 1) % self.config.nranks;
            if !bye && !self.gather.queue.is_empty() {
                self.fail_with(&self.absence(next, &why, bye));
            }
            self.gather.queue.clear();
            return self.roster_complete();
        }
        if !matches!(self.links.get(&conn), Some(Link { role: Role::Out(_, _, true), .. })) {
            return;
        }
        for bytes in std::mem::take(&mut self.gather.queue) {
            self.send(conn, bytes);
        }
        self.roster_complete();
    }

    /// Queues a block for the next rank, in pieces.
    fn ring_send(&mut self, origin: u32, block: &[u8]) {
        if self.config.nranks < 2 {
            return;
        }
        for piece in block.chunks(PIECE) {
            let frame = Encoder::new(FrameKind::Ring, 16 + piece.len())
                .u64(self.gather.sequence)
                .u32(origin)
                .raw(piece)
                .finish();
            self.gather.queue.push_back(frame);
        }
        self.ring_flush();
    }

    /// A piece of a block from the previous rank: kept, and passed on unless the next rank made it.
    pub(super) fn ring_piece(&mut self, _now: Duration, payload: Vec<u8>) -> Result<(), Malformed> {
        let mut decoder = Decoder(&payload);
        let (sequence, origin) = (decoder.u64()?, decoder.u32()?);
        let data = decoder.0;
        if sequence != self.gather.sequence || origin >= self.config.nranks || origin == self.config.rank {
            return Err(Malformed(format!(
                "a piece of rank {origin} for exchange {sequence} in exchange {}",
                self.gather.sequence
            )));
        }
        match &mut self.gather.stage {
            GatherStage::Idle | GatherStage::Rounds(_) => {
                return Err(Malformed("a piece that nobody waits for".to_string()));
            }
            GatherStage::Tree { .. } => {
                // The previous rank had the sizes first; it cannot send more than the blocks of this exchange.
                self.gather.early.push_back(payload);
                return Ok(());
            }
            GatherStage::Ring { blocks, sizes, missing } => {
                let block = &mut blocks[origin as usize];
                if block.len() + data.len() > sizes[origin as usize] as usize {
                    return Err(Malformed(format!("too many bytes of rank {origin}")));
                }
                block.extend_from_slice(data);
                *missing -= data.len() as u64;
            }
        }
        if origin != (self.config.rank + 1) % self.config.nranks {
            let frame: Arc<[u8]> = Encoder::new(FrameKind::Ring, payload.len()).raw(&payload).finish();
            debug_assert_eq!(frame.len(), HEADER + payload.len());
            self.gather.queue.push_back(frame);
            self.ring_flush();
        }
        self.ring_complete();
        Ok(())
    }

    fn ring_complete(&mut self) {
        if let GatherStage::Ring { missing: 0, blocks, .. } = &mut self.gather.stage {
            let blocks = std::mem::take(blocks);
            self.gathered(blocks);
        }
    }

    /// Why an exchange is late: the subtrees whose blocks are missing, or the way down.
    pub(super) fn operation_late(&self, seconds: f32) -> Failure {
        let rank = self.config.rank;
        let waits = self.gather.ups.iter().zip(&self.place.children).filter(|(up, _)| up.is_none());
        let behind: Vec<u32> = waits.flat_map(|(_, span)| span.clone()).collect();
        if let Some(peer) = self.messages.awaited() {
            return Failure::timeout(
                Some(peer),
                format!("rank {rank} has waited {seconds} s for a message of {}", self.name(peer)),
            );
        }
        match &self.gather.stage {
            GatherStage::Tree { sent: false, .. } => {
                let culprit = if behind.len() == 1 { Some(behind[0]) } else { None };
                let text = format!(
                    "rank {rank} has waited {seconds} s for the blocks of {}",
                    super::super::ranks::name(&behind)
                );
                Failure::timeout(culprit, text)
            }
            GatherStage::Ring { sizes, blocks, .. } => {
                let short: Vec<u32> = (0u32..)
                    .zip(sizes.iter().zip(blocks))
                    .filter(|(_, (size, block))| **size as usize > block.len())
                    .map(|(rank, _)| rank)
                    .collect();
                Failure::timeout(
                    None,
                    format!(
                        "rank {rank} has waited {seconds} s for the blocks of {}",
                        super::super::ranks::name(&short)
                    ),
                )
            }
            GatherStage::Rounds(rounds) => rounds.late(rank, self.config.nranks, seconds),
            GatherStage::Tree { .. } | GatherStage::Idle => {
                let parent = self.place.parent.map_or("its children".to_string(), |parent| self.name(parent));
                Failure::timeout(
                    None,
                    format!(
                        "rank {rank} has waited {seconds} s for all blocks from {parent}; a rank elsewhere in the tree is late"
                    ),
                )
            }
        }
    }
}
