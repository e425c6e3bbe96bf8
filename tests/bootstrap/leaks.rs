//! Descriptors, threads and listeners of a process that has made and dropped many communicators.

use std::time::{Duration, Instant};

use nccl::bootstrap::{Bootstrap, Cancel, Join, NetConfig, UniqueId, create_id};
use nccl::error::{Code, Error};

use crate::ranks::join_of;

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// Open descriptors and threads.
fn counts() -> (usize, usize) {
    (entries("/proc/self/fd"), entries("/proc/self/task"))
}

/// Runs in a process of its own: everything is given back after success, error, and abort.
pub fn check(config: &NetConfig) -> Result<(), Error> {
    let mut config = config.clone();
    config.failed_linger = Duration::from_millis(100);
    // A rank that is aborted before it reaches the root leaves one that nobody has joined.
    config.root_idle = Duration::from_secs(5);
    let before = counts();
    for round in 0..20 {
        let id = create_id(&config)?;
        match round % 4 {
            0 | 1 => together(&config, &id, 4),
            2 => misfit(&config, &id),
            _ => aborted(&config, &id),
        }
    }
    let end = Instant::now() + Duration::from_secs(30);
    while counts() != before && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(counts(), before, "descriptors and threads");
    Ok(())
}

/// Runs in a process of its own: complete communicators cost nothing while nothing happens. The event loop's thread is
/// not even woken.
pub fn check_idle(config: &NetConfig) -> Result<(), Error> {
    let mut config = config.clone();
    // A limit for exchanges leaves no timer behind.
    config.timeout = Some(Duration::from_millis(300));
    let config = &config;
    let id = &create_id(config)?;
    let ranks: Vec<Bootstrap> = std::thread::scope(|scope| {
        let join = |rank| {
            let bootstrap = Bootstrap::join(config, id, join_of(rank, 4)).unwrap();
            bootstrap.all_gather(&[1, 2, 3]).unwrap();
            bootstrap.complete();
            bootstrap
        };
        let threads: Vec<_> = (0..4).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let before = wakeups();
        std::thread::sleep(Duration::from_millis(400));
        if wakeups() == before {
            break;
        }
        assert!(Instant::now() < end, "the event loop is woken again and again: {before} to {}", wakeups());
    }
    drop(ranks);
    Ok(())
}

/// How often the event loop's thread has blocked.
fn wakeups() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let mut helpers = tasks.filter(|task| std::fs::read_to_string(task.join("comm")).unwrap().trim() == "oxccl-helper");
    let status = std::fs::read_to_string(helpers.next().unwrap().join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

fn together(config: &NetConfig, id: &UniqueId, nranks: u32) {
    std::thread::scope(|scope| {
        for rank in 0..nranks {
            scope.spawn(move || {
                let bootstrap = Bootstrap::join(config, id, join_of(rank, nranks)).unwrap();
                bootstrap.all_gather(&[1, 2, 3]).unwrap();
                no_listener_for_everybody();
                bootstrap.barrier().unwrap();
                bootstrap.complete();
            });
        }
    });
}

/// No socket of this process listens on all interfaces.
fn no_listener_for_everybody() {
    let own: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()?.to_str().map(String::from))
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_string()))
        .collect();
    let mut listening = 0;
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in std::fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words[3] == "0A" && own.iter().any(|inode| inode == words[9]) {
                listening += 1;
                assert!(!words[1].split(':').next().unwrap().bytes().all(|digit| digit == b'0'), "{line}");
            }
        }
    }
    assert!(listening > 0, "the members listen somewhere");
}

fn misfit(config: &NetConfig, id: &UniqueId) {
    std::thread::scope(|scope| {
        for (rank, nranks) in [(0, 3), (1, 4)] {
            scope.spawn(move || {
                let error = Bootstrap::join(config, id, join_of(rank, nranks)).err().unwrap();
                assert_eq!(error.code(), Code::InvalidUsage, "{error}");
            });
        }
    });
}

fn aborted(config: &NetConfig, id: &UniqueId) {
    let cancel = Cancel::new();
    let join = Join { cancel: Some(cancel.clone()), ..join_of(0, 2) };
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(move || Bootstrap::join(config, id, join).err());
        std::thread::sleep(Duration::from_millis(20));
        cancel.fire();
        waiting.join().unwrap()
    });
    assert_eq!(waiting, Some(Error::Aborted));
}
