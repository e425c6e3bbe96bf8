//! The side that has the ranks: a process with a thread for each worker, which carries out orders.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use crate::common::cuda::{Context, Cuda, Stream};
use crate::common::nccl::{Comm, Nccl, UniqueId};
use crate::common::oracle::{Pattern, Reduction};
use crate::orders::{Case, Config, Order, Reply, from_hex, to_hex};

/// The variable that tells a process that it is a worker, and which.
pub const CONFIG: &str = "OXCCL_PERF_WORKER";

/// Bytes that are checked at a time, so that checking needs little memory.
const CHUNK: usize = 8 << 20;
/// What output buffers hold before a checked call: no pattern has it for long.
const POISON: u8 = 0xa5;

/// Runs this process as a worker, if it is one; returns the exit code.
pub fn main_if_worker() -> Option<i32> {
    let config = std::env::var(CONFIG).ok()?;
    let result = serde_json::from_str(&config).map_err(|error| error.to_string()).and_then(serve);
    Some(match result {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("perf: worker: {why}");
            3
        }
    })
}

/// Takes orders from the socket that is this process's stdin until it closes or says `Quit`.
fn serve(config: Config) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(text)?);
    let answers = Arc::new(Mutex::new(socket.try_clone().map_err(text)?));
    let mut inboxes: Vec<(usize, Sender<Order>)> = Vec::new();
    let mut threads = Vec::new();
    for worker in config.first..config.first + config.threads {
        let (sender, inbox) = mpsc::channel();
        let (config, answers) = (config.clone(), Arc::clone(&answers));
        inboxes.push((worker, sender));
        threads.push(thread::spawn(move || work(&config, worker, &inbox, &answers)));
    }
    for line in BufReader::new(socket).lines() {
        let line = line.map_err(text)?;
        let (to, order): (Option<usize>, Order) = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        for (worker, inbox) in &inboxes {
            if to.is_none_or(|to| to == *worker) {
                let _ = inbox.send(order.clone());
            }
        }
        if order == Order::Quit {
            threads.into_iter().for_each(|thread| drop(thread.join()));
            return Ok(());
        }
    }
    // The parent is gone. Threads may be inside a collective that will never end.
    std::process::exit(3);
}

/// One worker's thread: carries out orders until `Quit` or a failure.
fn work(config: &Config, worker: usize, inbox: &Receiver<Order>, answers: &Mutex<UnixStream>) {
    let answer = |reply: Reply| {
        let line = serde_json::to_string(&(worker, reply)).unwrap_or_default() + "\n";
        let mut socket = answers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // If the parent is gone, the reader of orders ends the process.
        let _ = socket.write_all(line.as_bytes());
    };
    let mut ranks = match Ranks::load(config, worker) {
        Ok((ranks, reply)) => {
            answer(reply);
            ranks
        }
        Err(why) => return answer(Reply::Failed(why)),
    };
    for order in inbox {
        let last = order == Order::Quit;
        let reply = ranks.carry_out(order).unwrap_or_else(Reply::Failed);
        let failed = matches!(reply, Reply::Failed(_));
        answer(reply);
        if last || failed {
            return;
        }
    }
}

/// One rank and what it has.
struct Rank {
    rank: usize,
    /// The ordinal of its device.
    device: usize,
    context: Context,
    stream: Stream,
    comm: Comm,
    send: u64,
    recv: u64,
}

/// The ranks of one worker.
struct Ranks {
    cuda: Cuda,
    nccl: Nccl,
    nranks: usize,
    ranks: Vec<Rank>,
    /// The patterns of the last check: making them takes longer than using them.
    patterns: Option<(Reduction, Vec<Pattern>, Pattern)>,
}

type Outcome<T> = Result<T, String>;

fn told<T, E: std::fmt::Display>(result: Result<T, E>) -> Outcome<T> {
    result.map_err(|error| error.to_string())
}

impl Ranks {
    fn load(config: &Config, worker: usize) -> Outcome<(Ranks, Reply)> {
        let cuda = Cuda::load("libcuda.so.1")?;
        let nccl = Nccl::load(&config.nccl)?;
        let devices = told(cuda.device_count())?;
        let mut ranks = Vec::new();
        let mut names = Vec::new();
        for rank in worker * config.per_worker..(worker + 1) * config.per_worker {
            // As the library has it: several ranks of a device only where the user allows it.
            if rank >= devices && (devices == 0 || std::env::var_os("NCCL_MULTI_RANK_GPU_ENABLE").is_none()) {
                let plural = if devices == 1 { "" } else { "s" };
                return Err(format!("rank {rank} needs device {rank}, but there is {devices} device{plural}"));
            }
            let context = told(cuda.use_device(rank % devices))?;
            let stream = told(cuda.stream())?;
            names.push(told(cuda.device_name(rank % devices))?);
            ranks.push(Rank { rank, device: rank % devices, context, stream, comm: Comm::NULL, send: 0, recv: 0 });
        }
        let version = told(nccl.version())?;
        let ranks = Ranks { cuda, nccl, nranks: config.nranks, ranks, patterns: None };
        Ok((ranks, Reply::Ready { version, devices: names }))
    }

    fn carry_out(&mut self, order: Order) -> Outcome<Reply> {
        let start = Instant::now();
        match order {
            Order::UniqueId => return Ok(Reply::UniqueId(to_hex(&told(self.nccl.unique_id())?.0))),
            Order::Init(id) => self.init(&id)?,
            Order::Allocate(bytes) => self.allocate(bytes)?,
            Order::Run { case, calls, blocking } => return self.run(case, calls, blocking).map(Reply::Took),
            Order::Check(case, round) => {
                let (wrong, first) = self.check(case, round)?;
                return Ok(Reply::Wrong(wrong, first));
            }
            Order::Quit => self.quit()?,
        }
        Ok(Reply::Took(start.elapsed().as_secs_f64()))
    }

    /// Puts calls for several ranks of this thread into a group, as they must be.
    fn grouped(&mut self, mut call: impl FnMut(&Cuda, &Nccl, &mut Rank) -> Outcome<()>) -> Outcome<()> {
        let group = self.ranks.len() > 1;
        if group {
            told(self.nccl.group_start())?;
        }
        let (cuda, nccl) = (self.cuda, self.nccl);
        let result = self.ranks.iter_mut().try_for_each(|rank| call(&cuda, &nccl, rank));
        if group {
            told(self.nccl.group_end())?;
        }
        result
    }

    fn init(&mut self, id: &str) -> Outcome<()> {
        let bytes = from_hex(id).and_then(|bytes| bytes.try_into().ok()).ok_or("the id is damaged")?;
        let nranks = self.nranks;
        self.grouped(|cuda, nccl, rank| {
            told(cuda.set_current(rank.context))?;
            // SAFETY: the rank stays where it is until the group has ended, in `grouped`.
            told(unsafe { nccl.init_rank(&mut rank.comm, nranks, UniqueId(bytes), rank.rank) })
        })
    }

    fn allocate(&mut self, bytes: usize) -> Outcome<()> {
        for rank in &mut self.ranks {
            told(self.cuda.set_current(rank.context))?;
            rank.send = told(self.cuda.alloc(bytes.max(1)))?;
            rank.recv = told(self.cuda.alloc(bytes.max(1)))?;
            // The first touch of memory is slow and not what is measured.
            told(self.cuda.fill(rank.send, 0, bytes))?;
            told(self.cuda.fill(rank.recv, 0, bytes))?;
        }
        Ok(())
    }

    fn call(&mut self, case: Case) -> Outcome<()> {
        let what = case.reduction(self.nranks);
        self.grouped(|_, nccl, rank| {
            let send = if case.in_place { rank.recv } else { rank.send };
            let how = (what.dtype, what.op);
            // SAFETY: `allocate` made both buffers as large as the largest case, and they outlive the call:
            // `quit` frees them after waiting for the stream.
            told(unsafe { nccl.all_reduce((send, rank.recv), case.count, how, rank.comm, rank.stream.0) })
        })
    }

    fn wait(&self) -> Outcome<()> {
        for rank in &self.ranks {
            told(self.cuda.set_current(rank.context))?;
            told(self.cuda.wait(rank.stream))?;
        }
        Ok(())
    }

    /// Seconds for so many calls, from when the ranks have met (by a call on one element).
    fn run(&mut self, case: Case, calls: u64, blocking: bool) -> Outcome<f64> {
        self.call(Case { count: case.count.min(1), ..case })?;
        self.wait()?;
        let start = Instant::now();
        for _ in 0..calls {
            self.call(case)?;
            if blocking {
                self.wait()?;
            }
        }
        self.wait()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Writes known data, makes one call, and compares the output (and the input, which must be as it was).
    fn check(&mut self, case: Case, round: usize) -> Outcome<(usize, Option<String>)> {
        let what = case.reduction(self.nranks);
        if self.patterns.as_ref().is_none_or(|(known, ..)| *known != what) {
            let inputs = self.ranks.iter().map(|rank| what.input(rank.rank)).collect();
            self.patterns = Some((what, inputs, what.expected()));
        }
        let Some((_, inputs, expected)) = self.patterns.clone() else { return Ok((0, None)) };
        let bytes = case.count * what.dtype.size();
        let phase = round * 1009;
        for (rank, input) in self.ranks.iter().zip(&inputs) {
            told(self.cuda.set_current(rank.context))?;
            told(self.cuda.fill(rank.recv, POISON, bytes))?;
            self.write(if case.in_place { rank.recv } else { rank.send }, bytes, input, phase, what)?;
            // The legacy stream, not the device: another rank of this device may have begun, and waits for this one.
            told(self.cuda.wait(Stream(std::ptr::null_mut())))?;
        }
        self.call(case)?;
        self.wait()?;
        let mut total = (0, None);
        for (rank, input) in self.ranks.iter().zip(&inputs) {
            told(self.cuda.set_current(rank.context))?;
            self.compare(rank, "output", (rank.recv, bytes), &expected, phase, what, &mut total)?;
            if !case.in_place {
                self.compare(rank, "input", (rank.send, bytes), input, phase, what, &mut total)?;
            }
        }
        Ok(total)
    }

    fn write(&self, to: u64, bytes: usize, pattern: &Pattern, phase: usize, what: Reduction) -> Outcome<()> {
        let mut staging = vec![0; bytes.min(CHUNK)];
        for at in (0..bytes).step_by(CHUNK) {
            let part = &mut staging[..CHUNK.min(bytes - at)];
            pattern.fill(part, phase + at / what.dtype.size());
            told(self.cuda.copy_to_device(to + at as u64, part))?;
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "all of them name what is compared")]
    fn compare(
        &self,
        rank: &Rank,
        name: &str,
        (from, bytes): (u64, usize),
        pattern: &Pattern,
        phase: usize,
        what: Reduction,
        total: &mut (usize, Option<String>),
    ) -> Outcome<()> {
        let size = what.dtype.size();
        let mut staging = vec![0; bytes.min(CHUNK)];
        for at in (0..bytes).step_by(CHUNK) {
            let part = &mut staging[..CHUNK.min(bytes - at)];
            told(self.cuda.copy_to_host(part, from + at as u64))?;
            let phase = phase + at / size;
            total.0 += pattern.count_wrong(part, phase);
            if total.1.is_none() {
                total.1 = pattern.first_wrong(part, phase).map(|(index, got, want)| {
                    let index = at / size + index;
                    format!("rank {} {name}[{index}] is {}, not {}", rank.rank, bits(&got), bits(&want))
                });
            }
        }
        Ok(())
    }

    fn quit(&mut self) -> Outcome<()> {
        self.wait()?;
        self.grouped(|_, nccl, rank| {
            let comm = std::mem::replace(&mut rank.comm, Comm::NULL);
            told(nccl.destroy(comm))
        })?;
        for rank in &self.ranks {
            told(self.cuda.set_current(rank.context))?;
            for buffer in [rank.send, rank.recv].into_iter().filter(|buffer| *buffer != 0) {
                // SAFETY: the stream is idle, and nothing else had the address.
                told(unsafe { self.cuda.free(buffer) })?;
            }
            told(self.cuda.destroy_stream(rank.stream))?;
            told(self.cuda.release_device(rank.device))?;
        }
        Ok(())
    }
}

/// An element's bits, the highest first.
fn bits(bytes: &[u8]) -> String {
    let high_first: Vec<u8> = bytes.iter().rev().copied().collect();
    format!("0x{}", to_hex(&high_first))
}
