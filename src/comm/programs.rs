//! The schedules of all collectives and algorithms, put together for the device: each list of steps once.

use std::collections::HashMap;

use zerocopy::IntoBytes;

use super::schedules::Half;
use crate::error::Error;
use crate::plan::algorithm::{self, Algo, Kind};
use crate::plan::call::Func;
use crate::plan::layout::{Proto, Step, step_flag};
use crate::plan::point_to_point;
use crate::plan::schedule::{Draft, Schedule};
use crate::plan::wiring::LinkNeed;
use crate::plan::{LinkClass, LinkId, SLOTS, zero_copy};
use crate::topology::Graph;

/// A schedule on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// The address of its steps.
    pub steps: u64,
    /// How many there are.
    pub nsteps: u32,
    /// Chunks that the data are divided into.
    pub nchunks: u32,
    /// The class of its links.
    pub class: LinkClass,
}

/// The place of a function with an algorithm among the programs.
fn number(func: Func, algo: Algo) -> usize {
    func as usize * Algo::ALL.len() + algo as usize
}

/// Puts programs at a place of a list that grows as needed.
fn put(list: &mut Vec<Vec<Program>>, place: usize, programs: Vec<Program>) {
    list.resize(list.len().max(place + 1), Vec::new());
    list[place] = programs;
}

/// All of a rank's programs. Their addresses count from the image's begin until [`Image::at`].
pub(super) struct Programs {
    /// By function and algorithm ([`number`]); with a root, one for each.
    collectives: Vec<Vec<Program>>,
    /// By function: those that do without slots, if all ranks agree; with a root, one for each.
    agreed: Vec<Vec<Program>>,
    send: Program,
    receive: Program,
    copy: Program,
    /// Steps that name every link of a class, for a rank that leaves.
    farewells: Vec<Program>,
}

impl Programs {
    /// Compiles what a rank needs. `links` are all that it takes part in.
    ///
    /// # Errors
    /// [`Error::Internal`] for a schedule that does not fit the links.
    pub(super) fn compile(rank: u32, graph: &Graph, links: &[LinkNeed]) -> Result<Image, Error> {
        let nranks = graph.nranks();
        let places = Places::of(links);
        let mut steps = Steps::default();
        let (mut collectives, mut agreed) = (Vec::new(), Vec::new());
        for func in Func::COLLECTIVES {
            let roots = if func.has_root() { nranks } else { 1 };
            for algo in Algo::ALL {
                if algorithm::available(func, algo, graph) {
                    let one = |root| steps.add(algorithm::compile(Kind { func, algo, root }, graph, 0, rank)?, Some(&places));
                    put(&mut collectives, number(func, algo), (0..roots).map(one).collect::<Result<Vec<_>, Error>>()?);
                }
            }
            let algo = zero_copy::algo(func);
            if zero_copy::can_agree(func, algo, graph) {
                let one = |root| steps.add(zero_copy::agreed(Kind { func, algo, root }, graph, 0, rank)?, Some(&places));
                put(&mut agreed, func as usize, (0..roots).map(one).collect::<Result<Vec<_>, Error>>()?);
            }
        }
        // The peer is of no account: the link is chosen by the work item.
        let peer = if rank == 0 { 1 } else { 0 };
        let programs = Programs {
            collectives,
            agreed,
            send: steps.add(point_to_point::send(rank, peer)?, None)?,
            receive: steps.add(point_to_point::receive(rank, peer)?, None)?,
            copy: steps.add(point_to_point::copy(rank)?, None)?,
            farewells: farewells(rank, &places)?
                .into_iter()
                .map(|farewell| steps.add(farewell, Some(&places)))
                .collect::<Result<_, _>>()?,
        };
        Ok(Image { steps: steps.all, programs })
    }

    /// The program of a collective.
    pub(super) fn collective(&self, func: Func, algo: Algo, root: u32) -> Option<Program> {
        let roots = self.collectives.get(number(func, algo))?;
        roots.get(if func.has_root() { root as usize } else { 0 }).copied()
    }

    /// The program of a collective without slots.
    pub(super) fn agreed(&self, func: Func, root: u32) -> Option<Program> {
        self.agreed.get(func as usize)?.get(if func.has_root() { root as usize } else { 0 }).copied()
    }

    /// Steps that name every link, class by class.
    pub(super) fn farewells(&self) -> &[Program] {
        &self.farewells
    }

    /// The program of half a message, or a copy.
    pub(super) fn half(&self, half: Half) -> Program {
        match half {
            Half::Send(_) => self.send,
            Half::Receive(_) => self.receive,
            Half::Copy => self.copy,
        }
    }
}

/// Programs with the steps that are to go to the device.
pub(super) struct Image {
    steps: Vec<Step>,
    programs: Programs,
}

impl Image {
    /// The bytes of all steps.
    pub(super) fn steps(&self) -> &[u8] {
        self.steps.as_bytes()
    }

    /// The programs when the steps are at `address`.
    pub(super) fn at(mut self, address: u64) -> Programs {
        let Programs { collectives, agreed, send, receive, copy, farewells } = &mut self.programs;
        let all = collectives.iter_mut().chain(agreed).flatten().chain([send, receive, copy]).chain(farewells);
        all.for_each(|program| program.steps += address);
        self.programs
    }
}

/// The place of each link among those of its class, protocol and channel: alike for all protocols and channels.
struct Places(HashMap<LinkId, u8>);

impl Places {
    fn of(links: &[LinkNeed]) -> Places {
        let mut places = HashMap::new();
        for class in LinkClass::ALL {
            let first = links.iter().find(|need| need.id.class == class).map(|need| need.id.proto);
            let of_class = links.iter().filter(|need| need.id.class == class && Some(need.id.proto) == first);
            let ids = of_class.filter(|need| need.id.channel == 0).map(|need| need.id);
            places.extend(ids.zip(0..=u8::MAX).map(|(id, place)| (LinkId { proto: Proto::Simple, ..id }, place)));
        }
        Places(places)
    }
}

/// For each class of links, signals on all of them: never carried out, but a kernel that leaves at such an item marks
/// the links. Classes with more links than steps can number are left out.
fn farewells(rank: u32, places: &Places) -> Result<Vec<Schedule>, Error> {
    let one = |class: LinkClass| {
        let mut farewell = Schedule::new(rank, class, 1, 1);
        let mut links: Vec<&LinkId> = places.0.keys().filter(|link| link.class == class).collect();
        links.sort_unstable();
        for link in links {
            let (from, to) = ([link.from], [link.to]);
            let signal = Draft { flags: step_flag::NO_DATA, ..Draft::ONCE };
            farewell.push(match link.to == rank {
                true => Draft { recv: &from, ..signal },
                false => Draft { send: &to, ..signal },
            })?;
        }
        Ok(farewell)
    };
    let all: Vec<Schedule> = LinkClass::ALL.into_iter().map(one).collect::<Result<_, Error>>()?;
    Ok(all.into_iter().filter(|farewell| !farewell.steps.is_empty()).collect())
}

/// Lists of steps, each kept once.
#[derive(Default)]
struct Steps {
    all: Vec<Step>,
    known: HashMap<Vec<Step>, usize>,
}

impl Steps {
    /// Adds a schedule, its links numbered by their places, or as they are.
    fn add(&mut self, mut schedule: Schedule, places: Option<&Places>) -> Result<Program, Error> {
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
        Ok(Program { steps, nsteps: nsteps as u32, nchunks: schedule.nchunks, class: schedule.class })
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
