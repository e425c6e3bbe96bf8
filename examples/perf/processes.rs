//! The parent's side: starts the processes that have the ranks, gives orders, and waits with a deadline.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::args::Args;
use crate::common::hosts::Hosts;
use crate::common::procfs;
use crate::machine::Device;
use crate::orders::{Config, Order, Reply};
use crate::worker::CONFIG;

/// After the first failure the others get this long to tell of theirs.
const GRACE: Duration = Duration::from_secs(2);

/// A process with some of the workers.
struct Process {
    child: Child,
    orders: UnixStream,
    workers: std::ops::Range<usize>,
    /// Its socket has closed.
    gone: bool,
}

/// All workers. Dropping it kills them.
pub struct Workers {
    processes: Vec<Process>,
    replies: Receiver<(usize, Reply)>,
    workers: usize,
    timeout: Duration,
    /// The hosts that they are on, if these are perf's own.
    _hosts: Option<Hosts>,
}

impl Workers {
    /// Starts the workers and waits until each has loaded its libraries.
    ///
    /// # Errors
    /// If a process cannot be started, or a worker fails.
    pub fn start(args: &Args, device: &Device) -> Result<(Workers, Vec<Reply>), String> {
        let workers = args.workers();
        let (sender, replies) = mpsc::channel();
        let hosts = if args.hosts > 1 { Some(Hosts::new(args.hosts).ok_or("no network namespaces")?) } else { None };
        let host = |first: usize| hosts.as_ref().map(|hosts| (hosts, first * args.hosts / workers));
        let mut processes = Vec::new();
        let threads = if args.threads { workers } else { 1 };
        for first in (0..workers).step_by(threads) {
            let config = Config {
                first,
                threads,
                per_worker: args.per_worker,
                nranks: args.nranks,
                register: args.register,
                nccl: args.nccl.clone().unwrap_or_else(|| "libnccl.so.2".into()),
            };
            processes.push(Process::start(&config, args, device, host(first), sender.clone())?);
        }
        drop(sender);
        let mut all = Workers { processes, replies, workers, timeout: args.timeout, _hosts: hosts };
        let ready = all.collect("load the libraries", 0..workers)?;
        Ok((all, ready))
    }

    /// Gives an order to all workers; their answers in the order of the workers.
    ///
    /// # Errors
    /// The failures of all that failed; or who hangs, after they were killed.
    pub fn all(&mut self, order: &Order) -> Result<Vec<Reply>, String> {
        for process in &mut self.processes {
            process.send(None, order);
        }
        self.collect(&format!("{order:?}"), 0..self.workers)
    }

    /// Gives an order to the first worker.
    ///
    /// # Errors
    /// As [`Workers::all`].
    pub fn first(&mut self, order: &Order) -> Result<Reply, String> {
        self.processes[0].send(Some(0), order);
        let replies = self.collect(&format!("{order:?}"), 0..1)?;
        replies.into_iter().next().ok_or_else(|| "no answer".into())
    }

    /// Seconds that each worker took.
    ///
    /// # Errors
    /// As [`Workers::all`].
    pub fn times(&mut self, order: &Order) -> Result<Vec<f64>, String> {
        let seconds = |reply| if let Reply::Took(seconds) = reply { seconds } else { 0.0 };
        Ok(self.all(order)?.into_iter().map(seconds).collect())
    }

    /// Makes one communicator over all ranks; seconds from the call to ready, by worker.
    ///
    /// # Errors
    /// As [`Workers::all`].
    pub fn init(&mut self) -> Result<Vec<f64>, String> {
        match self.first(&Order::UniqueId)? {
            Reply::UniqueId(id) => self.times(&Order::Init(id)),
            other => Err(format!("expected an id, got {other:?}")),
        }
    }

    /// Ends the workers in good order.
    ///
    /// # Errors
    /// As [`Workers::all`], or a process that ended badly.
    pub fn quit(mut self) -> Result<(), String> {
        self.all(&Order::Quit)?;
        let until = Instant::now() + self.timeout;
        for process in &mut self.processes {
            let status = loop {
                match process.child.try_wait() {
                    Ok(Some(status)) => break status,
                    Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(2)),
                    Ok(None) => return Err(format!("did not exit:\n{}", procfs::describe(process.child.id()))),
                    Err(error) => return Err(error.to_string()),
                }
            };
            if !status.success() {
                return Err(format!("worker {} ended with {status}", process.workers.start));
            }
        }
        Ok(())
    }

    /// One answer from each of the workers.
    fn collect(&mut self, what: &str, workers: std::ops::Range<usize>) -> Result<Vec<Reply>, String> {
        let mut answers: Vec<Option<Reply>> = vec![None; workers.len()];
        let mut failures: Vec<String> = Vec::new();
        let mut until = Instant::now() + self.timeout;
        self.bury(&mut answers, workers.start, &mut failures);
        while answers.iter().any(Option::is_none) {
            if !failures.is_empty() {
                until = until.min(Instant::now() + GRACE);
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.replies.recv_timeout(left) {
                Ok((worker, Reply::Gone)) => {
                    let process = self.processes.iter_mut().find(|process| process.workers.contains(&worker));
                    process.into_iter().for_each(|process| process.gone = true);
                    self.bury(&mut answers, workers.start, &mut failures);
                }
                Ok((worker, reply)) => {
                    if let Reply::Failed(why) = &reply {
                        failures.push(format!("worker {worker}: {why}"));
                    }
                    if let Some(slot) = worker.checked_sub(workers.start).and_then(|at| answers.get_mut(at)) {
                        slot.get_or_insert(reply);
                    }
                }
                Err(RecvTimeoutError::Timeout) if failures.is_empty() => return Err(self.hang(what, &answers)),
                Err(_) => break,
            }
        }
        if failures.is_empty() { Ok(answers.into_iter().flatten().collect()) } else { Err(failures.join("\n")) }
    }

    /// Workers of processes that have ended will not answer any more.
    fn bury(&mut self, answers: &mut [Option<Reply>], first: usize, failures: &mut Vec<String>) {
        for process in self.processes.iter_mut().filter(|process| process.gone) {
            let slots = answers.iter_mut().enumerate().filter(|(at, _)| process.workers.contains(&(first + at)));
            let silent: Vec<_> = slots.filter(|(_, slot)| slot.is_none()).collect();
            if !silent.is_empty() {
                let status = process.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                failures.push(format!("worker {} died ({status})", first + silent[0].0));
                silent.into_iter().for_each(|(_, slot)| *slot = Some(Reply::Gone));
            }
        }
    }

    /// What the workers that have not answered are doing. They are killed when the [`Workers`] are dropped.
    fn hang(&self, what: &str, answers: &[Option<Reply>]) -> String {
        let mut report = format!("no answer within {:?} to: {what}\n", self.timeout);
        for process in &self.processes {
            let silent: Vec<usize> =
                process.workers.clone().filter(|worker| answers.get(*worker).is_none_or(Option::is_none)).collect();
            if !silent.is_empty() {
                report += &format!("workers {silent:?}\n{}", procfs::describe(process.child.id()));
            }
        }
        report
    }
}

impl Process {
    fn start(
        config: &Config,
        args: &Args,
        device: &Device,
        host: Option<(&Hosts, usize)>,
        replies: Sender<(usize, Reply)>,
    ) -> Result<Process, String> {
        let text = |error: std::io::Error| error.to_string();
        let (orders, theirs) = UnixStream::pair().map_err(text)?;
        let exe = std::env::current_exe().map_err(text)?;
        let mut command = match host {
            Some((hosts, number)) => {
                let mut command = hosts.command(number, &exe);
                command.env("NCCL_HOSTID", format!("h{}", number + 1));
                command
            }
            None => Command::new(exe),
        };
        command
            .env(CONFIG, serde_json::to_string(config).map_err(|error| error.to_string())?)
            .envs(device.environment(args.nranks))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0);
        if args.json {
            // Stdout is for the JSON object alone.
            command.stdout(Stdio::from(std::io::stderr()));
        }
        let child = command.spawn().map_err(|error| format!("cannot start a worker: {error}"))?;
        let reader = orders.try_clone().map_err(text)?;
        let workers = config.first..config.first + config.threads;
        let first = config.first;
        thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                let Ok(message) = serde_json::from_str(&line) else { break };
                if replies.send(message).is_err() {
                    return;
                }
            }
            let _ = replies.send((first, Reply::Gone));
        });
        Ok(Process { child, orders, workers, gone: false })
    }

    /// A worker that is gone is noticed when its answer is waited for.
    fn send(&mut self, to: Option<usize>, order: &Order) {
        let line = serde_json::to_string(&(to, order)).unwrap_or_default() + "\n";
        let _ = self.orders.write_all(line.as_bytes());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Some(group), Ok(None)) = (group, self.child.try_wait()) {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
