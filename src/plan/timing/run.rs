//! The run: every rank's block takes its turns as soon as its links let it, in the order of time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::super::layout::{Proto, Step, step_flag};
use super::super::schedule::{LinkId, Schedule};
use super::kernel::KernelModel;
use super::machine::MachineModel;
use super::processors::Processors;
use crate::error::Error;

/// A time, in picoseconds from the kernel's begin: whole numbers have an order.
pub(super) type Instant = u64;

pub(super) fn instant(microseconds: f64) -> Instant {
    (microseconds * 1e6) as Instant
}

/// What a turn of one channel moves at most, in bytes, and how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceRun {
    /// Bytes of the channel's part of a chunk.
    pub part: u64,
    /// Bytes that travel in one slot.
    pub piece: u64,
    /// How many pieces are run.
    pub count: u64,
    /// How many calls, one behind the other, where ranks share processors: each is launched there. Else launches are
    /// not counted here.
    pub calls: u32,
}

impl PieceRun {
    fn bytes(&self, piece: u64) -> u64 {
        (self.part - (piece * self.piece).min(self.part)).min(self.piece)
    }
}

/// When what is in a slot can be read, and when a slot is free again.
#[derive(Clone, Copy, Default)]
struct TimedSlot {
    complete: Instant,
    free: Instant,
}

struct TimedLink {
    slots: Vec<TimedSlot>,
    posted: usize,
    consumed: usize,
    to: usize,
    from: usize,
}

/// A rank's block of one channel.
struct RankBlock<'a> {
    schedule: &'a Schedule,
    /// The rank's number.
    rank: usize,
    links: Vec<usize>,
    step: usize,
    round: u16,
    piece: u64,
    /// The calls that have begun, and those that were launched.
    call: u32,
    launched: u32,
    /// Its block can begin its next turn.
    free: Instant,
    /// When the data of its last turn were where they go.
    landed: Instant,
    /// A turn is due; it must not be twice.
    queued: bool,
    /// When what it waits for is there.
    ready: Instant,
}

impl RankBlock<'_> {
    fn current(&self, pieces: &PieceRun) -> Option<Step> {
        if self.piece == pieces.count { None } else { self.schedule.steps.get(self.step).copied() }
    }

    fn advance(&mut self, pieces: &PieceRun) {
        self.round += 1;
        if self.round >= self.schedule.steps[self.step].repeat {
            (self.round, self.step) = (0, self.step + 1);
        }
        if self.step == self.schedule.steps.len() {
            (self.step, self.piece) = (0, self.piece + 1);
        }
        if self.piece == pieces.count && self.call < pieces.calls {
            (self.piece, self.call) = (0, self.call + 1);
        }
    }
}

/// Something that serves one after the other: a rank's way out or in, what all share.
#[derive(Clone, Copy, Default)]
struct Server(Instant);

impl Server {
    /// Serves from `at` on for so long; when it is done.
    fn serve(&mut self, at: Instant, time: f64) -> Instant {
        self.0 = self.0.max(at) + instant(time);
        self.0
    }
}

/// Channels that are run: the others are like them, and share the links' bandwidth. One alone would leave a link idle
/// where in fact another channel uses it.
const CHANNELS_RUN: u32 = 4;
/// The same of several hosts, whose channels go out by different ranks.
const CHANNELS_RUN_HOSTS: u32 = 8;

/// How many channels are run of some.
pub(super) fn channels_run(machine: &MachineModel, channels: u32) -> u32 {
    channels.clamp(1, if machine.hosts > 1 { CHANNELS_RUN_HOSTS } else { CHANNELS_RUN })
}

/// What a host, or a rank's mover, sends and receives over the network.
#[derive(Clone, Copy, Default)]
struct Gate {
    out: Server,
    into: Server,
}

/// The simulation of some channels.
pub(super) struct Clock<'a> {
    machine: &'a MachineModel,
    kernel: &'a KernelModel,
    proto: Proto,
    /// Channels for each one that is run.
    each: f64,
    pieces: PieceRun,
    /// Links carry the peers' buffers in place of slots.
    zero_copy: bool,
    blocks: Vec<RankBlock<'a>>,
    links: Vec<TimedLink>,
    out: Vec<Server>,
    into: Vec<Server>,
    /// Of several hosts: by rank its host, the movers, and by host the interfaces.
    hosts: Vec<u32>,
    movers: Vec<Gate>,
    interfaces: Vec<Gate>,
    fabric: Server,
    /// Where blocks share processors.
    processors: Option<Processors>,
    due: BinaryHeap<Reverse<(Instant, usize)>>,
}

impl<'a> Clock<'a> {
    pub fn new(
        machine: &'a MachineModel,
        kernel: &'a KernelModel,
        proto: Proto,
        channels: u32,
        pieces: PieceRun,
        schedules: &'a [Vec<Schedule>],
    ) -> Clock<'a> {
        let n = machine.ranks as usize;
        let run = channels_run(machine, channels);
        let mut clock = Clock {
            machine,
            kernel,
            proto,
            each: f64::from(channels) / f64::from(run),
            pieces,
            zero_copy: false,
            blocks: Vec::new(),
            links: Vec::new(),
            out: vec![Server::default(); n],
            into: vec![Server::default(); n],
            hosts: machine.graph().hosts().to_vec(),
            movers: vec![Gate::default(); n],
            interfaces: vec![Gate::default(); machine.hosts.max(1) as usize],
            fabric: Server::default(),
            processors: Processors::new(&machine.sharing),
            due: BinaryHeap::new(),
        };
        schedules.iter().cycle().take(run as usize).for_each(|schedules| clock.add(schedules));
        clock
    }

    /// The same where links carry the peers' buffers in place of slots ([`super::super::zero_copy`]).
    pub fn zero_copy(self) -> Clock<'a> {
        Clock { zero_copy: true, ..self }
    }

    /// Adds the blocks of a channel, one for each schedule. Halves of messages are two to a rank.
    fn add(&mut self, schedules: &'a [Schedule]) {
        let mut numbers: HashMap<LinkId, usize> = HashMap::new();
        for schedule in schedules {
            let block = self.blocks.len();
            let mut links = Vec::new();
            for id in &schedule.links {
                let number = *numbers.entry(*id).or_insert_with(|| {
                    let slots = vec![TimedSlot::default(); self.kernel.slots.max(schedule.slots) as usize];
                    self.links.push(TimedLink { slots, posted: 0, consumed: 0, from: block, to: block });
                    self.links.len() - 1
                });
                let link = &mut self.links[number];
                *(if id.from == schedule.rank { &mut link.from } else { &mut link.to }) = block;
                links.push(number);
            }
            let (step, round, piece, call, free, landed, ready, queued) = (0, 0, 0, 1, 0, 0, 0, false);
            let rank = schedule.rank as usize;
            let launched = if self.processors.is_some() { 0 } else { self.pieces.calls };
            self.processors.iter_mut().for_each(|processors| processors.add(rank));
            let block =
                RankBlock { schedule, rank, links, step, round, piece, call, launched, free, landed, queued, ready };
            self.blocks.push(block);
        }
    }

    /// Runs to the end; microseconds from the first kernel's begin to the last one's end.
    ///
    /// # Errors
    /// [`Error::Internal`] where ranks wait for each other for ever.
    pub fn complete(mut self) -> Result<f64, Error> {
        (0..self.blocks.len()).for_each(|rank| self.queue(rank));
        while let Some(Reverse((at, rank))) = self.due.pop() {
            let ready = self.blocks[rank].ready;
            let start = self.processors.as_mut().map_or(at, |processors| processors.start(rank, ready));
            if start > at {
                self.due.push(Reverse((start, rank)));
                continue;
            }
            self.blocks[rank].queued = false;
            if self.blocks[rank].launched < self.blocks[rank].call {
                self.launch(rank, start);
            } else {
                self.turn(rank, start);
            }
            self.queue(rank);
        }
        if let Some(stuck) = self.blocks.iter().find(|rank| rank.current(&self.pieces).is_some()) {
            return Err(Error::Internal(format!("rank {} waits for ever", stuck.schedule.rank)));
        }
        let end = self.blocks.iter().map(|rank| rank.free.max(rank.landed)).max().unwrap_or(0);
        Ok(end as f64 / 1e6)
    }

    /// The numbers of a step's links: those that it receives from, and those that it sends to.
    fn step_links(&self, rank: usize, step: &Step) -> (Vec<usize>, Vec<usize>) {
        let number = |&i: &u8| self.blocks[rank].links[usize::from(i)];
        let recv = step.recv[..usize::from(step.nrecv)].iter().map(number).collect();
        (recv, step.send[..usize::from(step.nsend)].iter().map(number).collect())
    }

    /// A call is launched from `at` on, on the block's processor: the rank's blocks share what that takes.
    fn launch(&mut self, rank: usize, at: Instant) {
        let share = f64::from(self.machine.ranks) / self.blocks.len() as f64;
        let block = &mut self.blocks[rank];
        block.launched = block.call;
        block.free = at + instant(self.machine.launch * share);
        let until = block.free;
        self.processors.iter_mut().for_each(|processors| processors.keep(rank, until));
    }

    /// Puts a rank's next turn or launch on the list, if its links are ready or will be at a known time.
    fn queue(&mut self, rank: usize) {
        let Some(step) = self.blocks[rank].current(&self.pieces).filter(|_| !self.blocks[rank].queued) else { return };
        if self.blocks[rank].launched < self.blocks[rank].call {
            return self.put(rank, self.blocks[rank].free);
        }
        let (recv, send) = self.step_links(rank, &step);
        let mut arrived = 0;
        for &l in &recv {
            let link = &self.links[l];
            if link.posted == link.consumed {
                return;
            }
            if !self.lines(&step) {
                arrived = arrived.max(link.slots[link.consumed % link.slots.len()].complete);
            }
        }
        for &l in &send {
            let link = &self.links[l];
            if link.posted - link.consumed == link.slots.len() {
                return;
            }
            arrived = arrived.max(link.slots[link.posted % link.slots.len()].free);
        }
        let block = &self.machine.block;
        let (before, noticed) = match self.kernel.overlaps {
            // Half of a turn's work is done while the last one's data move.
            true => (block.turn / 2.0, block.turn / 4.0),
            false => (block.turn, block.turn / 2.0),
        };
        let seen = if arrived > 0 { arrived + instant(block.poll / 2.0 + noticed) } else { 0 };
        self.put(rank, (self.blocks[rank].free + instant(before)).max(seen));
    }

    fn put(&mut self, rank: usize, ready: Instant) {
        (self.blocks[rank].ready, self.blocks[rank].queued) = (ready, true);
        self.due.push(Reverse((ready, rank)));
    }

    /// Whether a step's data say themselves that they are there.
    fn lines(&self, step: &Step) -> bool {
        self.proto != Proto::Simple && step.flags & step_flag::NO_DATA == 0
    }

    /// One turn that begins at `at`.
    fn turn(&mut self, rank: usize, at: Instant) {
        let Some(step) = self.blocks[rank].current(&self.pieces) else { return };
        let (recv, send) = self.step_links(rank, &step);
        let has = |flag| step.flags & flag != 0;
        let bytes = if has(step_flag::NO_DATA) { 0 } else { self.pieces.bytes(self.blocks[rank].piece) };
        let moved = self.move_data(at, bytes, &recv, &send, &step);
        self.processors.iter_mut().for_each(|processors| processors.keep(rank, moved));
        let moved = if self.zero_copy { self.carry(&recv, at, bytes).max(moved) } else { moved };
        let landed = self.carry(&send, at, bytes).max(moved);
        let (fence, latency) = (self.machine.path.fence * f64::from(self.kernel.fences), self.machine.path.latency);
        let lines = self.lines(&step);
        let fenced = if lines { landed } else { landed + instant(fence) };
        let away: Vec<usize> = recv.iter().chain(&send).copied().filter(|l| self.is_between_hosts(*l)).collect();
        for &l in &recv {
            let link = &mut self.links[l];
            let slot = link.consumed % link.slots.len();
            link.slots[slot].free =
                moved + instant(if away.contains(&l) { self.machine.network.latency } else { latency });
            link.consumed += 1;
        }
        for &l in &send {
            let complete =
                if away.contains(&l) { self.over_network(l, fenced, bytes) } else { fenced + instant(latency) };
            let link = &mut self.links[l];
            let slot = link.posted % link.slots.len();
            link.slots[slot].complete = complete;
            link.posted += 1;
        }
        let me = &mut self.blocks[rank];
        // A block that overlaps is at most one turn ahead of what is on its way.
        me.free = if self.kernel.overlaps || lines || send.is_empty() { moved.max(me.landed) } else { fenced };
        me.landed = landed;
        me.advance(&self.pieces);
        recv.iter().for_each(|&l| self.queue(self.links[l].from));
        send.iter().for_each(|&l| self.queue(self.links[l].to));
    }

    /// When the block has moved a turn's data.
    fn move_data(&mut self, at: Instant, bytes: u64, recv: &[usize], send: &[usize], step: &Step) -> Instant {
        let (block, has) = (&self.machine.block, |flag| u8::from(step.flags & flag != 0));
        let path = &self.machine.path;
        let near = if self.zero_copy { path.remote_load } else { path.receive_load };
        let far = self.machine.network.receive_load;
        let mut loads: Vec<f64> = recv.iter().map(|l| if self.is_between_hosts(*l) { far } else { near }).collect();
        loads.extend(vec![block.load; usize::from(has(step_flag::IN))]);
        let ndst = send.len() + usize::from(has(step_flag::OUT));
        let time = self.kernel.move_time(block, self.proto, bytes, &loads, ndst);
        let complete = recv.iter().map(|&l| {
            let link = &self.links[l];
            link.slots[link.consumed % link.slots.len()].complete
        });
        // The last line is read when it is there, and own data perhaps after it.
        let own = if self.kernel.early { 0.0 } else { f64::from(has(step_flag::IN)) * block.load };
        let last = match self.lines(step) {
            true => complete.max().map_or(0, |complete| complete + instant(block.poll / 2.0 + own)),
            false => 0,
        };
        (at + instant(time)).max(last)
    }

    /// When what goes over some links from `at` on has gone, but for the latency: what is sent, or what is read from
    /// where a peer has it. 0 where there are none.
    fn carry(&mut self, links: &[usize], at: Instant, bytes: u64) -> Instant {
        let path = &self.machine.path;
        let wire = bytes as f64 * self.proto.expansion() * self.each;
        let (own, all) = (wire / path.bandwidth, wire / path.fabric);
        let mut last = 0;
        for &l in links.iter().filter(|l| !self.is_between_hosts(**l)).collect::<Vec<_>>() {
            let (from, to) = (self.blocks[self.links[l].from].rank, self.blocks[self.links[l].to].rank);
            let (out, into) = (self.out[from].serve(at, own), self.into[to].serve(at, own));
            last = last.max(out).max(into).max(self.fabric.serve(at, all));
        }
        last
    }

    /// The ranks at the ends of a link, and their hosts.
    fn ends(&self, l: usize) -> [(usize, usize); 2] {
        [self.links[l].from, self.links[l].to].map(|block| {
            let rank = self.blocks[block].rank;
            (rank, self.hosts[rank] as usize)
        })
    }

    fn is_between_hosts(&self, l: usize) -> bool {
        let [(_, from), (_, to)] = self.ends(l);
        from != to
    }

    /// When what is posted to a link at some time can be seen on the other host.
    fn over_network(&mut self, l: usize, at: Instant, bytes: u64) -> Instant {
        let network = self.machine.network;
        let wire = bytes as f64 * self.proto.expansion() * self.each;
        let [(sender, from), (receiver, to)] = self.ends(l);
        let mover = network.message * self.each + wire / network.rank_bandwidth;
        let sent =
            self.movers[sender].out.serve(at, mover).max(self.interfaces[from].out.serve(at, wire / network.bandwidth));
        let come = self.interfaces[to]
            .into
            .serve(at, wire / network.bandwidth)
            .max(self.movers[receiver].into.serve(at, mover));
        sent.max(come) + instant(network.latency)
    }
}
