//! Under what a job runs: how many ranks, which algorithm, protocol, transport and slots; and its random numbers.

use std::env;
use std::thread;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::common::launch::{Job, Place};
use crate::common::need;
use crate::member::{Api, Member};

/// Bytes of a slot, unless `NCCL_BUFFSIZE` (8 slots) says otherwise.
pub const SLOT: usize = 256 << 10;
/// The smallest slot that the library has, and the `NCCL_BUFFSIZE` for it.
const SMALL_SLOT: usize = 4 << 10;

/// A job's time with everything run.
const LONG_DEADLINE: Duration = Duration::from_secs(900);

/// Tells the processes of a job under what they run, see [`Setup::label`].
const LABEL: &str = "OXCCL_TEST_SETUP";
/// Tells a process how many threads are its ranks.
const THREADS: &str = "OXCCL_TEST_THREADS";
/// Tells the processes of a job how large their slots are.
const SLOTS: &str = "OXCCL_TEST_SLOT";

/// How ranks reach each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Processes, device memory mapped by the peer.
    P2p,
    /// Processes, shared host memory.
    Shm,
    /// Threads of one process.
    Threads,
    /// Processes, no common memory: a mover between them.
    Net,
}

/// Whether all ranks of this process's job are connected by a mover, as over a network: with `OXCCL_TRANSPORTS=net` all
/// jobs run that way, also those that name another transport.
fn moved() -> bool {
    env::var("OXCCL_TRANSPORTS").is_ok_and(|list| list == "net")
}

/// Whether the ranks of this process's job map each other's buffers.
pub fn maps_buffers() -> bool {
    !moved() && !label().contains("Shm")
}

/// Under what a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    pub n: usize,
    pub transport: Transport,
    /// `NCCL_ALGO`.
    pub algorithm: Option<&'static str>,
    /// `NCCL_PROTO`.
    pub protocol: Option<&'static str>,
    /// The smallest slots there are: then little data needs many.
    pub small_slots: bool,
    /// `NCCL_MIN_NCHANNELS`.
    pub channels: Option<usize>,
    /// `NCCL_NCHANNELS_PER_PEER`.
    pub message_channels: Option<usize>,
    /// `SOFTCUDA_DELAY_US`.
    pub delay: Option<usize>,
}

impl Setup {
    /// Processes, and nothing said about the rest.
    pub fn plain(n: usize) -> Setup {
        Setup {
            n,
            transport: Transport::P2p,
            algorithm: None,
            protocol: None,
            small_slots: false,
            channels: None,
            message_channels: None,
            delay: None,
        }
    }

    /// One word for each part that is set.
    pub fn label(&self) -> String {
        let mut words = vec![format!("n={}", self.n), format!("{:?}", self.transport)];
        words.extend(self.algorithm.map(str::to_string));
        words.extend(self.protocol.map(str::to_string));
        words.extend(self.small_slots.then(|| "small".to_string()));
        words.extend(self.channels.map(|n| format!("channels={n}")));
        words.extend(self.message_channels.map(|n| format!("message channels={n}")));
        words.extend(self.delay.map(|us| format!("delay={us}")));
        words.join(" ")
    }

    /// A job that runs the test of this name again.
    pub fn job(&self, test: &str) -> Job {
        let threads = self.transport == Transport::Threads;
        let mut job = Job::this_test(test, if threads { 1 } else { self.n }).env(LABEL, self.label());
        let slot = if self.small_slots { SMALL_SLOT } else { SLOT };
        job = job.env(SLOTS, slot.to_string());
        if self.small_slots {
            job = job.env("NCCL_BUFFSIZE", (8 * SMALL_SLOT).to_string());
        }
        if threads {
            job = job.env(THREADS, self.n.to_string());
        }
        if self.transport == Transport::Shm {
            job = job.env("NCCL_P2P_DISABLE", "1");
        }
        if self.transport == Transport::Net {
            job = job.env("OXCCL_TRANSPORTS", "net");
        }
        if let Some(algorithm) = self.algorithm {
            // Most collectives have not most algorithms; that is told, and another one used.
            job = job.env("NCCL_ALGO", algorithm).allow_warning("NCCL_ALGO");
        }
        if let Some(protocol) = self.protocol {
            job = job.env("NCCL_PROTO", protocol).allow_warning("NCCL_PROTO");
        }
        if let Some(channels) = self.channels {
            job = job.env("NCCL_MIN_NCHANNELS", channels.to_string());
        }
        if let Some(channels) = self.message_channels {
            job = job.env("NCCL_NCHANNELS_PER_PEER", channels.to_string());
        }
        if let Some(delay) = self.delay {
            job = job.env("SOFTCUDA_DELAY_US", delay.to_string());
        }
        if long() { job.deadline(LONG_DEADLINE) } else { job }
    }

    /// Runs the test of this name again under this.
    pub fn run(&self, test: &str) {
        println!("{test} under {}", self.label());
        self.job(test).run().assert_ok();
    }
}

/// The label of this process's job.
pub fn label() -> String {
    env::var(LABEL).unwrap_or_default()
}

/// Bytes of a slot in this process's job.
pub fn slot() -> usize {
    env::var(SLOTS).ok().and_then(|text| text.parse().ok()).unwrap_or(SLOT)
}

/// Runs `work` for every rank of this process: one, or as many threads as the job says. Each is ended as usual.
pub fn each_rank(me: &Place, work: impl Fn(&mut Member) + Sync) {
    each_rank_ending(me, work, Member::end);
}

/// The same with another end.
pub fn each_rank_ending(me: &Place, work: impl Fn(&mut Member) + Sync, end: impl Fn(Member) + Sync) {
    let api = Api::load();
    let threads: usize = env::var(THREADS).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    if threads == 0 {
        let mut member = Member::of_process(api, me, "id");
        work(&mut member);
        return end(member);
    }
    let (id, devices) = (api.nccl.unique_id().expect("an id"), api.cuda.device_count().expect("devices"));
    thread::scope(|scope| {
        for rank in 0..threads {
            let (work, end) = (&work, &end);
            scope.spawn(move || {
                api.cuda.use_device(rank % devices).expect("a device");
                let mut member = Member::new(api, api.init(threads, id, rank), (rank, threads));
                work(&mut member);
                end(member);
            });
        }
    });
}

/// Whether everything is to be run.
pub fn long() -> bool {
    need::long()
}

/// The part of a long list that is to be run: `OXCCL_PART=K/N` is the K-th of N, from 1.
pub fn part<T>(list: Vec<T>) -> Vec<T> {
    let Ok(text) = env::var("OXCCL_PART") else { return list };
    let parsed = text.split_once('/').and_then(|(k, n)| Some((k.parse::<usize>().ok()?, n.parse::<usize>().ok()?)));
    let (k, n) = parsed.filter(|(k, n)| (1..=*n).contains(k)).unwrap_or_else(|| panic!("OXCCL_PART={text} is no K/N"));
    list.into_iter().enumerate().filter(|(at, _)| at % n == k - 1).map(|(_, item)| item).collect()
}

/// The random numbers of a test: every rank draws the same. `OXCCL_SEED` picks others.
pub fn seeded_rng(of: &str) -> SmallRng {
    let seed = env::var("OXCCL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1u64);
    let of = format!("{of} {}", label());
    println!("seed {seed} ({of})");
    let mixed = of.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    SmallRng::seed_from_u64(mixed)
}
