//! The side that has the ranks: a process with a thread for each worker, which carries out orders.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use crate::common::collectives::{Call, Collectives};
use crate::common::cuda::{Context, Cuda, Stream};
use crate::common::nccl::{Comm, Nccl, UniqueId};
use crate::contents::{Contents, Side};
use crate::orders::{Case, Config, Order, Reply, from_hex, to_hex};
use crate::subject::Subject;

/// The variable that tells a process that it is a worker, and which.
pub const CONFIG: &str = "OXCCL_PERF_WORKER";

/// Bytes of a block that buffers hold at least: the largest element.
const LEAST: usize = 8;

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
    /// Of both buffers' registrations.
    handles: Vec<usize>,
}

impl Rank {
    fn side(&self, case: Case, nranks: usize) -> Side {
        Side { case, nranks, rank: self.rank, buffers: (self.send, self.recv) }
    }
}

/// The ranks of one worker.
struct Ranks {
    cuda: Cuda,
    nccl: Nccl,
    nranks: usize,
    ranks: Vec<Rank>,
    /// Buffers are of `ncclMemAlloc`, and registered.
    register: bool,
    /// Name or path of the library.
    library: String,
    calls: Option<Collectives>,
    contents: Contents,
}

/// Errors are told to the parent in words.
pub type Outcome<T> = Result<T, String>;

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
            ranks.push(Rank {
                rank,
                device: rank % devices,
                context,
                stream,
                comm: Comm::NULL,
                send: 0,
                recv: 0,
                handles: Vec::new(),
            });
        }
        let version = told(nccl.version())?;
        let ranks = Ranks {
            cuda,
            nccl,
            nranks: config.nranks,
            ranks,
            register: config.register,
            library: config.nccl.clone(),
            calls: None,
            contents: Contents::default(),
        };
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
        let bytes = bytes.max(LEAST * self.nranks);
        for rank in &mut self.ranks {
            told(self.cuda.set_current(rank.context))?;
            for buffer in [&mut rank.send, &mut rank.recv] {
                if self.register {
                    *buffer = told(self.nccl.mem_alloc(bytes))?;
                    rank.handles.push(told(self.nccl.register(rank.comm, *buffer, bytes))?);
                } else {
                    *buffer = told(self.cuda.alloc(bytes))?;
                }
            }
            // The first touch of memory is slow and not what is measured. A fill returns before it is done, and the
            // ranks' streams do not wait for it: it would go on during the first row.
            told(self.cuda.fill(rank.send, 0, bytes))?;
            told(self.cuda.fill(rank.recv, 0, bytes))?;
            told(self.cuda.wait(Stream(std::ptr::null_mut())))?;
        }
        Ok(())
    }

    fn call(&mut self, case: Case) -> Outcome<()> {
        let nranks = self.nranks;
        let calls = self.collectives(case.subject)?;
        self.grouped(|_, nccl, rank| {
            let side = rank.side(case, nranks);
            let (send, recv) = side.arguments();
            let stream = rank.stream.0;
            let (count, dtype) = (case.count, case.dtype());
            let Some(calls) = &calls else {
                // SAFETY: `allocate` made both buffers as large as the largest case, and they outlive the call: `quit`
                // frees them after waiting for the stream.
                return told(unsafe { nccl.all_reduce((send, recv), count, (dtype, case.op()), rank.comm, stream) });
            };
            if let Some(func) = case.subject.func() {
                let call = Call { func, count, dtype: dtype as i32, op: case.op() as i32, root: case.root as i32 };
                // SAFETY: as above.
                return told(unsafe { calls.call(call, (send, recv), rank.comm, stream) });
            }
            let (to, from) = side.neighbours();
            told(nccl.group_start())?;
            // SAFETY: as above.
            let sent = unsafe { calls.send(send, (count, dtype), to as i32, rank.comm, stream) };
            // SAFETY: as above.
            let received = unsafe { calls.recv(recv, (count, dtype), from as i32, rank.comm, stream) };
            told(nccl.group_end())?;
            told(sent)?;
            told(received)
        })
    }

    /// The functions beyond AllReduce, which a library under test may lack as long as nobody asks.
    fn collectives(&mut self, subject: Subject) -> Outcome<Option<Collectives>> {
        if subject == Subject::AllReduce {
            return Ok(None);
        }
        if self.calls.is_none() {
            self.calls = Some(Collectives::load(&self.library)?);
        }
        Ok(self.calls)
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
        self.call(Case { subject: Subject::AllReduce, count: 1, in_place: false, ..case })?;
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
        let phase = round * 1009;
        for rank in &self.ranks {
            told(self.cuda.set_current(rank.context))?;
            self.contents.write(&self.cuda, &rank.side(case, self.nranks), phase)?;
            // The legacy stream, not the device: another rank of this device may have begun, and waits for this one.
            told(self.cuda.wait(Stream(std::ptr::null_mut())))?;
        }
        self.call(case)?;
        self.wait()?;
        let mut total = (0, None);
        for rank in &self.ranks {
            told(self.cuda.set_current(rank.context))?;
            self.contents.compare(&self.cuda, &rank.side(case, self.nranks), phase, &mut total)?;
        }
        Ok(total)
    }

    fn quit(&mut self) -> Outcome<()> {
        self.wait()?;
        for rank in &mut self.ranks {
            rank.handles.drain(..).try_for_each(|handle| told(self.nccl.deregister(rank.comm, handle)))?;
        }
        self.grouped(|_, nccl, rank| {
            let comm = std::mem::replace(&mut rank.comm, Comm::NULL);
            told(nccl.destroy(comm))
        })?;
        for rank in &self.ranks {
            told(self.cuda.set_current(rank.context))?;
            for buffer in [rank.send, rank.recv].into_iter().filter(|buffer| *buffer != 0) {
                // SAFETY: the stream is idle, and nothing else had the address.
                unsafe { if self.register { told(self.nccl.mem_free(buffer)) } else { told(self.cuda.free(buffer)) } }?;
            }
            told(self.cuda.destroy_stream(rank.stream))?;
            told(self.cuda.release_device(rank.device))?;
        }
        Ok(())
    }
}
