//! The schedules of all collectives and algorithms, put together for the device: each list of steps once.

use std::collections::HashMap;

use zerocopy::IntoBytes;

use super::Half;
use crate::error::Error;
use crate::plan::algorithm::{self, Algo, ScheduleKind};
use crate::plan::call::Func;
use crate::plan::layout::{Proto, Step, step_flag};
use crate::plan::point_to_point;
use crate::plan::schedule::{Draft, Schedule};
use crate::plan::wiring::LinkNeed;
use crate::plan::{LinkClass, LinkId, SLOTS, zero_copy};
use crate::topology::Graph;

/// A schedule on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceSchedule {
    /// The address of its steps.
    pub steps: u64,
    /// How many there are.
    pub nsteps: u32,
    /// Chunks that the data are divided into.
    pub nchunks: u32,
    /// The class of its links.
    pub class: LinkClass,
}

/// The place of a function with an algorithm among the schedules.
fn number(func: Func, algo: Algo) -> usize {
    func as usize * Algo::ALL.len() + algo as usize
}

/// For each root, schedules by channel; further channels repeat them. Functions without a root have one.
type Rooted = Vec<Vec<DeviceSchedule>>;

/// Puts schedules at a place of a list that grows as needed.
fn put(list: &mut Vec<Rooted>, place: usize, schedules: Rooted) {
    list.resize(list.len().max(place + 1), Vec::new());
    list[place] = schedules;
}

/// All of a rank's schedules. Their addresses count from the image's begin until [`Image::at`].
pub(super) struct DeviceSchedules {
    /// By function and algorithm ([`number`]).
    collectives: Vec<Rooted>,
    /// By function: those that do without slots, if all ranks agree.
    agreed: Vec<Rooted>,
    send: DeviceSchedule,
    receive: DeviceSchedule,
    copy: DeviceSchedule,
    /// Halves of a message without slots.
    offer: DeviceSchedule,
    pull: DeviceSchedule,
    /// By channel: steps that name every link of a class, for a rank that leaves.
    goodbyes: Vec<Vec<DeviceSchedule>>,
}

impl DeviceSchedules {
    /// Compiles what a rank needs for some channels. `links` are all that it takes part in.
    ///
    /// # Errors
    /// [`Error::Internal`] for a schedule that does not fit the links.
    pub(super) fn compile(rank: u32, graph: &Graph, channels: u32, links: &[LinkNeed]) -> Result<Image, Error> {
        let channels = graph.nchannels().min(channels).max(1);
        let places: Vec<Places> = (0..channels).map(|channel| Places::of(links, channel)).collect();
        let mut steps = Steps::default();
        let (mut collectives, mut agreed) = (Vec::new(), Vec::new());
        for func in Func::COLLECTIVES {
            for algo in Algo::ALL.into_iter().filter(|algo| algorithm::available(func, *algo, graph)) {
                let one = |root, channel| algorithm::compile(ScheduleKind { func, algo, root }, graph, channel, rank);
                put(&mut collectives, number(func, algo), steps.add_rooted(func, graph, &places, one)?);
            }
            let algo = zero_copy::algo(func);
            if zero_copy::can_agree(func, algo, graph) {
                let one = |root, channel| zero_copy::agreed(ScheduleKind { func, algo, root }, graph, channel, rank);
                put(&mut agreed, func as usize, steps.add_rooted(func, graph, &places, one)?);
            }
        }
        let mut leave = |places: &Places| -> Result<Vec<DeviceSchedule>, Error> {
            goodbyes(rank, places)?.into_iter().map(|goodbye| steps.add(goodbye, Some(places))).collect()
        };
        let goodbyes = places.iter().map(&mut leave).collect::<Result<_, _>>()?;
        // The peer is of no account: the link is chosen by the work item.
        let peer = if rank == 0 { 1 } else { 0 };
        let schedules = DeviceSchedules {
            collectives,
            agreed,
            send: steps.add(point_to_point::send(rank, peer)?, None)?,
            receive: steps.add(point_to_point::receive(rank, peer)?, None)?,
            copy: steps.add(point_to_point::copy(rank)?, None)?,
            offer: steps.add(point_to_point::offer(rank, peer)?, None)?,
            pull: steps.add(point_to_point::pull(rank, peer)?, None)?,
            goodbyes,
        };
        Ok(Image { steps: steps.all, schedules })
    }

    /// The schedules of a collective, by channel.
    pub(super) fn collective(&self, func: Func, algo: Algo, root: u32) -> Option<&[DeviceSchedule]> {
        of_root(self.collectives.get(number(func, algo))?, func, root)
    }

    /// The schedules of a collective without slots, by channel.
    pub(super) fn agreed(&self, func: Func, root: u32) -> Option<&[DeviceSchedule]> {
        of_root(self.agreed.get(func as usize)?, func, root)
    }

    /// Steps that name every link of a channel, class by class.
    pub(super) fn goodbyes(&self, channel: u32) -> &[DeviceSchedule] {
        &self.goodbyes[channel as usize % self.goodbyes.len()]
    }

    /// The schedule of half a message, or a copy.
    pub(super) fn half(&self, half: Half) -> &DeviceSchedule {
        match half {
            Half::Send(_) => &self.send,
            Half::Receive(_) => &self.receive,
            Half::Copy => &self.copy,
        }
    }

    /// The schedule of half a message that does without slots if both ranks can; none for a copy.
    pub(super) fn half_without_slots(&self, half: Half) -> Option<&DeviceSchedule> {
        match half {
            Half::Send(_) => Some(&self.offer),
            Half::Receive(_) => Some(&self.pull),
            Half::Copy => None,
        }
    }
}

/// A function's schedules for a root.
fn of_root(schedules: &Rooted, func: Func, root: u32) -> Option<&[DeviceSchedule]> {
    schedules.get(if func.has_root() { root as usize } else { 0 }).map(Vec::as_slice)
}

/// Schedules with the steps that are to go to the device.
pub(super) struct Image {
    steps: Vec<Step>,
    schedules: DeviceSchedules,
}

impl Image {
    /// The bytes of all steps.
    pub(super) fn steps(&self) -> &[u8] {
        self.steps.as_bytes()
    }

    /// The schedules when the steps are at `address`.
    pub(super) fn at(mut self, address: u64) -> DeviceSchedules {
        let DeviceSchedules { collectives, agreed, send, receive, copy, offer, pull, goodbyes } = &mut self.schedules;
        let rooted = collectives.iter_mut().chain(agreed).flatten();
        let all = rooted.chain(goodbyes).flatten().chain([send, receive, copy, offer, pull]);
        all.for_each(|schedule| schedule.steps += address);
        self.schedules
    }
}

/// The place of each link of a channel among those of its class and protocol: alike for all protocols. Links are known
/// by the name that schedules have for them.
struct Places(HashMap<LinkId, u8>);

impl Places {
    fn of(links: &[LinkNeed], channel: u32) -> Places {
        let mut places = HashMap::new();
        for class in LinkClass::ALL {
            let first = links.iter().find(|need| need.id.class == class).map(|need| need.id.proto);
            let of_class = links.iter().filter(|need| need.id.class == class && Some(need.id.proto) == first);
            let ids = of_class.filter(|need| need.id.channel == channel).map(|need| need.id);
            let name = |id| LinkId { proto: Proto::Simple, channel: 0, ..id };
            places.extend(ids.zip(0..=u8::MAX).map(|(id, place)| (name(id), place)));
        }
        Places(places)
    }
}

/// For each class of links, signals on all of them: never carried out, but a kernel that leaves at such an item marks
/// the links. Classes with more links than steps can number are left out.
fn goodbyes(rank: u32, places: &Places) -> Result<Vec<Schedule>, Error> {
    let one = |class: LinkClass| {
        let mut goodbye = Schedule::new(rank, class, 1, 1);
        let mut links: Vec<&LinkId> = places.0.keys().filter(|link| link.class == class).collect();
        links.sort_unstable();
        for link in links {
            let (from, to) = ([link.from], [link.to]);
            let signal = Draft { flags: step_flag::NO_DATA, ..Draft::ONCE };
            goodbye.push(match link.to == rank {
                true => Draft { recv: &from, ..signal },
                false => Draft { send: &to, ..signal },
            })?;
        }
        Ok(goodbye)
    };
    let all: Vec<Schedule> = LinkClass::ALL.into_iter().map(one).collect::<Result<_, Error>>()?;
    Ok(all.into_iter().filter(|goodbye| !goodbye.steps.is_empty()).collect())
}

/// Lists of steps, each kept once.
#[derive(Default)]
struct Steps {
    all: Vec<Step>,
    known: HashMap<Vec<Step>, usize>,
}

impl Steps {
    /// Adds a function's schedules for every root and channel.
    fn add_rooted(
        &mut self,
        func: Func,
        graph: &Graph,
        places: &[Places],
        compile: impl Fn(u32, u32) -> Result<Schedule, Error>,
    ) -> Result<Rooted, Error> {
        let roots = if func.has_root() { graph.nranks() } else { 1 };
        let mut of = |root| {
            let channels = (0..).zip(places);
            channels.map(|(channel, places)| self.add(compile(root, channel)?, Some(places))).collect()
        };
        (0..roots).map(&mut of).collect()
    }

    /// Adds a schedule, its links numbered by their places, or as they are.
    fn add(&mut self, mut schedule: Schedule, places: Option<&Places>) -> Result<DeviceSchedule, Error> {
        schedule.check(SLOTS as u32)?;
        let mut steps = std::mem::take(&mut schedule.steps);
        if let Some(places) = places {
            steps.iter_mut().try_for_each(|step| renumber(step, &schedule, places))?;
        }
        let nsteps = steps.len();
        let all = &mut self.all;
        let first = *self.known.entry(steps).or_insert_with_key(|steps| {
            all.extend(steps);
            all.len() - steps.len()
        });
        let steps = (first * size_of::<Step>()) as u64;
        Ok(DeviceSchedule { steps, nsteps: nsteps as u32, nchunks: schedule.nchunks, class: schedule.class })
    }
}

fn renumber(step: &mut Step, schedule: &Schedule, places: &Places) -> Result<(), Error> {
    let (nrecv, nsend) = (usize::from(step.nrecv), usize::from(step.nsend));
    for index in step.recv[..nrecv].iter_mut().chain(&mut step.send[..nsend]) {
        let link = schedule.links[usize::from(*index)];
        let place = places.0.get(&link);
        *index = *place.ok_or_else(|| Error::Internal(format!("a schedule uses {link:?}, which is not wired")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
