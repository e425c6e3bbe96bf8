//! Kernel launches: arguments, blocks, and the threads that run them.

use crate::callout::{BlockMemory, Coordinates, Entry};
use crate::device::{self, Device};
use crate::memory::access::Arguments;
use crate::os;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Looks for the next job before an idle block thread sleeps.
const SPINS: u32 = 20;
/// Looks with a yield between them.
const YIELDS: u32 = 20;
/// An idle block thread ends after this long.
const IDLE: Duration = Duration::from_secs(2);

/// A launch, filled in at submission and used again after execution.
#[derive(Default)]
pub struct Launch {
    /// Index of the device.
    pub device: usize,
    /// The group of its SMs that it may use.
    pub sms: usize,
    /// Identity of the context.
    pub context: (u64, u64),
    /// The code.
    pub entry: Entry,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Bytes of shared memory, static and dynamic.
    pub shared: usize,
    /// Handle of the function, and the dynamic bytes alone: what a graph's node tells of itself.
    pub function: u64,
    /// See `function`.
    pub dynamic: u32,
    /// A copy of the arguments.
    pub arguments: Arguments,
    memory: BlockMemory,
}

impl Launch {
    /// Makes this one equal to another.
    pub fn copy_from(&mut self, other: &Launch) {
        (self.device, self.sms, self.context) = (other.device, other.sms, other.context);
        self.entry = other.entry;
        (self.grid, self.block, self.shared) = (other.grid, other.block, other.shared);
        (self.function, self.dynamic) = (other.function, other.dynamic);
        self.arguments.copy_from(&other.arguments);
    }

    fn coordinates(&self, block: u64, thread: u64) -> Coordinates {
        Coordinates {
            grid: self.grid,
            block: self.block,
            index: split(block, self.grid),
            thread: split(thread, self.block),
        }
    }
}

/// x, y, z of a linear number; x runs fastest.
fn split(number: u64, size: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(size[0]), u64::from(size[1]));
    [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32]
}

fn volume(size: [u32; 3]) -> u64 {
    size.iter().map(|n| u64::from(*n)).product()
}

/// Runs a launch to its end. The record comes back for use again.
pub fn execute(driver: &'static device::State, threads: &'static Pool, mut launch: Box<Launch>) -> Option<Box<Launch>> {
    let Some(device) = driver.devices.get(launch.device) else {
        return Some(launch);
    };
    if volume(launch.grid) == 1 && volume(launch.block) == 1 {
        device.sms.start_single(launch.sms);
        let place = launch.coordinates(0, 0);
        let launch_ref = &mut *launch;
        launch_ref.memory.prepare(launch_ref.shared);
        launch_ref.entry.run(&place, &launch_ref.memory, &launch_ref.arguments);
        device.sms.end_block(launch.sms);
        return Some(launch);
    }
    let running = Arc::new(Running::new(device, *launch));
    running.start(threads).into_iter().for_each(Job::run);
    running.wait();
    None
}

/// A launch of several threads, while they run.
struct Running {
    device: &'static Device,
    launch: Launch,
    blocks_left: AtomicU64,
    finished: Mutex<bool>,
    end: Condvar,
}

/// A block of it.
struct Block {
    running: Arc<Running>,
    number: u64,
    memory: BlockMemory,
    threads_left: AtomicU64,
}

/// A thread of a block, for the pool.
struct Job {
    block: Arc<Block>,
    thread: u64,
}

impl Running {
    fn new(device: &'static Device, launch: Launch) -> Running {
        let blocks_left = AtomicU64::new(volume(launch.grid));
        Running { device, launch, blocks_left, finished: Mutex::new(false), end: Condvar::new() }
    }

    /// Starts all blocks in order, each as soon as an SM is free. The very last thread is the caller's.
    fn start(self: &Arc<Self>, threads: &'static Pool) -> Option<Job> {
        let turn = self.device.sms.turn(self.launch.sms);
        let mut held: Option<Job> = None;
        for number in 0..volume(self.launch.grid) {
            // The caller may not keep a thread back while it waits for an SM: the thread's block would never end.
            held.take().into_iter().for_each(|job| threads.run(job));
            turn.start_block();
            for job in Block::jobs(self, number) {
                held.replace(job).into_iter().for_each(|job| threads.run(job));
            }
        }
        held
    }

    fn wait(&self) {
        let mut finished = self.finished.lock();
        while !*finished {
            self.end.wait(&mut finished);
        }
    }
}

impl Block {
    fn jobs(running: &Arc<Running>, number: u64) -> impl Iterator<Item = Job> + use<> {
        let threads = volume(running.launch.block);
        let mut memory = BlockMemory::default();
        memory.prepare(running.launch.shared);
        let block = Block { running: running.clone(), number, memory, threads_left: AtomicU64::new(threads) };
        let block = Arc::new(block);
        (0..threads).map(move |thread| Job { block: block.clone(), thread })
    }
}

impl Job {
    fn run(self) {
        let Block { running, number, memory, threads_left } = &*self.block;
        let place = running.launch.coordinates(*number, self.thread);
        running.launch.entry.run(&place, memory, &running.launch.arguments);
        if threads_left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        running.device.sms.end_block(running.launch.sms);
        if running.blocks_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            *running.finished.lock() = true;
            running.end.notify_all();
        }
    }
}

/// A thread of the pool and the job that it is given.
#[derive(Default)]
struct Seat {
    given: AtomicBool,
    job: Mutex<Option<Job>>,
    wake: Condvar,
}

/// Threads for the blocks of launches: made when needed, ended when idle for long.
#[derive(Default)]
pub struct Pool {
    idle: Mutex<Vec<Arc<Seat>>>,
    count: AtomicUsize,
}

impl Pool {
    /// Gives a job to an idle thread or a new one: never to one that is busy, since jobs wait for each other.
    fn run(&'static self, job: Job) {
        let seat = self.idle.lock().pop();
        match seat {
            Some(seat) => seat.give(job),
            None => self.start(job),
        }
    }

    fn start(&'static self, job: Job) {
        let seat = Arc::new(Seat::default());
        seat.give(job);
        self.count.fetch_add(1, Ordering::Relaxed);
        loop {
            let own = seat.clone();
            match os::spawn("softcuda-block", move || self.serve(&own)) {
                Ok(_) => return,
                Err(error) => {
                    // All threads of a block must exist for it to end; others' ends make room.
                    os::say_once("block", &format!("cannot start a block's thread: {error}; trying again"));
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    fn serve(&self, seat: &Arc<Seat>) {
        while let Some(job) = seat.take(self) {
            job.run();
            self.idle.lock().push(seat.clone());
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Seat {
    fn give(&self, job: Job) {
        *self.job.lock() = Some(job);
        self.given.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// The next job; `None` after a long time without one.
    fn take(self: &Arc<Self>, pool: &Pool) -> Option<Job> {
        for look in 0..SPINS + YIELDS {
            if self.given.load(Ordering::Acquire) {
                break;
            }
            if look < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let mut job = self.job.lock();
        while job.is_none() {
            if self.wake.wait_for(&mut job, IDLE).timed_out() && job.is_none() && self.leave(pool) {
                return None;
            }
        }
        self.given.store(false, Ordering::Relaxed);
        job.take()
    }

    /// Takes the seat off the idle list; false: a job is on its way.
    fn leave(self: &Arc<Self>, pool: &Pool) -> bool {
        let mut idle = pool.idle.lock();
        let before = idle.len();
        idle.retain(|seat| !Arc::ptr_eq(seat, self));
        idle.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_places() {
        assert_eq!(split(0, [2, 3, 4]), [0, 0, 0]);
        assert_eq!(split(5, [2, 3, 4]), [1, 2, 0]);
        assert_eq!(split(23, [2, 3, 4]), [1, 2, 3]);
        assert_eq!(volume([2, 3, 4]), 24);
    }
}
