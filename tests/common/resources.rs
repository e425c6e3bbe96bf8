//! What a process holds: file descriptors, threads, memfd mappings, memory, entries of `/dev/shm`.
//!
//! Take one before and one after; [`Resources::assert_same`] names whatever came and did not go.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::procfs;

/// How long [`Resources::assert_same`] waits for what is on its way out (an exiting thread).
const SETTLE: Duration = Duration::from_secs(5);

/// So many connections for messages may stay where the ranks of a test are spread over hosts.
const CONNECTIONS: usize = 8;

/// A count of what this process holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// What each file descriptor points at, and how many do (sockets and pipes without their number).
    pub fds: BTreeMap<String, usize>,
    /// The names of the threads, and how many have each.
    pub threads: BTreeMap<String, usize>,
    /// The threads themselves, with their names.
    thread_ids: BTreeMap<u32, String>,
    /// Mappings of memfds and of files in `/dev/shm`, by name.
    pub shared_maps: BTreeMap<String, usize>,
    /// Entries of `/dev/shm` that look like ours, or like NCCL's.
    pub dev_shm: BTreeMap<String, usize>,
    /// Resident memory in KiB. Not compared for equality by [`Resources::grown`]; see [`rss_kib`].
    pub rss_kib: u64,
}

impl Resources {
    /// Counts now.
    pub fn now() -> Resources {
        let thread_ids = thread_names();
        Resources {
            fds: count(open_files()),
            threads: count(thread_ids.values().cloned().collect()),
            thread_ids,
            shared_maps: count(shared_maps()),
            dev_shm: count(dev_shm_entries()),
            rss_kib: rss_kib(),
        }
    }

    /// What there is more of than in `before`, one line each: `3 more fds: socket`. Memory is left out, and so are
    /// threads that were there under another name: they had not run yet, and were called like who had started them.
    pub fn grown(&self, before: &Resources) -> Vec<String> {
        let kinds = [
            ("fds", &self.fds, &before.fds),
            ("threads", &self.threads, &before.threads),
            ("shared mappings", &self.shared_maps, &before.shared_maps),
            ("/dev/shm entries", &self.dev_shm, &before.dev_shm),
        ];
        let (mut lines, spread) = (Vec::new(), std::env::var_os("OXCCL_TEST_HOSTS").is_some());
        for (kind, now, old) in kinds {
            for (name, n) in now {
                let renamed = if kind == "threads" { self.renamed(before, name) } else { 0 };
                // A connection for messages between hosts stays for a while.
                let kept = if name == "socket" && spread { CONNECTIONS } else { 0 };
                let had = old.get(name).copied().unwrap_or(0) + renamed + kept;
                if *n > had {
                    lines.push(format!("{} more {kind}: {name}", n - had));
                }
            }
        }
        lines
    }

    /// Threads of this name that had another one before.
    fn renamed(&self, before: &Resources, name: &str) -> usize {
        let other = |id: &u32| before.thread_ids.get(id).is_some_and(|old| old != name);
        self.thread_ids.iter().filter(|(id, new)| *new == name && other(id)).count()
    }

    /// Fails unless everything that came since `self` was taken is gone again within five seconds.
    ///
    /// # Panics
    /// With the list of what is left.
    pub fn assert_same(&self) {
        let until = Instant::now() + SETTLE;
        loop {
            let left = Resources::now().grown(self);
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "left behind:\n  {}", left.join("\n  "));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether resident memory has grown by no more than `kib` KiB since `self` was taken.
    pub fn is_within(&self, kib: u64) -> bool {
        rss_kib() <= self.rss_kib + kib
    }

    /// Fails if resident memory has grown by more than `kib` KiB since `self` was taken.
    ///
    /// # Panics
    /// With both figures.
    pub fn assert_memory_within(&self, kib: u64) {
        let now = rss_kib();
        assert!(now <= self.rss_kib + kib, "resident memory grew from {} to {now} KiB (allowed: {kib})", self.rss_kib);
    }
}

fn count(names: Vec<String>) -> BTreeMap<String, usize> {
    let mut map = BTreeMap::new();
    for name in names {
        *map.entry(name).or_insert(0) += 1;
    }
    map
}

/// `socket:[123]` becomes `socket`: numbers differ, kinds are what is compared.
fn kind_of(target: &str) -> String {
    match target.split_once(":[") {
        Some((kind, _)) => kind.to_string(),
        None => target.to_string(),
    }
}

/// The targets of this process's file descriptors (without the one that reads the list).
fn open_files() -> Vec<String> {
    let own = format!("/proc/{}/fd", std::process::id());
    fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .map(|target| kind_of(&target.to_string_lossy()))
        .filter(|target| *target != own)
        .collect()
}

fn thread_names() -> BTreeMap<u32, String> {
    let name = |id: &u32| fs::read_to_string(format!("/proc/self/task/{id}/comm"));
    let ids = procfs::task_ids(Path::new("/proc/self")).into_iter();
    ids.filter_map(|id| Some((id, name(&id).ok()?.trim().to_string()))).collect()
}

fn shared_maps() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| line[at..].trim_end_matches(" (deleted)").to_string()))
        .filter(|path| path.starts_with("/memfd:") || path.starts_with("/dev/shm/"))
        .collect()
}

fn dev_shm_entries() -> Vec<String> {
    fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| ["nccl", "oxccl", "softcuda"].iter().any(|ours| name.contains(ours)))
        .collect()
}

/// Resident memory of this process in KiB (`VmRSS`); 0 where it cannot be read.
pub fn rss_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
