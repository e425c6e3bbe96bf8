//! Ranks as processes: the test binary starts itself again, and each process carries out a task.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nccl::bootstrap::protocol::roots::Algorithm;
use nccl::bootstrap::{Bootstrap, CommId, InterfaceFilter, Join, NetConfig, UniqueId, create_id};
use nccl::error::Error;

/// No test may take longer.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// NCCL's version code of this release.
pub const VERSION: u32 = 23203;

/// One rank as a process.
pub struct Rank {
    pub child: Child,
    lines: Receiver<String>,
}

/// How a rank is started.
#[derive(Clone)]
pub struct Plan {
    pub ids: Vec<UniqueId>,
    pub rank: u32,
    pub nranks: u32,
    /// See [`carry_out`].
    pub task: String,
    /// Settings as `name=value` words; see [`config`].
    pub settings: String,
    /// A program that runs the rank, with its arguments.
    pub wrapper: Vec<String>,
}

impl Plan {
    pub fn new(ids: &(impl AsRef<[UniqueId]> + ?Sized), rank: u32, nranks: u32, task: &str) -> Plan {
        Plan {
            ids: ids.as_ref().to_vec(),
            rank,
            nranks,
            task: task.to_string(),
            settings: String::new(),
            wrapper: Vec::new(),
        }
    }

    pub fn set(mut self, settings: &str) -> Plan {
        self.settings = settings.to_string();
        self
    }

    /// Starts the process and waits until it is ready to go.
    pub fn start(&self) -> Rank {
        let id: String = self.ids.iter().flat_map(|id| id.0).map(|byte| format!("{byte:02x}")).collect();
        let program = std::env::current_exe().unwrap();
        let mut words = self.wrapper.iter().map(String::from).chain([program.to_str().unwrap().to_string()]);
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env("BOOTSTRAP_TASK", &self.task)
            .env("BOOTSTRAP_SETTINGS", &self.settings)
            .env("BOOTSTRAP_RANK", format!("{} {}", self.rank, self.nranks))
            .env("BOOTSTRAP_ID", id)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once('@') {
                    let _ = sender.send(line.to_string());
                }
            }
        });
        Rank { child, lines }
    }
}

impl Rank {
    pub fn line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("a rank says nothing")
    }

    pub fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"g").unwrap();
    }

    /// The rank's error: code, milliseconds, text.
    #[track_caller]
    pub fn error(&self) -> (String, u64, String) {
        let line = self.line();
        let mut words = line.splitn(3, ' ');
        let (code, time, text) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap_or_default());
        assert_ne!(code, "ok", "a rank succeeds");
        (code.to_string(), time.parse::<u64>().unwrap() / 1000, text.to_string())
    }

    #[track_caller]
    pub fn succeeds(&self) {
        let line = self.line();
        assert!(line.starts_with("ok "), "{line}");
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts all plans and lets them go together.
pub fn start(plans: &[Plan]) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = plans.iter().map(Plan::start).collect();
    for rank in &ranks {
        assert_eq!(rank.line(), "ready");
    }
    for rank in &mut ranks {
        rank.go();
    }
    ranks
}

/// The same task for ranks 0 to n-1.
pub fn start_all(ids: &(impl AsRef<[UniqueId]> + ?Sized), nranks: u32, task: &str, settings: &str) -> Vec<Rank> {
    let plans: Vec<Plan> = (0..nranks).map(|rank| Plan::new(ids, rank, nranks, task).set(settings)).collect();
    start(&plans)
}

pub fn join_of(rank: u32, nranks: u32) -> Join {
    Join { rank, nranks, version: VERSION, settings: Vec::new(), facts: facts(rank), common: Vec::new(), cancel: None }
}

fn facts(rank: u32) -> Vec<u8> {
    format!("facts of {rank}").into_bytes()
}

/// A block whose size depends on rank and round.
fn block(rank: u32, round: u32) -> Vec<u8> {
    let length = (rank as usize * 37 + round as usize * 11) % 3000;
    (0..length).map(|i| (i as u32 * 7 + rank * 13 + round) as u8).collect()
}

/// Settings from words like `timeout_ms=500`.
pub fn config(settings: &str) -> NetConfig {
    let mut config = NetConfig::default();
    for word in settings.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap();
        match name {
            "algo" => config.algorithm = Algorithm::parse(value).unwrap(),
            "timeout_ms" => config.timeout = Some(Duration::from_millis(value.parse().unwrap())),
            "ifname" => config.interfaces = InterfaceFilter::parse(value).0,
            "retries" => config.retry_count = value.parse().unwrap(),
            "second_ifname" => {}
            "comm_id" => config.comm_id = Some(CommId::parse(value).unwrap()),
            "buffers" => config.buffers = (value.parse().ok(), value.parse().ok()),
            "first_port" => config.ports = value.parse().ok().map(|first: u16| (first, first + 31)),
            other => panic!("no setting {other}"),
        }
    }
    config
}

/// Undoes what Rust does before `main`, which ignores SIGPIPE: a library that raises it ends programs in C and C++.
fn default_sigpipe() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: no handler is installed.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }.expect("SIGPIPE has a default action");
}

/// Ids from hexadecimal digits.
pub fn read_ids(text: &str) -> Vec<UniqueId> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let bytes: Vec<u8> = text.as_bytes().chunks(2).map(byte).collect();
    bytes.chunks(128).map(|id| UniqueId(id.try_into().unwrap())).collect()
}

/// What a rank's process does; nothing in an ordinary test run.
pub fn child() {
    let Ok(task) = std::env::var("BOOTSTRAP_TASK") else {
        return;
    };
    default_sigpipe();
    let numbers = std::env::var("BOOTSTRAP_RANK").unwrap();
    let (rank, nranks) = numbers.split_once(' ').unwrap();
    let (rank, nranks): (u32, u32) = (rank.parse().unwrap(), nranks.parse().unwrap());
    let config = config(&std::env::var("BOOTSTRAP_SETTINGS").unwrap());
    let text = std::env::var("BOOTSTRAP_ID").unwrap();
    let ids = read_ids(&text);
    println!("@ready");
    let mut go = [0];
    std::io::stdin().read_exact(&mut go).unwrap();
    let start = Instant::now();
    match carry_out(&task, rank, nranks, &config, &ids) {
        Ok(joined) => println!("@ok {} {}", (joined - start).as_micros(), start.elapsed().as_micros()),
        Err(error) => println!("@{:?} {} {error}", error.code(), start.elapsed().as_micros()),
    }
}

fn carry_out(task: &str, rank: u32, nranks: u32, config: &NetConfig, ids: &[UniqueId]) -> Result<Instant, Error> {
    let own = if config.comm_id.is_some() { vec![create_id(config)?] } else { ids.to_vec() };
    match task {
        "id" => {
            let made = create_id(config)?;
            let text: String = made.0.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("@{text}");
            return Ok(Instant::now());
        }
        "root" => {
            let text: String = create_id(config)?.0.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("@{text}");
            std::thread::sleep(DEADLINE);
        }
        "report" => {
            let error = Error::Resource("device 0 has no memory left".to_string());
            Bootstrap::report_failure(config, ids, join_of(rank, nranks), &error)?;
            return Err(error);
        }
        "alone" => return alone(config),
        "two hosts" => return two_hosts(),
        "leaks" => return crate::leaks::check(config).map(|()| Instant::now()),
        "idle" => return crate::leaks::check_idle(config).map(|()| Instant::now()),
        _ => {}
    }
    let bootstrap = Bootstrap::join(config, &own, join_of(rank, nranks))?;
    let joined = Instant::now();
    match task {
        "join" => {}
        "stay" => {
            println!("@ok 0 0");
            std::thread::sleep(DEADLINE);
        }
        "place" => {
            let places: Vec<String> = (0..nranks).filter_map(|rank| bootstrap.address(rank)).collect();
            bootstrap.barrier()?;
            println!("@h1 {} h2 {}", places[0], places[1]);
        }
        "gather" => gather(&bootstrap)?,
        "time" => {
            bootstrap.all_gather(&[7; 144])?;
            bootstrap.all_gather(&[8; 2400])?;
        }
        "exit" => std::process::exit(7),
        "receive" => bootstrap.recv((rank + 1) % nranks, 1).map(drop)?,
        "error" => {
            let error = Error::Resource("no memory left".to_string());
            bootstrap.fail(&error);
            return Err(error);
        }
        other => panic!("no task {other}"),
    }
    bootstrap.complete();
    Ok(joined)
}

/// Two ranks in one process; says where they have met.
fn alone(config: &NetConfig) -> Result<Instant, Error> {
    let id = create_id(config)?;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                scope.spawn(move || {
                    let bootstrap = Bootstrap::join(config, &id, join_of(rank, 2))?;
                    let place = bootstrap.address(0).unwrap_or_default();
                    bootstrap.barrier()?;
                    Ok::<String, Error>(place)
                })
            })
            .collect();
        let places: Result<Vec<String>, Error> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        println!("@met {}", places?[0]);
        Ok(Instant::now())
    })
}

/// Starts a rank on each of the hosts h1 and h2, and repeats what they say.
fn two_hosts() -> Result<Instant, Error> {
    let settings = std::env::var("BOOTSTRAP_SETTINGS").unwrap();
    let plans: Vec<Plan> = (0..2)
        .map(|rank| {
            let own = if rank == 1 { settings.replace("second_ifname", "ifname") } else { settings.clone() };
            let mut plan = Plan::new(&UniqueId([0; 128]), rank, 2, "place").set(&own);
            plan.wrapper = ["ip", "netns", "exec", ["h1", "h2"][rank as usize]].map(String::from).to_vec();
            plan
        })
        .collect();
    let ranks = start(&plans);
    let lines: Vec<String> = ranks.iter().map(Rank::line).collect();
    assert_eq!(lines[0].split(' ').next(), lines[1].split(' ').next(), "{lines:?}");
    println!("@{}", lines[1]);
    if lines[0].starts_with("h1 ") {
        ranks.iter().for_each(Rank::succeeds);
    }
    Ok(Instant::now())
}

fn gather(bootstrap: &Bootstrap) -> Result<(), Error> {
    let (rank, nranks) = (bootstrap.rank(), bootstrap.nranks());
    for other in 0..nranks {
        assert_eq!(bootstrap.facts(other), facts(other));
    }
    for round in 0..3 {
        let blocks = bootstrap.all_gather(&block(rank, round))?;
        let expected: Vec<Vec<u8>> = (0..nranks).map(|other| block(other, round)).collect();
        assert!(blocks == expected, "rank {rank} round {round}");
    }
    let large = vec![rank as u8; 3 << 20];
    let blocks = bootstrap.all_gather(&large)?;
    assert!((0..nranks).all(|other| blocks[other as usize] == vec![other as u8; 3 << 20]));
    let (next, previous) = ((rank + 1) % nranks, (rank + nranks - 1) % nranks);
    bootstrap.send(next, 5, &large)?;
    bootstrap.send(next, 6, b"second")?;
    assert_eq!(bootstrap.recv(previous, 6)?, b"second");
    assert_eq!(bootstrap.recv(previous, 5)?, vec![previous as u8; 3 << 20]);
    bootstrap.barrier()
}
