//! A communicator's schedules on the device: the steps of every collective and algorithm once, the ends of
//! links for each channel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zerocopy::IntoBytes;

use super::device_schedules::{DeviceSchedule, DeviceSchedules};
use super::settings::Agreed;
use crate::device::{Charge, Context, DeviceMemory, HostFlag, Ledger, Use};
use crate::error::Error;
use crate::plan::algorithm::Algo;
use crate::plan::call::{DataType, Func};
use crate::plan::cost::{Candidates, Choice, Choices, Machine};
use crate::plan::layout::{
    ERROR_CLAIM, ERROR_WORDS, LINK_MOVED, LaunchArgs, LinkEnd, MAX_WORK, Proto, Work, launch_flag, work_flag,
};
use crate::plan::operator::Operator;
use crate::plan::point_to_point::send_distance;
use crate::plan::shape::{Shape, shape};
use crate::plan::wiring::{self, ConnectionGroup, LinkNeed, LinkSet, Wiring};
use crate::plan::work::{Geometry, Request};
use crate::plan::{LinkClass, zero_copy};
use crate::sys;
use crate::topology::Graph;
use crate::transport::{LinkAddresses, PeerFacts};

/// Threads of a block: one on the software device, where a block is a loop, and 512 on a GPU.
const THREADS: (u32, u32) = (1, 512);
/// The longest sleep of a waiting host-image kernel, in nanoseconds.
const FUTEX_NS: u64 = 1_000_000;
/// Yields before a waiting kernel sleeps.
const YIELDS: u32 = 200;
/// Pauses before a waiting kernel yields: with a processor for every rank and its worker, and without.
const SPINS: (u32, u32) = (2000, 20);
/// Bytes of a call for which another channel is worth its while.
const CHANNEL_BYTES: u64 = 64 << 10;
/// Bytes of a call for which ranks ask each other whether they can do without slots: less is not worth the question.
const OFFER_BYTES: u64 = 128 << 10;
/// The most channels of such a call: each has two work items, and both are to fit the launch's argument.
const OFFER_CHANNELS: u32 = (MAX_WORK / 2) as u32;
/// Bytes of a slot of an LL link on a GPU: it carries small messages.
const LL_SLOT_BYTES: u32 = 16 << 10;

// Kernels and the host's flag are told of an error report by each its own side.
const _: () = assert!(HostFlag::ERROR_WORDS == ERROR_WORDS && HostFlag::ERROR_CLAIM == ERROR_CLAIM);

/// How a waiting host-image kernel spends its time; a GPU ignores it.
#[derive(Clone, Copy, Debug)]
pub struct WaitPolicy {
    /// Pauses before the first yield.
    pub spin: u32,
    /// Yields before the first sleep.
    pub yields: u32,
    /// The longest sleep in nanoseconds.
    pub futex_ns: u64,
    /// A peer's store wakes nobody: sleeps are short, and who wakes looks again.
    pub no_wake: bool,
}

impl WaitPolicy {
    /// The policy for a number of ranks that share this process's processors (`spec/kernels.md`).
    fn choose(local_ranks: usize, no_wake: bool) -> WaitPolicy {
        let roomy = local_ranks * 2 <= sys::allowed_cpus();
        WaitPolicy { spin: if roomy { SPINS.0 } else { SPINS.1 }, yields: YIELDS, futex_ns: FUTEX_NS, no_wake }
    }
}

/// What the cost model is told of a machine.
fn machine(software: bool, oversubscription: u32) -> Machine {
    let mut machine = match software {
        // Of the order that two cores of a virtual machine show; where choices change is not measured.
        true => Machine {
            launch: 0.5,
            hop: [0.5; Proto::ALL.len()],
            speed: [8000.0; Proto::ALL.len()],
            oversubscription: 1.0,
        },
        // Not measured: what NCCL's own model assumes of NVLink (internals).
        false => Machine {
            launch: 4.0,
            hop: [5.0; Proto::ALL.len()],
            speed: [20_000.0; Proto::ALL.len()],
            oversubscription: 1.0,
        },
    };
    // Half of a line of LL is data, and 15 of 16 bytes of one of LL128.
    machine.speed[Proto::Ll as usize] *= 0.5;
    machine.speed[Proto::Ll128 as usize] *= 120.0 / 128.0;
    if software {
        machine.oversubscription = f64::from(oversubscription.max(1));
    } else {
        machine.hop[Proto::Ll as usize] = 1.5;
        machine.hop[Proto::Ll128 as usize] = 2.0;
    }
    machine
}

/// The ends of a set of links on the device, channel after channel.
#[derive(Clone, Copy, Debug)]
struct Table {
    /// The address of the first one.
    at: u64,
    /// Ends of one channel: of the one that has most.
    links: u32,
    channels: u32,
    slot_bytes: u32,
}

impl Table {
    /// The address of a channel's first end.
    fn channel(&self, channel: u32) -> u64 {
        self.end(channel * self.links)
    }

    /// The address of an end.
    fn end(&self, place: u32) -> u64 {
        self.at + u64::from(place) * size_of::<LinkEnd>() as u64
    }
}

/// By class and protocol; none where there is no such set.
type Tables = [[Option<Table>; Proto::ALL.len()]; LinkClass::ALL.len()];

/// Which connection groups are connected. What is set stays so but for [`Schedules::disconnect`], so that a call needs
/// no lock.
struct Connected {
    /// This rank.
    me: u32,
    /// By class and protocol, a bit for each channel.
    channels: [[AtomicU64; Proto::ALL.len()]; LinkClass::ALL.len()],
    /// A bit for each rank that messages can be exchanged with.
    peers: Vec<AtomicU64>,
}

impl Connected {
    fn none(me: u32, nranks: u32) -> Connected {
        let peers = (0..nranks.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect();
        Connected { me, channels: Default::default(), peers }
    }

    /// The channels of a class and protocol that are connected, as bits.
    fn channels(&self, class: LinkClass, proto: Proto) -> u64 {
        self.channels[class as usize][proto as usize].load(Ordering::Acquire)
    }

    /// The other rank of a pair.
    fn other(&self, low: u32, high: u32) -> u32 {
        low + high - self.me
    }

    /// Where it is noted whether a connection group is connected: a word, and the bit in it.
    fn place(&self, group: ConnectionGroup) -> (&AtomicU64, u64) {
        match group {
            ConnectionGroup::Channel { class, proto, channel } => {
                (&self.channels[class as usize][proto as usize], 1 << channel)
            }
            ConnectionGroup::Pair { low, high } => {
                let peer = self.other(low, high);
                (&self.peers[(peer / u64::BITS) as usize], 1 << (peer % u64::BITS))
            }
        }
    }

    fn has(&self, group: ConnectionGroup) -> bool {
        let (word, bit) = self.place(group);
        word.load(Ordering::Acquire) & bit != 0
    }

    fn add(&self, group: ConnectionGroup) {
        let (word, bit) = self.place(group);
        word.fetch_or(bit, Ordering::Release);
    }

    fn clear(&self) {
        self.channels.iter().flatten().chain(&self.peers).for_each(|word| word.store(0, Ordering::Release));
    }
}

/// What is chosen for one function.
struct Options {
    choices: Choices,
    /// The filter has left nothing, and nobody has been told yet.
    untold: AtomicBool,
}

/// A collective, cut into work.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// How it is carried out.
    pub choice: Choice,
    geometry: Geometry,
    /// By channel; at least one. Further channels repeat them.
    schedules: &'a [DeviceSchedule],
    table: Table,
    /// Further [`work_flag`]s.
    flags: u8,
}

/// A collective that ranks carry out without slots if all of them can.
#[derive(Clone, Copy, Debug)]
pub struct Offered<'a> {
    /// How, if they can; the work items lack the offers.
    pub direct: Cut<'a>,
    /// How else.
    pub slots: Cut<'a>,
}

impl Cut<'_> {
    /// The number of channels that have something to do.
    pub fn channels(&self) -> u32 {
        self.geometry.nchannels
    }

    /// The work item of a channel, complete but for the user's buffers.
    pub fn work(&self, channel: u32, datatype: DataType, operator: &Operator) -> Work {
        let work = self.geometry.work(channel, datatype, operator);
        let schedule = self.schedules[channel as usize % self.schedules.len()];
        Work {
            flags: work.flags | self.flags,
            steps: schedule.steps,
            nsteps: schedule.nsteps,
            links: self.table.channel(channel),
            nlinks: self.table.links,
            ..work
        }
    }
}

/// A rank's schedules: as data, and as steps and links in device memory.
pub struct Schedules {
    /// How its kernels wait.
    pub wait: WaitPolicy,
    /// Threads of a block.
    pub threads: u32,
    /// Whether the device is software: then blocks beyond the first need threads of their own.
    pub software: bool,
    rank: u32,
    nranks: u32,
    graph: Arc<Graph>,
    agreed: Agreed,
    machine: Machine,
    /// By the number of the function; none for one rank.
    options: Vec<Option<Options>>,
    schedules: DeviceSchedules,
    /// By class and protocol.
    tables: Tables,
    connected: Connected,
    memory: DeviceMemory,
    _charge: Charge,
}

/// Half of a message between two ranks, or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// To this rank.
    Send(u32),
    /// From this rank.
    Receive(u32),
    /// From input to output on one rank.
    Copy,
}

/// Names of the kernels of all protocols that a device has; see [`kernel_number`] for the order.
pub(super) fn kernel_names(software: bool) -> Vec<String> {
    Proto::of_device(software)
        .iter()
        .flat_map(|proto| DataType::ALL.iter().map(|datatype| proto.kernel_name(*datatype)))
        .collect()
}

/// The number of a kernel, for [`crate::device::Kernels::launch`]: by protocol, then by type.
pub fn kernel_number(proto: Proto, datatype: DataType) -> usize {
    proto as usize * DataType::ALL.len() + datatype as usize
}

/// The links of a communicator: a ring in the order of ranks with large slots, and small slots between others.
pub(super) fn wiring(nranks: u32, agreed: &Agreed, software: bool) -> Result<Wiring, Error> {
    let graph = Graph::of_host(nranks);
    let small = |bytes: u32| agreed.small_slot(bytes);
    let mut sets = Vec::new();
    for proto in Proto::ALL.into_iter().filter(|proto| agreed.protos() & 1 << *proto as u8 != 0) {
        let most = if proto == Proto::Simple || software { u32::MAX } else { LL_SLOT_BYTES };
        let set = |class, slot_bytes: u32| LinkSet {
            class,
            proto,
            channels: agreed.channels,
            slot_bytes: slot_bytes.min(most),
        };
        sets.push(set(LinkClass::Ring, agreed.slot_bytes));
        sets.push(set(LinkClass::Mesh, small(wiring::mesh_slot_bytes(nranks))));
    }
    let slot_bytes = small(wiring::pair_slot_bytes(nranks));
    sets.push(LinkSet { class: LinkClass::Peer, proto: Proto::Simple, channels: 1, slot_bytes });
    Wiring::new(graph, sets)
}

impl Schedules {
    /// Puts a rank's schedules on its device, with room for the ends of links.
    pub(super) fn upload(
        context: &Arc<Context>,
        me: &PeerFacts,
        peers: &[PeerFacts],
        agreed: Agreed,
        wiring: Option<&Wiring>,
        ledger: &Arc<Ledger>,
    ) -> Result<Schedules, Error> {
        let nranks = peers.len() as u32;
        let software = context.driver().is_software();
        let links = wiring.map(|wiring| wiring.links(me.rank)).unwrap_or_default();
        let graph = wiring.map_or_else(|| Arc::new(Graph::of_host(nranks)), |wiring| wiring.graph().clone());
        let image = DeviceSchedules::compile(me.rank, &graph, agreed.channels, &links)?;
        let links_at = image.steps().len().next_multiple_of(align_of::<LinkEnd>());
        let (mut tables, links_bytes) = tables(wiring.map(Wiring::sets).unwrap_or_default(), &links);
        let memory = DeviceMemory::zeroed(context, links_at + links_bytes as usize + 1)?;
        memory.write(0, image.steps())?;
        tables.iter_mut().flatten().flatten().for_each(|table| table.at += memory.address() + links_at as u64);
        let local = peers.iter().filter(|peer| peer.host.same_host(&me.host)).count();
        let machine = machine(software, agreed.oversubscription);
        Ok(Schedules {
            wait: WaitPolicy::choose(local, context.driver().no_wake()),
            threads: if software { THREADS.0 } else { THREADS.1 },
            software,
            rank: me.rank,
            nranks,
            agreed,
            options: if nranks > 1 { options(&machine, &graph, &agreed) } else { Vec::new() },
            graph,
            machine,
            schedules: image.at(memory.address()),
            tables,
            connected: Connected::none(me.rank, nranks),
            _charge: ledger.charge(Use::Persist, memory.bytes()),
            memory,
        })
    }

    /// Whether there is a schedule for a function; else its calls are sends and receives.
    pub fn has(&self, func: Func) -> bool {
        Algo::ALL.into_iter().any(|algo| self.schedules.collective(func, algo, 0).is_some())
    }

    /// Chooses how a collective is carried out, and cuts it into channels and pieces.
    pub fn cut(&self, ask: &Ask) -> Result<Cut<'_>, Error> {
        let choice = self.choose(ask)?;
        let schedules = self.schedules.collective(ask.func, choice.algo, ask.root);
        let schedules = schedules.ok_or_else(|| Error::Internal(format!("no schedule for {ask:?} by {choice:?}")))?;
        self.cut_as(choice, schedules, ask, u32::MAX)
    }

    /// Whether ranks ever ask each other for buffers in place of slots. All ranks come to the same answer.
    pub fn offers(&self) -> bool {
        let agree = |func| zero_copy::can_agree(func, zero_copy::algo(func), &self.graph);
        self.agreed.maps_buffers && Func::COLLECTIVES.into_iter().any(agree)
    }

    /// Whether the ranks shall ask each other if they can do a call without slots, which `cut` would do otherwise.
    /// The answer depends on nothing that ranks do not have in common: what is registered is none of it.
    pub fn offered<'a>(&'a self, ask: &Ask, cut: &Cut<'a>, operator: &Operator) -> Result<Option<Offered<'a>>, Error> {
        let (func, algo) = (ask.func, zero_copy::algo(ask.func));
        let allowed = Candidates { algos: ask.algos.unwrap_or(!0), ..Candidates::ALL };
        let worth = self.offers() && ask.bytes(self.nranks) >= OFFER_BYTES && cut.choice.proto == Proto::Simple;
        let open = self.agreed.candidates(func).allows(algo, Proto::Simple) && allowed.allows(algo, Proto::Simple);
        // A kernel scales what its own rank gives, and reads that of others as it is.
        if !worth || !open || operator.flags & work_flag::PRE != 0 {
            return Ok(None);
        }
        let Some(schedules) = self.schedules.agreed(func, ask.root) else { return Ok(None) };
        let mut direct = self.cut_as(Choice { algo, ..cut.choice }, schedules, ask, OFFER_CHANNELS)?;
        direct.geometry.piece = direct.geometry.part;
        direct.flags = work_flag::OFFER;
        // Channels come to their own decisions, so each must move the same elements either way.
        let fallback = match direct.channels() == 1 || cut.schedules[0].nchunks == schedules[0].nchunks {
            true => cut.schedules,
            false => self.schedules.collective(func, algo, ask.root).unwrap_or(cut.schedules),
        };
        let choice = if fallback == cut.schedules { cut.choice } else { direct.choice };
        let channels = direct.channels().min(OFFER_CHANNELS);
        Ok(Some(Offered { direct, slots: self.cut_as(choice, fallback, ask, channels)? }))
    }

    /// Cuts half of a message, or a copy on one rank.
    pub fn cut_half(&self, half: Half, count: u64, datatype: DataType) -> Result<Cut<'_>, Error> {
        let ask = Ask { func: Func::Send, count, datatype, root: 0, algos: None };
        let choice = Choice { algo: Algo::Direct, proto: Proto::Simple, us: 0.0 };
        let mut cut = self.cut_as(choice, std::slice::from_ref(self.schedules.half(half)), &ask, u32::MAX)?;
        // The one link of the schedule is the one to, or from, the peer.
        cut.table.at = cut.table.end(self.link_place(half));
        cut.table.links = u32::from(half != Half::Copy);
        Ok(cut)
    }

    /// The place of a half's link among this rank's links for messages: to each peer from the next one on, then
    /// from it (see [`Wiring::links`]).
    fn link_place(&self, half: Half) -> u32 {
        let after = |peer: u32| send_distance(self.rank, peer, self.nranks) - 1;
        match half {
            Half::Send(peer) => 2 * after(peer),
            Half::Receive(peer) => 2 * after(peer) + 1,
            Half::Copy => 0,
        }
    }

    fn cut_as<'a>(
        &self,
        choice: Choice,
        schedules: &'a [DeviceSchedule],
        ask: &Ask,
        channels: u32,
    ) -> Result<Cut<'a>, Error> {
        let Some(schedule) = schedules.first() else {
            return Err(Error::Internal(format!("no channel has a schedule for {ask:?}")));
        };
        let alone = Table { at: 0, links: 0, channels: 1, slot_bytes: self.agreed.slot_bytes };
        let table = self.tables[schedule.class as usize][choice.proto as usize].unwrap_or(alone);
        let geometry = Geometry::new(&Request {
            count: ask.count,
            datatype: ask.datatype,
            nchunks: schedule.nchunks,
            blocks: has_blocks(ask.func),
            max_channels: table.channels.min(channels),
            slot_bytes: u64::from(table.slot_bytes),
            proto: choice.proto,
            min_channel_bytes: CHANNEL_BYTES,
        })?;
        Ok(Cut { choice, geometry, schedules, table, flags: 0 })
    }

    fn choose(&self, ask: &Ask) -> Result<Choice, Error> {
        let bytes = ask.bytes(self.nranks);
        let options = self.options.get(ask.func as usize).and_then(Option::as_ref);
        let options = options.ok_or_else(|| Error::Internal(format!("no way to carry out {ask:?}")))?;
        if options.untold.swap(false, Ordering::Relaxed) {
            let name = ask.func.name();
            log::warn!("NCCL_ALGO leaves no algorithm for {name}; choosing among all that oxccl has");
        }
        let restricted = ask.algos.and_then(|algos| {
            let candidates = Candidates { algos, ..self.agreed.candidates(ask.func) };
            self.machine.rank(ask.func, &self.graph, bytes, self.channels(bytes), candidates).first().copied()
        });
        let choice = restricted.unwrap_or_else(|| options.choices.of(bytes));
        if log::log_enabled!(target: "TUNING", log::Level::Info) {
            self.log_choice(ask, bytes, choice);
        }
        Ok(choice)
    }

    fn channels(&self, bytes: u64) -> u32 {
        channels(&self.agreed, bytes)
    }

    /// "AllReduce 65536 B: direct/Simple, 1 channels, est. 9.0 us; ring/Simple 14.0 us".
    fn log_choice(&self, ask: &Ask, bytes: u64, choice: Choice) {
        let channels = self.channels(bytes);
        let all = self.machine.rank(ask.func, &self.graph, bytes, channels, self.agreed.candidates(ask.func));
        let others = all.iter().filter(|other| (other.algo, other.proto) != (choice.algo, choice.proto));
        let name = |choice: &Choice| format!("{}/{}", choice.algo.name(), choice.proto.name());
        let others: String = others.map(|other| format!("; {} {:.1} us", name(other), other.us)).collect();
        let us = self.machine.estimate(ask.func, choice.algo, choice.proto, self.nranks, bytes, channels);
        log::info!(
            target: "TUNING",
            "{} {bytes} B: {}, {channels} channels, est. {us:.1} us{others}",
            ask.func.name(),
            name(&choice)
        );
    }

    /// What a call is expected to take, in microseconds.
    pub fn estimate(&self, ask: &Ask) -> Result<f64, Error> {
        let (choice, bytes) = (self.choose(ask)?, ask.bytes(self.nranks));
        Ok(self.machine.estimate(ask.func, choice.algo, choice.proto, self.nranks, bytes, self.channels(bytes)))
    }

    /// Items at which a kernel leaves and marks every link of this rank that is connected, once the error report says
    /// that it is to: they have no piece, so that nothing is ever moved.
    pub fn goodbye(&self) -> Vec<Work> {
        let item = |schedule: DeviceSchedule, links, nlinks| Work {
            steps: schedule.steps,
            nsteps: schedule.nsteps,
            links,
            nlinks,
            hi: 1,
            ..Work::default()
        };
        let mut items = Vec::new();
        for group in self.connected_groups() {
            match group {
                ConnectionGroup::Channel { class, proto, channel } => {
                    let table = self.tables[class as usize][proto as usize];
                    let schedules = self.schedules.goodbyes(channel).iter().filter(|schedule| schedule.class == class);
                    items.extend(
                        schedules
                            .zip(table)
                            .map(|(schedule, table)| item(*schedule, table.channel(channel), table.links)),
                    );
                }
                ConnectionGroup::Pair { low, high } => {
                    let peer = self.connected.other(low, high);
                    let Some(table) = self.tables[LinkClass::Peer as usize][Proto::Simple as usize] else { continue };
                    for half in [Half::Send(peer), Half::Receive(peer)] {
                        items.push(item(*self.schedules.half(half), table.end(self.link_place(half)), 1));
                    }
                }
            }
        }
        items
    }

    /// The connection groups that a cut needs and that are not connected.
    pub fn missing(&self, cut: &Cut) -> impl Iterator<Item = ConnectionGroup> {
        let (class, proto) = (cut.schedules[0].class, cut.choice.proto);
        let (needed, there) =
            (if cut.table.links == 0 { 0 } else { cut.channels() }, self.connected.channels(class, proto));
        let missing = (0..needed).filter(move |channel| there & 1 << channel == 0);
        missing.map(move |channel| ConnectionGroup::Channel { class, proto, channel })
    }

    /// The connection group that half of a message needs, if it is not connected.
    pub fn missing_half(&self, half: Half) -> Option<ConnectionGroup> {
        let (Half::Send(peer) | Half::Receive(peer)) = half else { return None };
        let group = ConnectionGroup::pair(self.rank, peer);
        (!self.connected.has(group)).then_some(group)
    }

    /// Whether a connection group is connected.
    pub fn is_connected(&self, group: ConnectionGroup) -> bool {
        self.connected.has(group)
    }

    /// All connection groups that are connected.
    pub fn connected_groups(&self) -> Vec<ConnectionGroup> {
        let mut groups = Vec::new();
        for class in [LinkClass::Ring, LinkClass::Mesh] {
            for proto in Proto::ALL {
                groups.extend((0..self.agreed.channels).map(|channel| ConnectionGroup::Channel {
                    class,
                    proto,
                    channel,
                }));
            }
        }
        groups.extend(
            (0..self.nranks).filter(|peer| *peer != self.rank).map(|peer| ConnectionGroup::pair(self.rank, peer)),
        );
        groups.retain(|group| self.is_connected(*group));
        groups
    }

    /// Puts the ends of a connection group's links, which are given in the order of [`Wiring::links`], on the device:
    /// from here on launches may use them. No kernel knows of them yet.
    ///
    /// # Errors
    /// What the driver gives.
    pub fn connect(&self, group: ConnectionGroup, links: &[(LinkNeed, LinkAddresses)]) -> Result<(), Error> {
        let (class, proto) = match group {
            ConnectionGroup::Channel { class, proto, .. } => (class, proto),
            ConnectionGroup::Pair { .. } => (LinkClass::Peer, Proto::Simple),
        };
        let table = self.tables[class as usize][proto as usize];
        let table = table.ok_or_else(|| Error::Internal(format!("no room for links of {group:?}")))?;
        let (at, room) = match group {
            ConnectionGroup::Channel { channel, .. } => (table.channel(channel), table.links),
            ConnectionGroup::Pair { low, high } => {
                (table.end(self.link_place(Half::Send(self.connected.other(low, high)))), 2)
            }
        };
        // Channels can have different numbers of links; there is room for the most in each.
        let fits = links.len() == room as usize
            || (links.len() < room as usize && matches!(group, ConnectionGroup::Channel { .. }));
        if !fits {
            return Err(Error::Internal(format!("{} links of {group:?}, where there is room for {room}", links.len())));
        }
        let ends: Vec<LinkEnd> = links.iter().map(|(_, addresses)| link_end(addresses)).collect();
        self.memory.write((at - self.memory.address()) as usize, ends.as_bytes())?;
        self.connected.add(group);
        Ok(())
    }

    /// No connection group is connected any more. Nothing may be running or be launched meanwhile.
    pub fn disconnect(&self) {
        self.connected.clear();
    }

    /// Slots that a message of some bytes takes on its way to a peer.
    pub fn slots_of(&self, bytes: u64) -> u64 {
        let slot = self.tables[LinkClass::Peer as usize][Proto::Simple as usize]
            .map_or(1, |table| u64::from(table.slot_bytes));
        bytes.div_ceil(slot.max(1))
    }

    /// The argument of a launch without work items yet. `flag` is the address of the abort word.
    pub fn arguments(&self, flag: u64) -> LaunchArgs {
        LaunchArgs {
            spin: self.wait.spin,
            yields: self.wait.yields,
            futex_ns: self.wait.futex_ns,
            abort: flag,
            error: flag + HostFlag::ERROR_OFFSET,
            flags: if self.wait.no_wake { launch_flag::NO_WAKE } else { 0 },
            ..LaunchArgs::default()
        }
    }
}

/// What is known of a call when it is decided how to carry it out.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The function.
    pub func: Func,
    /// Elements, as the function counts them.
    pub count: u64,
    /// The type of these elements.
    pub datatype: DataType,
    /// The root; 0 where there is none.
    pub root: u32,
    /// The algorithms that the call's configuration selects, as bits; all where there are none.
    pub algos: Option<u8>,
}

impl Ask {
    /// Bytes of the larger buffer.
    fn bytes(&self, nranks: u32) -> u64 {
        let blocks = if has_blocks(self.func) { u64::from(nranks) } else { 1 };
        self.count.saturating_mul(blocks).saturating_mul(self.datatype.size() as u64)
    }
}

/// Whether every chunk has the call's count of elements; else the count is cut.
fn has_blocks(func: Func) -> bool {
    shape(func, 1) != Shape::Divided
}

fn channels(agreed: &Agreed, bytes: u64) -> u32 {
    (bytes / CHANNEL_BYTES).clamp(1, u64::from(agreed.channels)) as u32
}

/// The choices for every function. Where a filter leaves no algorithm, all are open.
fn options(machine: &Machine, graph: &Graph, agreed: &Agreed) -> Vec<Option<Options>> {
    let mut all: Vec<Option<Options>> = Vec::new();
    for func in Func::COLLECTIVES {
        let (candidates, channels) = (agreed.candidates(func), |bytes| channels(agreed, bytes));
        let filtered = Choices::fill(machine, func, graph, candidates, channels);
        let untold = AtomicBool::new(filtered.is_none());
        let choices = filtered.or_else(|| {
            Choices::fill(machine, func, graph, Candidates { algos: Candidates::ALL.algos, ..candidates }, channels)
        });
        let place = func as usize;
        all.resize_with(all.len().max(place + 1), || None);
        all[place] = choices.map(|choices| Options { choices, untold });
    }
    all
}

/// Where the ends of each set's links are, when the first one is at address 0, and the bytes of all.
fn tables(sets: &[LinkSet], all: &[LinkNeed]) -> (Tables, u64) {
    let mut tables = Tables::default();
    let mut at = 0;
    for set in sets {
        let of_set = all.iter().filter(|need| (need.id.class, need.id.proto) == (set.class, set.proto));
        let mut counts = vec![0; set.channels as usize];
        of_set.for_each(|need| counts[need.id.channel as usize] += 1);
        let links = counts.into_iter().max().unwrap_or(0);
        tables[set.class as usize][set.proto as usize] =
            Some(Table { at, links, channels: set.channels, slot_bytes: set.slot_bytes });
        at += u64::from(set.channels) * u64::from(links) * size_of::<LinkEnd>() as u64;
    }
    (tables, at)
}

/// The end of a link as kernels read it, before its first use.
fn link_end(at: &LinkAddresses) -> LinkEnd {
    let (slots, posted, consumed) = (at.slots, at.posted, at.consumed);
    let peer = if at.moved { at.peer | LINK_MOVED } else { at.peer };
    LinkEnd { slots, posted, consumed, slot_bytes: at.slot_bytes, peer, ..LinkEnd::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_by_number() {
        let names = kernel_names(false);
        assert_eq!(names[kernel_number(Proto::Simple, DataType::Bfloat16)], "oxccl_simple_bf16");
        assert_eq!(names[kernel_number(Proto::Ll, DataType::Float8e5m2)], "oxccl_ll_f8e5m2");
        assert_eq!(names[kernel_number(Proto::Ll128, DataType::Float32)], "oxccl_ll128_f32");
        assert_eq!(names.len(), 36);
        assert_eq!(kernel_names(true), names[..24]);
    }
}
