//! From the calls of one communicator in a group to kernel launches: work items for each block.

use super::target::LaunchTarget;
use super::{Call, offers, peers};
use crate::error::Error;
use crate::plan::call::DataType;
use crate::plan::layout::{LaunchArgs, MAX_WORK, Proto, Work, work_flag};
use crate::plan::operator::Operator;
use crate::schedules::{Collective, Cut, Half, ZeroCopyCuts, kernel_number};
use crate::transport::ConnectionGroup;
use crate::tuning::{CallShape, Tuning, selection};

/// Collectives run before the messages of the same group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Collectives,
    Messages,
}

/// A work item, and where it runs.
struct Item {
    stage: Stage,
    kernel: usize,
    block: u32,
    work: Work,
}

/// The work of one kernel in a stage: a column for each block.
struct Columns {
    stage: Stage,
    kernel: usize,
    blocks: Vec<Vec<Work>>,
}

/// The work of one communicator in a group, being collected.
pub(super) struct Plan<'a, T> {
    pub(super) target: &'a T,
    items: Vec<Item>,
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
        let mut plan = Plan { target, items: Vec::with_capacity(calls.len()), missing: Vec::new() };
        for (call, serial) in calls.iter().filter(|(call, _)| !call.func.has_peer() && call.count > 0) {
            plan.add_collective(call, *serial)?;
        }
        peers::add(&mut plan, calls)?;
        Ok(plan)
    }

    fn add_collective(&mut self, call: &Call, serial: u32) -> Result<(), Error> {
        let (collective, schedules) = (collective(call), self.target.schedules());
        let operator = match call.func.reduces() {
            true => Operator::of(call.reduction, call.datatype, self.target.nranks() as u32),
            false => Operator::COPY,
        };
        let (cut, zero_copy) = self.cut(call, &collective, &operator)?;
        let signature = call.signature();
        let mut add = |cut: &Cut, block, offers| {
            let work = cut.work(block, collective.datatype, &operator);
            let work = Work { input: call.send, output: call.recv, signature, serial, offers, ..work };
            let kernel = kernel_number(cut.protocol(), collective.datatype);
            self.items.push(Item { stage: Stage::Collectives, kernel, block, work });
        };
        match zero_copy {
            None => {
                (0..cut.channels()).for_each(|block| add(&cut, block, [0; 2]));
                self.need(schedules.missing(&cut));
            }
            // A block's two items are neighbours: it runs one of them.
            Some(ZeroCopyCuts { direct, slots }) => {
                let offers = offers::words(self.target, call);
                (0..direct.channels()).for_each(|block| {
                    add(&direct, block, offers);
                    add(&slots, block, [0; 2]);
                });
                self.need(schedules.missing(&direct).chain(schedules.missing(&slots)));
            }
        }
        Ok(())
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

    /// Adds half of a message or a copy, for a block of the launch of all messages.
    pub(super) fn add_half(&mut self, half: Half, call: &Call, serial: u32, block: u32) -> Result<(), Error> {
        if call.count == 0 {
            return Ok(());
        }
        let cut = self.target.schedules().cut_half(half, call.bytes(), DataType::Int8)?;
        self.need(self.target.schedules().missing_half(half).into_iter());
        let work = Work { input: call.send, output: call.recv, serial, ..cut.work(0, DataType::Int8, &Operator::COPY) };
        self.items.push(Item {
            stage: Stage::Messages,
            kernel: kernel_number(Proto::Simple, DataType::Int8),
            block,
            work,
        });
        Ok(())
    }

    /// A reduction of one rank's data with nobody else's: the scalar of a user's operator is applied.
    pub(super) fn alone(target: &'a T, call: &Call, serial: u32) -> Result<Launch<T::Lent>, Error> {
        let operator = Operator::of(call.reduction, call.datatype, 1);
        let cut = target.schedules().cut_half(Half::Copy, call.count as u64, call.datatype)?;
        let work = Work { input: call.send, output: call.recv, serial, ..cut.work(0, call.datatype, &operator) };
        let kernel = kernel_number(Proto::Simple, call.datatype);
        let plan = Plan { target, items: Vec::new(), missing: Vec::new() };
        plan.launch(kernel, &[vec![work]])
    }

    /// Launches that only leave, and say so on all links; each fits its argument.
    pub(super) fn goodbye(target: &'a T) -> Result<Vec<Launch<T::Lent>>, Error> {
        let plan = Plan { target, items: Vec::new(), missing: Vec::new() };
        let kernel = kernel_number(Proto::Simple, DataType::Int8);
        target.schedules().goodbye().chunks(MAX_WORK).map(|items| plan.launch(kernel, &[items.to_vec()])).collect()
    }

    /// As few launches as there are kernels, in the order in which calls first need them. All ranks come to the same
    /// launches, since all have the same collectives; items of one block keep their order. With them the links that
    /// must be connected before.
    pub(super) fn launches(self) -> Result<Launches<T::Lent>, Error> {
        let mut groups: Vec<Columns> = Vec::with_capacity(1);
        for &Item { stage, kernel, block, work } in &self.items {
            let alike = |group: &Columns| (group.stage, group.kernel) == (stage, kernel);
            let place = groups.iter().position(alike).unwrap_or_else(|| {
                groups.push(Columns { stage, kernel, blocks: Vec::new() });
                groups.len() - 1
            });
            let blocks = &mut groups[place].blocks;
            blocks.resize(blocks.len().max(block as usize + 1), Vec::new());
            blocks[block as usize].push(work);
        }
        let launches: Result<Vec<Launch<T::Lent>>, Error> =
            groups.iter().map(|group| self.launch(group.kernel, &group.blocks)).collect();
        Ok((launches?, self.missing))
    }

    /// One launch; a column of work for each block. Short columns are filled up with items that do nothing.
    fn launch(&self, kernel: usize, columns: &[Vec<Work>]) -> Result<Launch<T::Lent>, Error> {
        let mut arguments = self.target.launch_arguments();
        let depth = columns.iter().map(Vec::len).max().unwrap_or(0);
        let item =
            |place: usize| columns[place % columns.len()].get(place / columns.len()).copied().unwrap_or_default();
        let total = depth * columns.len();
        arguments.nwork =
            u32::try_from(total).map_err(|_| Error::InvalidUsage(format!("{total} operations in one group")))?;
        arguments.nchannels = columns.len() as u32;
        if total <= MAX_WORK {
            (0..total).for_each(|place| arguments.work[place] = item(place));
            return Ok(Launch { kernel, arguments, lent: None });
        }
        let items: Vec<Work> = (0..total).map(item).collect();
        let (lent, address) = self.target.lend_items(&items)?;
        arguments.items = address;
        Ok(Launch { kernel, arguments, lent: Some(lent) })
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
