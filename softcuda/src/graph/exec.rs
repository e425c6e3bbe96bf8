//! Instantiated graphs: launches, updates.

use super::State;
use super::body::{self, Flat};
use super::lanes::{self, Plan};
use super::node::{Step, Work};
use super::object::Held;
use crate::error::{CudaError, Outcome};
use crate::stream::{Op, Stream, Target};
use crate::{event, os};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`
const DEVICE_LAUNCH: u64 = 4;
/// `AUTO_FREE_ON_LAUNCH`, `UPLOAD` and `USE_NODE_PRIORITY`: nothing to free, to upload or to prefer.
const HARMLESS: u64 = 1 | 2 | 8;

/// Why an update was refused (`CUgraphExecUpdateResult`), and the new graph's node that is to blame, 0 for none.
pub struct Refusal {
    /// The number.
    pub reason: i32,
    /// The node.
    pub node: u64,
}

const TOPOLOGY_CHANGED: i32 = 2;
const KIND_CHANGED: i32 = 3;
const FUNCTION_CHANGED: i32 = 4;

struct Part {
    step: Arc<Step>,
    dependencies: Vec<usize>,
    enabled: bool,
}

struct Parts {
    flags: u64,
    id: u64,
    parts: Vec<Part>,
    plan: Plan,
    lanes: Vec<&'static Stream>,
    /// By handle of the node in the graph that this was made from.
    places: HashMap<u64, usize>,
    held: Arc<Vec<Held>>,
    /// Identity of the context that was current: with it goes the memory that copies and memsets use.
    context: Option<Identity>,
    /// Where the latest launch ends.
    last: Option<Target>,
}

/// `CUgraphExec`
#[derive(Default)]
pub struct Exec {
    state: Mutex<Option<Parts>>,
}

impl Exec {
    /// Whether anything of it is being executed.
    pub fn is_busy(&self) -> bool {
        self.state.lock().as_ref().is_some_and(|state| state.lanes.iter().any(|lane| lane.is_busy()))
    }
}

fn with<T>(driver: &'static State, exec: u64, act: impl FnOnce(&mut Parts) -> Outcome<T>) -> Outcome<T> {
    let mut state = driver.graphs.execs.get(exec).ok_or(CudaError::INVALID_VALUE)?.state.lock();
    act(state.as_mut().ok_or(CudaError::INVALID_VALUE)?)
}

/// Tells a context's life from others.
pub type Identity = (u64, u64);

/// `cuGraphInstantiate`, while the context `current` was current.
pub fn instantiate(driver: &'static State, graph: u64, flags: u64, current: Option<Identity>) -> Outcome<u64> {
    if flags & DEVICE_LAUNCH != 0 {
        os::say_once("device launch", "graphs that are launched by the device are not supported");
        return Err(CudaError::NOT_SUPPORTED);
    }
    if flags & !HARMLESS != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let (flat, held) = body::flatten(driver, graph)?;
    let plan = lanes::plan(&flat.iter().map(|node| node.dependencies.clone()).collect::<Vec<_>>());
    let state = Parts {
        flags,
        id: driver.unique(),
        lanes: driver.graphs.lanes.take(driver, plan.tails.len()),
        places: flat.iter().enumerate().map(|(index, node)| (node.node, index)).collect(),
        parts: flat.into_iter().map(Part::new).collect(),
        plan,
        held: Arc::new(held),
        context: current,
        last: None,
    };
    let made = driver.graphs.execs.insert(|exec, _| *exec.state.lock() = Some(state));
    Ok(made.ok_or(CudaError::OUT_OF_MEMORY)?.0)
}

/// `cuGraphExecDestroy`: launches go on to their ends.
pub fn destroy(driver: &'static State, exec: u64) -> Outcome {
    let object = driver.graphs.execs.remove(exec).ok_or(CudaError::INVALID_VALUE)?;
    let state = object.state.lock().take();
    driver.graphs.execs.recycle(exec);
    if let Some(state) = state {
        driver.graphs.lanes.give(&state.lanes);
    }
    Ok(())
}

/// `cuGraphLaunch`: after all that the stream was given and after the graph's previous launch. A stream that captures
/// gets the graph as a child. Contexts of which `is_alive` says no are errors.
pub fn launch(
    driver: &'static State,
    exec: u64,
    stream: &'static Stream,
    is_alive: &dyn Fn(Identity) -> bool,
) -> Outcome {
    if stream.is_captured() {
        let child = with(driver, exec, |state| {
            let flat = state.parts.iter().map(Part::copy).collect::<Vec<_>>();
            body::nest(driver, &flat, state.held.to_vec())
        })?;
        let added = driver.graphs.captures.add(driver, stream, Work::Child(child));
        if added.is_err() {
            body::discard(driver, child)?;
        }
        return added;
    }
    with(driver, exec, |state| {
        state.check_objects(driver, is_alive)?;
        // Before the stream is locked: lanes take any number of operations.
        let device = stream.device();
        state.lanes.iter().for_each(|lane| lane.set_device(device));
        state.lanes.iter().for_each(|lane| lane.make_room());
        let mut started = Ok(());
        stream.submit_around(|start| {
            let (end, result) = state.start(driver, start);
            started = result;
            end
        });
        started
    })
}

/// `cuGraphUpload`: there is nothing to upload.
pub fn check(driver: &'static State, exec: u64) -> Outcome {
    with(driver, exec, |_| Ok(()))
}

/// `cuGraphExecGetFlags` and `cuGraphExecGetId`.
pub fn facts(driver: &'static State, exec: u64) -> Outcome<(u64, u64)> {
    with(driver, exec, |state| Ok((state.flags, state.id)))
}

/// Replaces a node's work, of the same kind, for launches to come.
pub fn set_work(driver: &'static State, exec: u64, node: u64, work: Work) -> Outcome {
    with(driver, exec, |state| {
        let part = state.part(node)?;
        if part.differs(&work).is_some() {
            return Err(CudaError::INVALID_VALUE);
        }
        part.step = Arc::new(Step::new(work));
        Ok(())
    })
}

/// Whether a kernel, copy or memset is done at launches.
pub fn enabled(driver: &'static State, exec: u64, node: u64, set: Option<bool>) -> Outcome<bool> {
    with(driver, exec, |state| {
        let part = state.part(node)?;
        if part.step.work.kind() > 2 {
            return Err(CudaError::INVALID_VALUE);
        }
        part.enabled = set.unwrap_or(part.enabled);
        Ok(part.enabled)
    })
}

/// `cuGraphExecUpdate`: takes over everything from a graph of the same shape. `Ok(Err(…))`: nothing was changed.
pub fn update(driver: &'static State, exec: u64, graph: u64) -> Outcome<Result<(), Refusal>> {
    let (flat, held) = body::flatten(driver, graph)?;
    let mut held = Arc::new(held);
    let updated = with(driver, exec, |state| {
        if let Some(refusal) = state.compare(&flat) {
            return Ok(Err(refusal));
        }
        for (part, new) in state.parts.iter_mut().zip(flat) {
            part.step = Arc::new(Step::new(new.work));
        }
        std::mem::swap(&mut state.held, &mut held);
        Ok(Ok(()))
    });
    // Destructors may run now: not while the exec is locked.
    drop(held);
    updated
}

impl Part {
    fn new(flat: Flat) -> Part {
        Part { step: Arc::new(Step::new(flat.work)), dependencies: flat.dependencies, enabled: true }
    }

    fn copy(&self) -> (Work, Vec<usize>) {
        let work = if self.enabled { self.step.work.clone() } else { Work::Empty };
        (work, self.dependencies.clone())
    }

    /// Why this work cannot take the place of the present one.
    fn differs(&self, work: &Work) -> Option<i32> {
        match (&self.step.work, work) {
            (Work::Kernel(old), Work::Kernel(new)) => {
                (old.launch.device != new.launch.device).then_some(FUNCTION_CHANGED)
            }
            (old, new) => (old.kind() != new.kind()).then_some(KIND_CHANGED),
        }
    }
}

impl Parts {
    fn part(&mut self, node: u64) -> Outcome<&mut Part> {
        let place = *self.places.get(&node).ok_or(CudaError::INVALID_VALUE)?;
        Ok(&mut self.parts[place])
    }

    fn compare(&self, flat: &[Flat]) -> Option<Refusal> {
        for (part, new) in self.parts.iter().zip(flat) {
            if part.dependencies != new.dependencies {
                return Some(Refusal { reason: TOPOLOGY_CHANGED, node: new.node });
            }
            if let Some(reason) = part.differs(&new.work) {
                return Some(Refusal { reason, node: new.node });
            }
        }
        (self.parts.len() != flat.len()).then_some(Refusal { reason: TOPOLOGY_CHANGED, node: 0 })
    }

    /// Events and contexts that are gone make the launch fail before anything has begun.
    fn check_objects(&self, driver: &'static State, is_alive: &dyn Fn(Identity) -> bool) -> Outcome {
        let alive = self.context.is_none_or(is_alive);
        self.parts.iter().try_for_each(|part| match &part.step.work {
            Work::Record(event) | Work::Wait(event) => event::lookup(driver, *event).map(drop),
            Work::Copy(_) | Work::Fill(_) | Work::Write(_) | Work::WaitValue(_) if !alive => {
                Err(CudaError::CONTEXT_IS_DESTROYED)
            }
            Work::Kernel(kernel) if !is_alive(kernel.launch.context) => Err(CudaError::CONTEXT_IS_DESTROYED),
            _ => Ok(()),
        })
    }

    /// Puts everything into the lanes; it begins at `start`. The place where it ends.
    fn start(&mut self, driver: &'static State, start: Target) -> (Target, Outcome) {
        let mut done = Vec::with_capacity(self.parts.len());
        let mut result = Ok(());
        for (index, part) in self.parts.iter().enumerate() {
            let lane = self.lanes[self.plan.lane[index]];
            if part.dependencies.is_empty() {
                self.last.into_iter().chain([start]).for_each(|place| wait(lane, place));
            }
            for before in &self.plan.waits[index] {
                wait(lane, Target { stream: self.lanes[self.plan.lane[*before]], number: done[*before] });
            }
            if part.enabled {
                result = result.and(submit(driver, lane, &part.step));
            }
            done.push(lane.end().number);
        }
        let end = self.lanes[0];
        if self.parts.is_empty() {
            self.last.into_iter().chain([start]).for_each(|place| wait(end, place));
        }
        self.plan.tails.iter().for_each(|tail| {
            wait(end, Target { stream: self.lanes[self.plan.lane[*tail]], number: done[*tail] });
        });
        result = result.and(end.submit(Op::Retire(self.held.clone())).map(drop));
        self.last = Some(end.end());
        (end.end(), result)
    }
}

fn wait(lane: &'static Stream, place: Target) {
    if !std::ptr::eq(lane, place.stream) && !place.is_reached() {
        // A lane never captures, so that it takes everything.
        let _ = lane.submit(Op::Wait(place));
    }
}

fn submit(driver: &'static State, lane: &'static Stream, step: &Arc<Step>) -> Outcome {
    match step.work {
        Work::Empty | Work::Child(_) => Ok(()),
        Work::Record(event) => event::lookup(driver, event)?.record_by_graph(lane),
        Work::Wait(event) => event::lookup(driver, event)?.hold_up(lane),
        _ => lane.submit(Op::Node(step.clone())).map(drop),
    }
}
