//! The bootstrap over real sockets, with a process per rank: this binary starts itself again as a rank.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nccl::bootstrap::{Bootstrap, Join, NetConfig, UniqueId, create_id};
use nccl::error::Error;

/// No test may take longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// One rank as a process.
struct Rank {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Rank {
    /// Starts a rank that carries out `task` (see [`child`]).
    fn start(id: &UniqueId, rank: u32, nranks: u32, task: &str) -> Rank {
        let id: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env("BOOTSTRAP_TASK", task)
            .env("BOOTSTRAP_RANK", format!("{rank} {nranks}"))
            .env("BOOTSTRAP_ID", id)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
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

    fn line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("a rank says nothing")
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"g").unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start_all(id: &UniqueId, nranks: u32, task: &str) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = (0..nranks).map(|rank| Rank::start(id, rank, nranks, task)).collect();
    for rank in &ranks {
        assert_eq!(rank.line(), "ready");
    }
    for rank in &mut ranks {
        rank.go();
    }
    ranks
}

fn join_of(rank: u32, nranks: u32) -> Join {
    Join { rank, nranks, version: 23203, settings: Vec::new(), facts: facts(rank), cancel: None }
}

fn facts(rank: u32) -> Vec<u8> {
    format!("facts of {rank}").into_bytes()
}

/// A block whose size depends on rank and round.
fn block(rank: u32, round: u32) -> Vec<u8> {
    let length = (rank as usize * 37 + round as usize * 11) % 3000;
    (0..length).map(|i| (i as u32 * 7 + rank * 13 + round) as u8).collect()
}

/// Not a test of its own: what a rank's process does.
#[test]
fn child() {
    let Ok(task) = std::env::var("BOOTSTRAP_TASK") else {
        return;
    };
    let numbers = std::env::var("BOOTSTRAP_RANK").unwrap();
    let (rank, nranks) = numbers.split_once(' ').unwrap();
    let (rank, nranks): (u32, u32) = (rank.parse().unwrap(), nranks.parse().unwrap());
    let text = std::env::var("BOOTSTRAP_ID").unwrap();
    let mut id = UniqueId([0; 128]);
    for (i, byte) in id.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
    }
    println!("@ready");
    let mut go = [0];
    std::io::stdin().read_exact(&mut go).unwrap();
    let start = Instant::now();
    match carry_out(&task, rank, nranks, &id) {
        Ok(joined) => println!("@ok {} {}", (joined - start).as_micros(), start.elapsed().as_micros()),
        Err(error) => println!("@{:?} {} {error}", error.code(), start.elapsed().as_micros()),
    }
}

fn carry_out(task: &str, rank: u32, nranks: u32, id: &UniqueId) -> Result<Instant, Error> {
    let config = NetConfig::default();
    let mut bootstrap = Bootstrap::join(&config, id, join_of(rank, nranks))?;
    let joined = Instant::now();
    match task {
        "gather" => {
            gather(&mut bootstrap)?;
        }
        "time" => {
            bootstrap.all_gather(&[7; 144])?;
            bootstrap.all_gather(&[8; 2400])?;
        }
        other => panic!("no task {other}"),
    }
    bootstrap.complete();
    Ok(joined)
}

fn gather(bootstrap: &mut Bootstrap) -> Result<(), Error> {
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

#[test]
fn ranks_exchange_everything() {
    for nranks in [1, 2, 3, 8, 16] {
        let id = create_id(&NetConfig::default()).unwrap();
        for rank in &start_all(&id, nranks, "gather") {
            let line = rank.line();
            assert!(line.starts_with("ok "), "{line}");
        }
    }
}

/// Prints a table; run it alone: `cargo test --release --test bootstrap -- --ignored --nocapture times`.
#[test]
#[ignore = "a measurement"]
fn times() {
    println!("ranks   all of it ms   slowest join ms");
    for nranks in [2, 8, 16, 32, 64, 128] {
        let mut best = (f64::MAX, f64::MAX);
        for _ in 0..5 {
            let id = create_id(&NetConfig::default()).unwrap();
            let ranks = start_all(&id, nranks, "time");
            let mut slowest = (0f64, 0f64);
            for rank in &ranks {
                let line = rank.line();
                let mut words = line.split(' ');
                assert_eq!(words.next(), Some("ok"), "{line}");
                let mut next = || words.next().unwrap().parse::<f64>().unwrap() / 1000.0;
                let (join, total) = (next(), next());
                slowest = (slowest.0.max(total), slowest.1.max(join));
            }
            if slowest.0 < best.0 {
                best = slowest;
            }
        }
        println!("{nranks:5} {:14.1} {:17.1}", best.0, best.1);
    }
}
