//! From the calls of one communicator in a group to kernel launches: work items for each block.

use super::target::LaunchTarget;
use super::{Call, offers, peers};
use crate::error::Error;
use crate::plan::call::DataType;
use crate::plan::layout::{LaunchArgs, MAX_WORK, Proto, Work, launch_flag, work_flag};
use crate::plan::offer::MISSING;
use crate::plan::operator::Operator;
use crate::schedules::{Collective, Cut, Half, MESSAGES_KERNEL, ZeroCopyCuts, kernel_number};
use crate::transport::ConnectionGroup;
use crate::tuning::{CallShape, Tuning, selection};

/// The work of one launch, being collected.
enum KernelWork {
    /// Of collectives: what every block does, each for a channel of its own ([`launch_flag::ROWS`]).
    Rows { blocks: u32, rows: Vec<Work> },
    /// A column for each block.
    Columns(Vec<Vec<Work>>),
}

/// A collective, cut into work.
struct CutCall<'c, 'a> {
    call: &'c Call,
    serial: u32,
    datatype: DataType,
    operator: Operator,
    kernel: usize,
    cut: Cut<'a>,
    zero_copy: Option<ZeroCopyCuts<'a>>,
}

impl<'a> CutCall<'_, 'a> {
    /// The ways to carry it out that its work items name, and what each offers. Of two a block runs one: they are
    /// neighbours.
    fn ways<T: LaunchTarget>(&self, target: &T) -> [Option<(Cut<'a>, [u64; 2])>; 2] {
        match self.zero_copy {
            None => [Some((self.cut, [0; 2])), None],
            Some(ZeroCopyCuts { direct, slots }) => {
                [Some((direct, offers::words(target, self.call))), Some((slots, [0; 2]))]
            }
        }
    }

    fn channels(&self) -> u32 {
        self.zero_copy.map_or(self.cut, |cuts| cuts.direct).channels()
    }

    /// A work item with what the call says.
    fn complete(&self, work: Work, offers: [u64; 2]) -> Work {
        let (input, output, signature) = (self.call.send, self.call.recv, self.call.signature());
        Work { input, output, signature, serial: self.serial, offers, ..work }
    }
}

/// A collective whose first part is on channel `first`.
struct PlacedCall<'c, 'a> {
    call: &'c CutCall<'c, 'a>,
    ways: [Option<(Cut<'a>, [u64; 2])>; 2],
    first: u32,
}

impl PlacedCall<'_, '_> {
    /// A work item for each way, for all channels.
    fn rows(&self) -> impl Iterator<Item = Work> {
        let (datatype, operator) = (self.call.datatype, &self.call.operator);
        self.ways
            .iter()
            .flatten()
            .map(move |(cut, offers)| self.call.complete(cut.row(self.first, datatype, operator), *offers))
    }

    /// Work items for each channel by itself.
    fn add_columns(&self, columns: &mut [Vec<Work>]) {
        let blocks = columns.len() as u32;
        for part in 0..self.call.channels() {
            let block = (self.first + part) % blocks;
            let (datatype, operator) = (self.call.datatype, &self.call.operator);
            let work = |cut: &Cut<'_>, offers| self.call.complete(cut.work(part, block, datatype, operator), offers);
            columns[block as usize].extend(self.ways.iter().flatten().map(|(cut, offers)| work(cut, *offers)));
        }
    }
}

/// The work of one communicator in a group, being collected.
pub(super) struct Plan<'a, T> {
    pub(super) target: &'a T,
    /// By kernel: collectives run before the messages of the same group.
    collectives: Vec<(usize, KernelWork)>,
    messages: Vec<Vec<Work>>,
    /// Links that are needed and not connected, each connection group once.
    missing: Vec<ConnectionGroup>,
}

/// A launch that is ready to go.
pub struct Launch<Lent> {
    /// The number of the kernel.
    pub(super) kernel: usize,
    /// What the kernel is given.
    pub(super) arguments: LaunchArgs,
    /// The memory with the work items, where they do not fit the argument.
    pub(super) lent: Option<Lent>,
}

/// Launches, with the connection groups of links that must be connected before.
pub(super) type Launches<Lent> = (Vec<Launch<Lent>>, Vec<ConnectionGroup>);

impl<'a, T: LaunchTarget> Plan<'a, T> {
    fn empty(target: &'a T) -> Plan<'a, T> {
        Plan { target, collectives: Vec::with_capacity(1), messages: Vec::new(), missing: Vec::new() }
    }

    /// The work of some calls, for more than one rank.
    pub(super) fn of(target: &'a T, calls: &[(&Call, u32)]) -> Result<Plan<'a, T>, Error> {
        match peers::expanded(target, calls) {
            None => Plan::of_all(target, calls),
            Some(owned) => {
                let calls: Vec<(&Call, u32)> = owned.iter().map(|(call, serial)| (call, *serial)).collect();
                Plan::of_all(target, &calls)
            }
        }
    }

    fn of_all(target: &'a T, calls: &[(&Call, u32)]) -> Result<Plan<'a, T>, Error> {
        let mut plan = Plan::empty(target);
        let collectives = calls.iter().filter(|(call, _)| !call.func.has_peer() && call.count > 0);
        let cuts: Result<Vec<CutCall<'_, 'a>>, Error> =
            collectives.map(|(call, serial)| plan.cut_call(call, *serial)).collect();
        plan.add_collectives(&cuts?);
        peers::add(&mut plan, calls)?;
        Ok(plan)
    }

    fn cut_call<'c>(&self, call: &'c Call, serial: u32) -> Result<CutCall<'c, 'a>, Error> {
        let collective = collective(call);
        let operator = match call.func.reduces() {
            true => Operator::of(call.reduction, call.datatype, self.target.nranks() as u32),
            false => Operator::COPY,
        };
        let (cut, zero_copy) = self.cut(call, &collective, &operator)?;
        let (datatype, kernel) = (collective.datatype, kernel_number(cut.protocol(), collective.datatype));
        Ok(CutCall { call, serial, datatype, operator, kernel, cut, zero_copy })
    }

    /// As few launches as there are kernels, in the order in which calls first need them.
    fn add_collectives(&mut self, calls: &[CutCall<'_, 'a>]) {
        let mut kernels: Vec<usize> = Vec::with_capacity(1);
        for call in calls {
            if !kernels.contains(&call.kernel) {
                kernels.push(call.kernel);
            }
        }
        for kernel in kernels {
            let of_kernel: Vec<&CutCall<'_, 'a>> = calls.iter().filter(|call| call.kernel == kernel).collect();
            let work = self.place(&of_kernel);
            self.collectives.push((kernel, work));
        }
    }

    /// Has each call begin at the channel behind the last one's, so that small calls run side by side. All ranks come
    /// to the same places, since all have the same collectives.
    fn place(&mut self, calls: &[&CutCall<'_, 'a>]) -> KernelWork {
        let all: u32 = calls.iter().map(|call| call.channels()).sum();
        let blocks = all.min(self.target.tuning().max_channels());
        let blocks = calls.iter().map(|call| call.channels()).fold(blocks, u32::max).max(1);
        let mut first = 0;
        let mut placed: Vec<PlacedCall<'_, 'a>> = Vec::with_capacity(calls.len());
        for &call in calls {
            let ways = call.ways(self.target);
            ways.iter().flatten().for_each(|(cut, _)| self.need(self.target.schedules().missing(cut, first, blocks)));
            placed.push(PlacedCall { call, ways, first });
            first = (first + call.channels()) % blocks;
        }
        if placed.iter().flat_map(|placed| placed.ways.iter().flatten()).all(|(cut, _)| cut.is_uniform()) {
            let rows = placed.iter().flat_map(PlacedCall::rows).collect();
            return KernelWork::Rows { blocks, rows };
        }
        let mut columns = vec![Vec::new(); blocks as usize];
        placed.iter().for_each(|placed| placed.add_columns(&mut columns));
        KernelWork::Columns(columns)
    }

    /// Cuts a collective as the tuner chooses, and also without slots where the ranks are to ask each other for that.
    fn cut(
        &self,
        call: &Call,
        collective: &Collective,
        operator: &Operator,
    ) -> Result<(Cut<'a>, Option<ZeroCopyCuts<'a>>), Error> {
        let (tuning, schedules) = (self.target.tuning(), self.target.schedules());
        let shape = shape(tuning, self.target.nranks() as u32, call)?;
        let choice = tuning.choose(&shape)?;
        let cut = schedules.cut(choice, collective)?;
        // A kernel scales what its own rank gives, and reads that of others as it is.
        let asks = operator.flags & work_flag::PRE == 0 && tuning.offers_buffers_for(&shape, &choice);
        let zero_copy = if asks { schedules.zero_copy(collective, &cut)? } else { None };
        Ok((cut, zero_copy))
    }

    /// Notes links that are to be connected first.
    fn need(&mut self, groups: impl Iterator<Item = ConnectionGroup>) {
        for group in groups {
            if !self.missing.contains(&group) {
                self.missing.push(group);
            }
        }
    }

    /// Adds half of a message or a copy; `block` says in which block of the launch of all messages a channel's part is.
    pub(super) fn add_half(
        &mut self,
        half: Half,
        call: &Call,
        serial: u32,
        block: impl Fn(u32) -> u32,
    ) -> Result<(), Error> {
        if call.count == 0 {
            return Ok(());
        }
        let schedules = self.target.schedules();
        let protocol =
            if half == Half::Copy { Proto::Simple } else { self.target.tuning().message_protocol(call.bytes()) };
        let cut = schedules.cut_half(half, protocol, call.bytes(), DataType::Int8)?;
        let offer = self.message_offer(half, call);
        let without_slots = offer.and_then(|word| Some((schedules.half_without_slots(half, &cut)?, word)));
        self.need(schedules.missing_half(half).into_iter());
        for channel in 0..cut.channels() {
            let work = |cut: &Cut<'_>, offer| Work {
                input: call.send,
                output: call.recv,
                serial,
                offers: [offer, 0],
                ..cut.work(channel, channel, DataType::Int8, &Operator::COPY)
            };
            let block = block(channel) as usize;
            self.messages.resize(self.messages.len().max(block + 1), Vec::new());
            let first = without_slots.iter().map(|(cut, offer)| work(cut, *offer));
            self.messages[block].extend(first.chain([work(&cut, 0)]));
        }
        Ok(())
    }

    /// What half of a message has to offer where the receiver may read the sender's buffer: the word of a sender whose
    /// buffer is registered, 0 of a receiver. What the peers have registered meanwhile is mapped.
    fn message_offer(&self, half: Half, call: &Call) -> Option<u64> {
        let bytes = call.bytes();
        if half == Half::Copy || !self.target.tuning().pulls_message(bytes) {
            return None;
        }
        let input = matches!(half, Half::Send(_)).then_some((call.send, bytes));
        let [word, _] = self.target.offer([input, None]);
        if input.is_some() && log::log_enabled!(target: "TUNING", log::Level::Info) {
            let registered = if word == MISSING { "not registered" } else { "registered" };
            log::info!(target: "TUNING", "Send {bytes} B: zero-copy offered, input {registered}");
        }
        (word != MISSING).then_some(word)
    }

    /// Takes away the blocks for messages that have nothing to do. The others keep their order.
    pub(super) fn close_up(&mut self) {
        self.messages.retain(|column| !column.is_empty());
    }

    /// A reduction of one rank's data with nobody else's: the scalar of a user's operator is applied.
    pub(super) fn alone(target: &'a T, call: &Call, serial: u32) -> Result<Launch<T::Lent>, Error> {
        let operator = Operator::of(call.reduction, call.datatype, 1);
        let cut = target.schedules().cut_half(Half::Copy, Proto::Simple, call.count as u64, call.datatype)?;
        let work = Work { input: call.send, output: call.recv, serial, ..cut.work(0, 0, call.datatype, &operator) };
        Plan::empty(target).launch(kernel_number(Proto::Simple, call.datatype), &[vec![work]])
    }

    /// Launches that only leave, and say so on all links; each fits its argument.
    pub(super) fn goodbye(target: &'a T) -> Result<Vec<Launch<T::Lent>>, Error> {
        let plan = Plan::empty(target);
        let kernel = kernel_number(Proto::Simple, DataType::Int8);
        target.schedules().goodbye().chunks(MAX_WORK).map(|items| plan.launch(kernel, &[items.to_vec()])).collect()
    }

    /// The launches, one for each kernel; items of one block keep their order. With them the links that must be
    /// connected before.
    pub(super) fn launches(self) -> Result<Launches<T::Lent>, Error> {
        let collectives = self.collectives.iter().map(|(kernel, work)| match work {
            KernelWork::Rows { blocks, rows } => self.launch_rows(*kernel, *blocks, rows),
            KernelWork::Columns(columns) => self.launch(*kernel, columns),
        });
        let mut launches: Vec<Launch<T::Lent>> = collectives.collect::<Result<_, Error>>()?;
        if !self.messages.is_empty() {
            launches.push(self.launch(message_kernel(&self.messages), &self.messages)?);
        }
        Ok((launches, self.missing))
    }

    /// One launch; a column of work for each block. Short columns are filled up with items that do nothing.
    fn launch(&self, kernel: usize, columns: &[Vec<Work>]) -> Result<Launch<T::Lent>, Error> {
        let depth = columns.iter().map(Vec::len).max().unwrap_or(0);
        let item =
            |place: usize| columns[place % columns.len()].get(place / columns.len()).copied().unwrap_or_default();
        let items: Vec<Work> = (0..depth * columns.len()).map(item).collect();
        self.launch_items(kernel, columns.len() as u32, &items)
    }

    /// One launch of which each block runs all items for a channel of its own.
    fn launch_rows(&self, kernel: usize, blocks: u32, rows: &[Work]) -> Result<Launch<T::Lent>, Error> {
        let mut launch = self.launch_items(kernel, blocks, rows)?;
        launch.arguments.flags |= launch_flag::ROWS;
        Ok(launch)
    }

    fn launch_items(&self, kernel: usize, blocks: u32, items: &[Work]) -> Result<Launch<T::Lent>, Error> {
        let mut arguments = self.target.launch_arguments();
        let total = items.len();
        arguments.nwork =
            u32::try_from(total).map_err(|_| Error::InvalidUsage(format!("{total} operations in one group")))?;
        arguments.nchannels = blocks;
        if total <= MAX_WORK {
            arguments.work[..total].copy_from_slice(items);
            return Ok(Launch { kernel, arguments, lent: None });
        }
        let (lent, address) = self.target.lend_items(items)?;
        arguments.items = address;
        Ok(Launch { kernel, arguments, lent: Some(lent) })
    }
}

/// The kernel for some messages: the one that is for their protocol, or for both.
fn message_kernel(columns: &[Vec<Work>]) -> usize {
    let has = |proto: Proto| columns.iter().flatten().any(|work| work.proto == proto as u8);
    match (has(Proto::Simple), has(Proto::Ll)) {
        (true, true) => MESSAGES_KERNEL,
        (false, true) => kernel_number(Proto::Ll, DataType::Int8),
        _ => kernel_number(Proto::Simple, DataType::Int8),
    }
}

/// A collective as schedules are asked for it: data that only move are bytes, so that one kernel moves them all.
fn collective(call: &Call) -> Collective {
    let root = if call.func.has_root() { call.root as u32 } else { 0 };
    match call.func.reduces() {
        true => Collective { func: call.func, count: call.count as u64, datatype: call.datatype, root },
        false => Collective { func: call.func, count: call.bytes(), datatype: DataType::Int8, root },
    }
}

/// A collective as the tuner is told of it.
///
/// # Errors
/// [`Error::InvalidArgument`] where the call's configuration forces a selection that there is not.
pub(super) fn shape<'a>(tuning: &'a Tuning, nranks: u32, call: &Call) -> Result<CallShape<'a>, Error> {
    let selected = match &call.config {
        Some(config) => config.algorithms(call.func)?.and_then(selection::algorithms),
        None => None,
    };
    tuning.shape(call.func, collective(call).bytes(nranks), selected)
}

/// Whether a call is one that a group of one rank carries out by a copy: all but what computes.
pub(super) fn is_copy_alone(call: &Call) -> bool {
    !(call.func.reduces() && call.reduction.changes_one_rank())
}
