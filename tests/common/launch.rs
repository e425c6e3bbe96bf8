//! Starts ranks as processes: with a deadline, their output captured, and nothing left behind.
//!
//! When the deadline passes, every rank is killed and the panic shows, for each, what it had printed and
//! what the kernel knew of its threads. A line with `NCCL WARN` that the test did not announce fails it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::hosts::{self, Hosts};
use super::{library_path, procfs};

/// The software device at its strictest: operations begin late, no store wakes who waits, allocations wait for work.
pub const STRICT: [(&str, &str); 3] =
    [("SOFTCUDA_DELAY_US", "100"), ("SOFTCUDA_NO_WAKE", "1"), ("SOFTCUDA_ALLOC_WAITS", "1")];

/// A test's ranks have this long unless it says otherwise: generous, since a machine can be busy.
pub const DEADLINE: Duration = Duration::from_secs(120);
/// Most bytes of a rank's stdout or stderr that are kept; what comes later is dropped and counted.
const MAX_CAPTURE: usize = 4 << 20;
/// How often the launcher looks whether a rank has ended.
const POLL: Duration = Duration::from_millis(5);

const RANK: &str = "OXCCL_TEST_RANK";
const NRANKS: &str = "OXCCL_TEST_NRANKS";
const DIR: &str = "OXCCL_TEST_DIR";

/// What a re-executed test binary knows about its place in the job.
#[derive(Clone, Debug)]
pub struct Place {
    /// This process's number, from 0.
    pub rank: usize,
    /// How many processes the job has.
    pub nranks: usize,
    /// A folder that all processes of the job share; it is removed with the job.
    pub dir: PathBuf,
}

/// The place of this process if a [`Job`] started it, else `None`. From then on it dies with the thread
/// that started it, and of a SIGPIPE, as programs do that are not Rust's.
pub fn child() -> Option<Place> {
    let number = |name: &str| env::var(name).ok()?.parse().ok();
    let place = Place { rank: number(RANK)?, nranks: number(NRANKS)?, dir: PathBuf::from(env::var_os(DIR)?) };
    // The parent may already be gone, or the system may refuse: then the deadline is what ends us.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    default_sigpipe();
    Some(place)
}

/// Undoes what Rust does before `main`, which ignores SIGPIPE: a library that raises it ends programs in C and C++.
pub fn default_sigpipe() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: no handler is installed.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }.expect("SIGPIPE has a default action");
}

impl Place {
    /// Hands bytes to the other processes of the job under a name: written aside, then renamed, so that
    /// a reader sees all or nothing.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn publish(&self, name: &str, bytes: &[u8]) {
        let aside = self.dir.join(format!(".{name}.{}", std::process::id()));
        fs::write(&aside, bytes).expect("the job's folder can be written");
        fs::rename(aside, self.dir.join(name)).expect("the job's folder can be written");
    }

    /// The bytes that some process of the job published under a name.
    ///
    /// # Panics
    /// If nobody does within [`DEADLINE`].
    pub fn await_published(&self, name: &str) -> Vec<u8> {
        let until = Instant::now() + DEADLINE;
        loop {
            match fs::read(self.dir.join(name)) {
                Ok(bytes) => return bytes,
                Err(_) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("rank {} waited for `{name}` in vain: {error}", self.rank),
            }
        }
    }

    /// Waits until every process of the job has come to the barrier of this name (use each name once).
    pub fn barrier(&self, name: &str) {
        self.publish(&format!("{name}.{}", self.rank), b"");
        for rank in 0..self.nranks {
            self.await_published(&format!("{name}.{rank}"));
        }
    }
}

/// A number of processes to be started together.
pub struct Job {
    program: PathBuf,
    args: Vec<(Option<usize>, OsString)>,
    nranks: usize,
    envs: Vec<(Option<usize>, OsString, OsString)>,
    deadline: Duration,
    allowed_warnings: Vec<String>,
    any_warning: bool,
    /// By rank: what its program is an argument of.
    under: Vec<(usize, Vec<OsString>)>,
}

impl Job {
    /// Runs the test function of this name again, in `nranks` processes; there [`child`] says which.
    /// `name` is the full path of the test in its binary (`module::function`).
    ///
    /// # Panics
    /// If the running program's path cannot be read.
    pub fn this_test(name: &str, nranks: usize) -> Job {
        let exe = env::current_exe().expect("the path of the running test");
        // A test that is ignored, and was asked for all the same, must not be ignored by its ranks.
        Job::program(exe, nranks).args([name, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"])
    }

    /// Runs any program in `nranks` processes.
    pub fn program(program: impl Into<PathBuf>, nranks: usize) -> Job {
        Job {
            program: program.into(),
            args: Vec::new(),
            nranks,
            envs: Vec::new(),
            deadline: DEADLINE,
            allowed_warnings: Vec::new(),
            any_warning: false,
            under: Vec::new(),
        }
    }

    /// Starts a rank by another program, which becomes it: `words`, then the program and its arguments.
    pub fn under<A: AsRef<OsStr>>(mut self, rank: usize, words: impl IntoIterator<Item = A>) -> Job {
        self.under.push((rank, words.into_iter().map(|word| word.as_ref().to_os_string()).collect()));
        self
    }

    /// How many processes it has, and whether some are started by other programs.
    pub fn shape(&self) -> (usize, bool) {
        (self.nranks, !self.under.is_empty())
    }

    /// Adds arguments, the same for all ranks.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Job {
        self.args.extend(args.into_iter().map(|arg| (None, arg.as_ref().to_os_string())));
        self
    }

    /// Adds arguments for one rank only.
    pub fn args_of<A: AsRef<OsStr>>(mut self, rank: usize, args: impl IntoIterator<Item = A>) -> Job {
        self.args.extend(args.into_iter().map(|arg| (Some(rank), arg.as_ref().to_os_string())));
        self
    }

    /// Sets an environment variable in every rank. `LD_LIBRARY_PATH` is set already, as is
    /// `NCCL_DEBUG=WARN`; what is set here wins.
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Job {
        self.envs.push((None, key.as_ref().to_os_string(), value.as_ref().to_os_string()));
        self
    }

    /// Sets several, such as [`STRICT`].
    pub fn with(self, variables: &[(&str, &str)]) -> Job {
        variables.iter().fold(self, |job, (name, value)| job.env(name, value))
    }

    /// Sets an environment variable in one rank only.
    pub fn env_of(mut self, rank: usize, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Job {
        self.envs.push((Some(rank), key.as_ref().to_os_string(), value.as_ref().to_os_string()));
        self
    }

    /// Replaces [`DEADLINE`].
    pub fn deadline(mut self, deadline: Duration) -> Job {
        self.deadline = deadline;
        self
    }

    /// Announces a warning: `NCCL WARN` lines that contain `text` are expected.
    pub fn allow_warning(mut self, text: &str) -> Job {
        self.allowed_warnings.push(text.to_string());
        self
    }

    /// Any warning is expected.
    pub fn allow_any_warning(mut self) -> Job {
        self.any_warning = true;
        self
    }

    /// Starts the ranks and waits for all.
    ///
    /// # Panics
    /// If a rank cannot be started, the deadline passes, a rank leaves processes behind, or a rank
    /// prints a warning that was not announced.
    pub fn run(self) -> Outcome {
        self.start().wait()
    }

    /// Starts the ranks. The job's folder and processes go when the result is dropped.
    ///
    /// # Panics
    /// If a rank cannot be started.
    pub fn start(self) -> Running {
        let dir = job_dir();
        let (job, _hosts) = hosts::spread(self);
        let mut running = Running { ranks: Vec::new(), dir, started: Instant::now(), job, _hosts };
        for rank in 0..running.job.nranks {
            let mut command = running.job.command(rank, &running.dir);
            let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
            running.ranks.push(Rank::new(child));
        }
        running
    }

    fn command(&self, rank: usize, dir: &Path) -> Command {
        let under = self.under.iter().find(|(of, _)| *of == rank).and_then(|(_, words)| words.split_first());
        let mut command = Command::new(under.map_or(self.program.as_os_str(), |(first, _)| first));
        if let Some((_, rest)) = under {
            command.args(rest).arg(&self.program);
        }
        command
            .args(self.args.iter().filter(|(only, _)| only.is_none_or(|r| r == rank)).map(|(_, arg)| arg))
            .env("LD_LIBRARY_PATH", library_path())
            .env("NCCL_DEBUG", "WARN")
            .env(RANK, rank.to_string())
            .env(NRANKS, self.nranks.to_string())
            .env(DIR, dir)
            .process_group(0) // so that what a rank starts can be ended with it
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (only, key, value) in &self.envs {
            if only.is_none_or(|r| r == rank) {
                command.env(key, value);
            }
        }
        command
    }
}

/// A fresh folder for the processes of one job.
fn job_dir() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = env::temp_dir().join(format!("oxccl-test-{}-{n}", std::process::id()));
    fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("cannot make {}: {error}", dir.display()));
    dir
}

/// Bytes from one pipe, read by a thread of their own so that a rank never blocks on a full pipe.
struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Capture {
    fn new(mut pipe: impl Read + Send + 'static) -> Capture {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                let mut sink = sink.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                let room = MAX_CAPTURE - sink.len();
                sink.extend_from_slice(&buffer[..n.min(room)]);
            }
        });
        Capture { bytes, reader: Some(reader) }
    }

    /// What has come so far.
    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What came until the pipe closed.
    fn finish(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        self.text()
    }
}

struct Rank {
    child: Child,
    status: Option<ExitStatus>,
    ended: Option<Instant>,
    stdout: Capture,
    stderr: Capture,
}

impl Rank {
    fn new(mut child: Child) -> Rank {
        let stdout = Capture::new(child.stdout.take().expect("stdout is piped"));
        let stderr = Capture::new(child.stderr.take().expect("stderr is piped"));
        Rank { child, status: None, ended: None, stdout, stderr }
    }

    fn poll(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("a child can be waited for");
            self.ended = self.status.map(|_| Instant::now());
        }
        self.status.is_some()
    }

    fn group(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()).ok()?)
    }

    /// Ends the rank and whatever it started.
    fn kill(&mut self) {
        if let Some(group) = self.group() {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        if self.status.is_none() {
            self.status = self.child.wait().ok();
            self.ended = Some(Instant::now());
        }
    }

    /// Whether processes that the rank started are still there after its own end.
    fn left_processes(&self) -> bool {
        self.group().is_some_and(|group| rustix::process::test_kill_process_group(group).is_ok())
    }
}

/// Ranks that were started. Dropping it kills what still runs and removes the job's folder.
pub struct Running {
    ranks: Vec<Rank>,
    dir: PathBuf,
    started: Instant,
    job: Job,
    /// Where the ranks run, if not here; it goes after them.
    _hosts: Option<Hosts>,
}

impl Running {
    /// The folder that the job's processes share (see [`Place::publish`]).
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The process id of a rank.
    pub fn pid(&self, rank: usize) -> u32 {
        self.ranks[rank].child.id()
    }

    /// Kills one rank as the kernel would (SIGKILL).
    pub fn kill(&mut self, rank: usize) {
        self.ranks[rank].kill();
    }

    /// Sends a signal to one rank and to what it started.
    ///
    /// # Panics
    /// If the rank is gone.
    pub fn signal(&self, rank: usize, signal: Signal) {
        let group = self.ranks[rank].group().expect("a process id");
        rustix::process::kill_process_group(group, signal).expect("the rank is alive");
    }

    /// Whether a rank has ended.
    pub fn ended(&mut self, rank: usize) -> bool {
        self.ranks[rank].poll()
    }

    /// What a rank has printed to stdout so far.
    pub fn stdout(&self, rank: usize) -> String {
        self.ranks[rank].stdout.text()
    }

    /// What a rank has printed to stderr so far.
    pub fn stderr(&self, rank: usize) -> String {
        self.ranks[rank].stderr.text()
    }

    /// Waits until all ranks have ended.
    ///
    /// # Panics
    /// As [`Job::run`].
    pub fn wait(mut self) -> Outcome {
        while self.ranks.iter_mut().filter_map(|rank| (!rank.poll()).then_some(())).count() > 0 {
            if self.started.elapsed() > self.job.deadline {
                panic!("{}", self.kill_and_report());
            }
            thread::sleep(POLL);
        }
        let left: Vec<usize> = (0..self.ranks.len()).filter(|r| self.ranks[*r].left_processes()).collect();
        for rank in &left {
            self.ranks[*rank].kill();
        }
        let outcome = self.outcome();
        assert!(left.is_empty(), "ranks {left:?} left processes behind\n{outcome}");
        outcome.check_warnings(&self.job);
        outcome
    }

    fn outcome(&mut self) -> Outcome {
        let started = self.started;
        let ranks = self.ranks.iter_mut().map(|rank| RankOutcome {
            status: rank.status.expect("the rank has ended"),
            elapsed: rank.ended.map_or(Duration::ZERO, |ended| ended - started),
            stdout: rank.stdout.finish(),
            stderr: rank.stderr.finish(),
        });
        Outcome { ranks: ranks.collect() }
    }

    /// The state of every rank that still runs, then an end to all of them.
    fn kill_and_report(&mut self) -> String {
        let mut report = format!("deadline of {:?} passed; the ranks:\n", self.job.deadline);
        for (number, rank) in self.ranks.iter().enumerate() {
            let state = match rank.status {
                Some(status) => format!("  ended: {status}\n"),
                None => procfs::describe(rank.child.id()),
            };
            let _ = write!(report, "rank {number}\n{state}");
        }
        self.ranks.iter_mut().for_each(Rank::kill);
        for (number, rank) in self.ranks.iter().enumerate() {
            let _ = write!(report, "{}", printed(number, &rank.stdout.text(), &rank.stderr.text()));
        }
        report
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ranks.iter_mut().for_each(Rank::kill);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// How one rank ended, and what it printed.
#[derive(Clone, Debug)]
pub struct RankOutcome {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// From the start of the job to the end of this rank.
    pub elapsed: Duration,
    /// Everything written to stdout (bytes that are not UTF-8 replaced).
    pub stdout: String,
    /// Everything written to stderr.
    pub stderr: String,
}

impl RankOutcome {
    /// The lines with `NCCL WARN`, from stdout and stderr.
    pub fn warnings(&self) -> Vec<&str> {
        self.stdout.lines().chain(self.stderr.lines()).filter(|line| line.contains("NCCL WARN")).collect()
    }

    /// The signal that ended the rank, if one did.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }
}

/// How a job ended.
#[derive(Clone, Debug)]
#[must_use = "call assert_ok, or look at the ranks"]
pub struct Outcome {
    /// One for each rank, by rank.
    pub ranks: Vec<RankOutcome>,
}

impl Outcome {
    /// Fails unless every rank ended with exit code 0.
    ///
    /// # Panics
    /// With what the ranks printed.
    pub fn assert_ok(&self) {
        let failed: Vec<usize> = (0..self.ranks.len()).filter(|r| !self.ranks[*r].status.success()).collect();
        assert!(failed.is_empty(), "ranks {failed:?} failed\n{self}");
    }

    fn check_warnings(&self, job: &Job) {
        if job.any_warning {
            return;
        }
        for (number, rank) in self.ranks.iter().enumerate() {
            for line in rank.warnings() {
                let expected = job.allowed_warnings.iter().any(|text| line.contains(text.as_str()));
                assert!(expected, "rank {number} printed an unexpected warning:\n  {line}\n{self}");
            }
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, rank) in self.ranks.iter().enumerate() {
            writeln!(f, "rank {number}: {} after {:.2} s", rank.status, rank.elapsed.as_secs_f64())?;
            write!(f, "{}", printed(number, &rank.stdout, &rank.stderr))?;
        }
        Ok(())
    }
}

fn printed(rank: usize, stdout: &str, stderr: &str) -> String {
    let mut out = String::new();
    for (name, text) in [("stdout", stdout), ("stderr", stderr)] {
        if !text.trim().is_empty() {
            let _ = write!(out, "rank {rank} {name}:\n{text}");
            if !text.ends_with('\n') {
                out.push('\n');
            }
        }
    }
    out
}
