//! A rank of a run: it calls what the plan says and checks what comes, while a watchdog looks at its communicator, as
//! those of frameworks do.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};

use crate::common::abi::{Comm, Config, IN_PROGRESS, SUCCESS, UniqueId};
use crate::common::collectives::Collectives;
use crate::common::communicators::Communicators;
use crate::common::cuda::{Cuda, Stream};
use crate::common::launch::Place;
use crate::common::nccl::Nccl;
use crate::common::oracle::{DataType, RedOp};
use crate::common::resources::Resources;
use crate::data::{Patterns, Prepared};
use crate::plan::{Expected, Fault, Moment, Plan, Round};

/// How long an abort may take, on a machine that is busy.
const ABORT: Duration = Duration::from_secs(4);
/// How long it may take until all is gone that a communicator had: an event loop may still wait for other processes.
const GONE: Duration = Duration::from_secs(30);
/// How often the watchdog looks.
const LOOK: Duration = Duration::from_millis(3);

/// What ranks need of the libraries.
pub struct Libraries {
    pub nccl: Nccl,
    pub communicators: Communicators,
    pub collectives: Collectives,
    pub cuda: Cuda,
}

impl Libraries {
    /// Loads them, once for the process.
    pub fn load() -> &'static Libraries {
        static LOADED: OnceLock<Libraries> = OnceLock::new();
        LOADED.get_or_init(|| Libraries {
            nccl: Nccl::load("libnccl.so.2").expect("libnccl"),
            communicators: Communicators::load(),
            collectives: Collectives::load("libnccl.so.2").expect("libnccl"),
            cuda: Cuda::load("libcuda.so.1").expect("libcuda"),
        })
    }
}

/// Why a rank has given up its communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The library said so.
    Error(String),
    /// Nothing went on for too long.
    Patience,
    /// It is this rank's fault to do so.
    Own,
}

/// A rank has given up.
#[derive(Debug)]
struct GivenUp;

/// What the threads of a rank share.
struct Rank {
    libraries: &'static Libraries,
    plan: Plan,
    /// Of the id that the ranks meet by.
    name: String,
    rank: usize,
    stream: Stream,
    patience: Duration,
    comm: Mutex<Option<Comm>>,
    verdict: Mutex<Option<Verdict>>,
    /// When a round ended last.
    progress: Mutex<Instant>,
    /// The communicator is being destroyed: it is asked nothing any more.
    ending: AtomicBool,
    over: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a rank waits where nothing goes on. Who is gone in the middle of a call of its own is waited for half a
/// minute by the ranks of its host, since what it had to send may be there.
fn patience(expected: Expected) -> Duration {
    Duration::from_secs(match expected {
        Expected::Success | Expected::EndsByItself => 60,
        Expected::Ends => 5,
    })
}

/// A rank's whole life. Its last line says how it came to its end.
pub fn live(me: &Place, plan: Plan) {
    let libraries = Libraries::load();
    let stream = prepare(libraries, me, &plan.places);
    let before = Resources::now();
    let verdict = run(me, libraries, stream, plan, "id");
    assert_nothing_left(&before, me.rank == 0 && verdict.is_some());
    match verdict {
        None => println!("END finished"),
        Some(verdict) => println!("END {verdict:?}"),
    }
}

/// A stream on this rank's device, of which each rank of a host has another one.
pub fn prepare(libraries: &Libraries, me: &Place, places: &[usize]) -> Stream {
    let device = places[..me.rank].iter().filter(|host| **host == places[me.rank]).count();
    libraries.cuda.use_device(device).expect("a device");
    let stream = libraries.cuda.stream().expect("a stream");
    warm_up(libraries, stream);
    stream
}

/// A communicator's life, by an id of this name; why it was given up, if it was.
pub fn run(me: &Place, libraries: &'static Libraries, stream: Stream, plan: Plan, name: &str) -> Option<Verdict> {
    let key = plan.encrypted.then(|| "k".repeat(40));
    libraries.nccl.set_encryption(key.as_deref()).expect("a key");
    let rank = Rank {
        libraries,
        name: name.to_string(),
        rank: me.rank,
        stream,
        patience: patience(plan.expected()),
        plan,
        comm: Mutex::new(None),
        verdict: Mutex::new(None),
        progress: Mutex::new(Instant::now()),
        ending: AtomicBool::new(false),
        over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        scope.spawn(|| rank.watch());
        // Its own verdict says why.
        let _ = rank.work(scope, me);
        rank.over.store(true, Ordering::Relaxed);
    });
    rank.verdict.into_inner().expect("no panic")
}

/// Fails unless all is gone that came since. A root stays for a while where ranks may still come that must be told of a
/// failure: its listener, and the event loop.
pub fn assert_nothing_left(before: &Resources, root: bool) {
    let of_root =
        |line: &String| ["oxccl-helper", "fds: anon_inode", "fds: socket"].iter().any(|part| line.contains(part));
    let until = Instant::now() + GONE;
    loop {
        let mut left = Resources::now().grown(before);
        left.retain(|line| !(line.contains("softcuda-kicker") || root && of_root(line)));
        if left.is_empty() {
            return;
        }
        if Instant::now() > until {
            eprintln!("left behind:\n  {}", left.join("\n  "));
            process::exit(5);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// A communicator of this process alone comes and goes, so that the device has all its threads.
fn warm_up(libraries: &Libraries, stream: Stream) {
    let Libraries { nccl, communicators, cuda, .. } = libraries;
    let (code, comm) = communicators.init((1, 0), nccl.unique_id().expect("an id"), None);
    assert_eq!(code, SUCCESS, "{}", nccl.last_error());
    let buffer = cuda.alloc(4).expect("memory");
    cuda.fill(buffer, 0, 4).expect("a fill");
    cuda.synchronize().expect("it is filled");
    let kind = (DataType::Uint32, RedOp::Sum);
    // SAFETY: the buffer has room for a number, and is freed when the stream has done its work.
    unsafe { nccl.all_reduce((buffer, buffer), 1, kind, comm, stream.0) }.expect("a call");
    cuda.wait(stream).expect("the stream ends");
    // SAFETY: nothing uses it any more.
    unsafe { cuda.free(buffer) }.expect("free");
    nccl.destroy(comm).expect("destroy");
}

impl Rank {
    fn work<'s>(&'s self, scope: &'s Scope<'s, '_>, me: &Place) -> Result<(), GivenUp> {
        let comm = self.join(scope, me)?;
        let mut patterns = Patterns::default();
        for (number, round) in self.plan.rounds.iter().enumerate() {
            self.arm(scope, me, Some(number));
            self.round(comm, &mut patterns, number, round)?;
            *lock(&self.progress) = Instant::now();
        }
        self.leave(comm)
    }

    /// Sets this rank's fault going, if it is to come now.
    fn arm<'s>(&'s self, scope: &'s Scope<'s, '_>, me: &Place, round: Option<usize>) {
        let due = |moment: Moment| moment.round == round;
        let after = move |moment: Moment, then: Box<dyn FnOnce() + Send + 's>| {
            scope.spawn(move || {
                thread::sleep(moment.delay);
                then();
            });
        };
        let signal = |signal| {
            Box::new(move || {
                let _ = kill_process(getpid(), signal);
            })
        };
        match self.plan.fault {
            Fault::Kill { rank, moment } if rank == me.rank && due(moment) => after(moment, signal(Signal::KILL)),
            Fault::Stop { rank, moment, .. } if rank == me.rank && due(moment) => after(moment, signal(Signal::STOP)),
            Fault::Abort { rank, moment } if rank == me.rank && due(moment) => {
                after(moment, Box::new(|| self.abort(Verdict::Own)));
            }
            // Who started us does it.
            Fault::Unplug { moment, .. } if me.rank == 0 && due(moment) => {
                let me = me.clone();
                after(moment, Box::new(move || me.publish("unplug", b"")));
            }
            _ => {}
        }
    }

    fn join<'s>(&'s self, scope: &'s Scope<'s, '_>, me: &Place) -> Result<Comm, GivenUp> {
        let Libraries { nccl, communicators, .. } = self.libraries;
        let name = &self.name;
        me.publish(&format!("{name}.ready.{}", me.rank), b"");
        if me.rank == 0 {
            if self.plan.has_gateway() {
                me.await_published("gateway");
            }
            (0..self.plan.places.len()).for_each(|rank| drop(me.await_published(&format!("{name}.ready.{rank}"))));
            me.publish(name, &nccl.unique_id().expect("an id").0);
        }
        let id = UniqueId(me.await_published(name).try_into().expect("an id has 128 bytes"));
        *lock(&self.progress) = Instant::now();
        let config = Config { blocking: i32::from(self.plan.blocking), ..Config::nonblocking() };
        if self.plan.blocking {
            self.arm(scope, me, None);
        }
        let (code, comm) = communicators.init((self.plan.places.len(), self.rank), id, Some(&config));
        if !matches!(code, SUCCESS | IN_PROGRESS) {
            *lock(&self.verdict) = Some(Verdict::Error(format!("creation: {code} {}", nccl.last_error())));
            return Err(GivenUp);
        }
        *lock(&self.comm) = Some(comm);
        if !self.plan.blocking {
            self.arm(scope, me, None);
        }
        self.settle()?;
        *lock(&self.progress) = Instant::now();
        Ok(comm)
    }

    /// The communicator's state, until it is not in progress. An error is the end.
    fn settle(&self) -> Result<(), GivenUp> {
        loop {
            let code = self.state().ok_or(GivenUp)?;
            match code {
                SUCCESS => return Ok(()),
                IN_PROGRESS => thread::sleep(Duration::from_micros(200)),
                code => return self.fail(format!("state {code} {}", self.libraries.nccl.last_error())),
            }
        }
    }

    /// The state; none where the communicator was aborted, or is being destroyed.
    fn state(&self) -> Option<i32> {
        let comm = lock(&self.comm);
        comm.filter(|_| !self.ending.load(Ordering::Relaxed))
            .map(|comm| self.libraries.nccl.async_error(comm).expect("a live handle"))
    }

    fn fail<T>(&self, why: String) -> Result<T, GivenUp> {
        self.abort(Verdict::Error(why));
        Err(GivenUp)
    }

    /// Gives the communicator up, unless that was done already. It may be in any state, and other threads in calls.
    fn abort(&self, verdict: Verdict) {
        let mut comm = lock(&self.comm);
        let Some(handle) = comm.take() else { return };
        println!("gives up: {verdict:?}");
        *lock(&self.verdict) = Some(verdict);
        let start = Instant::now();
        let code = self.libraries.nccl.abort(handle);
        println!("aborted in {:?}: {code:?}", start.elapsed());
        if start.elapsed() > ABORT {
            eprintln!("the abort took {:?}", start.elapsed());
            process::exit(3);
        }
    }

    /// Looks at the communicator until the rank is through.
    fn watch(&self) {
        while !self.over.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
            if let Some(code) = self.state().filter(|code| !matches!(*code, SUCCESS | IN_PROGRESS)) {
                self.abort(Verdict::Error(format!("watchdog: state {code}")));
            }
            if lock(&self.progress).elapsed() > self.patience {
                self.abort(Verdict::Patience);
            }
        }
    }

    fn round(&self, comm: Comm, patterns: &mut Patterns, number: usize, round: &Round) -> Result<(), GivenUp> {
        let shape = (self.plan.places.len(), self.rank);
        let mut calls = Vec::new();
        for (at, call) in round.calls.iter().enumerate() {
            let mut prepared = Prepared::new(self.libraries);
            prepared.add(patterns, call, shape, number * 31 + at * 7);
            calls.push(prepared);
        }
        // Memory is filled in the background, on another stream.
        self.libraries.cuda.synchronize().expect("the memory is filled");
        let result = if round.group {
            self.group(comm, &calls.iter().collect::<Vec<_>>())
        } else {
            calls.iter().try_for_each(|call| self.group(comm, &[call]))
        };
        // Whatever was launched ends: by itself, or since the communicator is aborted.
        self.libraries.cuda.wait(self.stream).expect("kernels leave");
        result?;
        self.settle()?;
        if let Some(wrong) = calls.iter().find_map(|call| call.wrong(patterns)) {
            // Somebody who trusts in what is there has a wrong result.
            eprintln!("WRONG in round {number} {round:?}: {wrong}");
            thread::sleep(Duration::from_millis(100));
            eprintln!("the state is {:?} now", self.state());
            process::exit(4);
        }
        Ok(())
    }

    /// Makes calls in one group, or without one where there is one call that needs none.
    fn group(&self, comm: Comm, calls: &[&Prepared]) -> Result<(), GivenUp> {
        let nccl = &self.libraries.nccl;
        let grouped = calls.len() > 1 || calls.iter().any(|call| call.has_messages());
        let mut failure = None;
        if grouped {
            nccl.group_start().expect("a group");
        }
        for call in calls {
            call.submit(|action| {
                failure = failure.take().or(action.call(self.libraries, comm, self.stream).err());
                failure.as_ref().is_none_or(|failure| failure.code == IN_PROGRESS)
            });
        }
        if grouped {
            failure = nccl.group_end().err().or(failure);
        }
        match failure {
            Some(failure) if failure.code != IN_PROGRESS => self.fail(failure.to_string()),
            _ => self.settle(),
        }
    }

    fn leave(&self, comm: Comm) -> Result<(), GivenUp> {
        let nccl = &self.libraries.nccl;
        match nccl.finalize(comm) {
            Err(failure) if failure.code != IN_PROGRESS => return self.fail(failure.to_string()),
            _ => self.settle()?,
        }
        {
            // The watchdog asks under the lock.
            let _lock = lock(&self.comm);
            self.ending.store(true, Ordering::Relaxed);
        }
        if let Err(failure) = nccl.destroy(comm)
            && failure.code != IN_PROGRESS
        {
            return self.fail(failure.to_string());
        }
        // The handle is gone, unless the watchdog had given it up.
        *lock(&self.comm) = None;
        Ok(())
    }
}
