//! Every link of a wiring, written by one end and read by the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nccl::bootstrap::Cancel;
use nccl::device::{Context, DeviceMemory, Ledger, Use};
use nccl::error::Error;
use nccl::plan::layout::{Counter, Proto, SLOTS};
use nccl::plan::wiring::{LinkNeed, LinkSet, Wiring};
use nccl::plan::{LinkClass, LinkId};
use nccl::sys::HostFacts;
use nccl::topology::{Channel, Graph, Order};
use nccl::transport::{self, ConnectionGroup, LinkAddresses, Links, PeerFacts, PeerReach, TransportId};
use nccl::tuning::Preferences;

use crate::common::launch::{self, Job, Place};
use crate::common::resources::Resources;

/// An allgather by way of files, for threads and processes alike.
struct Gather<'a> {
    place: &'a Place,
    rank: u32,
    nranks: u32,
    round: u32,
}

impl Gather<'_> {
    fn all(&mut self, block: &[u8]) -> Vec<Vec<u8>> {
        self.round += 1;
        let name = |rank: u32| format!("gather.{}.{rank}", self.round);
        self.place.publish(&name(self.rank), block);
        (0..self.nranks).map(|rank| self.place.await_published(&name(rank))).collect()
    }
}

/// A case: which links, and what is peculiar about some ranks.
struct Case {
    nranks: u32,
    wiring: fn(u32) -> Wiring,
    /// Ranks of one process.
    per_process: u32,
    /// The device of a rank.
    device: fn(u32) -> i32,
    /// Whether a rank cannot share device memory.
    no_peer_memory: fn(u32) -> bool,
    /// What ranks may use.
    transports: &'static [TransportId],
}

/// What ranks may use without the variable.
const USUAL: &[TransportId] = &[TransportId::Direct, TransportId::Ipc, TransportId::Shm];

impl Case {
    fn of(nranks: u32) -> Case {
        Case {
            nranks,
            wiring: everything,
            per_process: 1,
            device: |rank| rank as i32,
            no_peer_memory: |_| false,
            transports: USUAL,
        }
    }
}

/// All classes, two channels, both protocols, a ring that is out of order.
fn everything(nranks: u32) -> Wiring {
    let set = |class, proto, slot_bytes| LinkSet {
        class,
        proto,
        channels: if class == LinkClass::Peer { 1 } else { 2 },
        slot_bytes,
    };
    let sets = vec![
        set(LinkClass::Ring, Proto::Simple, 65536),
        set(LinkClass::Direct, Proto::Simple, 8192),
        set(LinkClass::Direct, Proto::Ll, 1024),
        set(LinkClass::Peer, Proto::Simple, 4096),
    ];
    let order = Order::new((0..nranks).rev().collect()).expect("an order");
    let channel = Channel { ring: order.clone(), tree: order.clone(), peers: Some(order) };
    Wiring::new(Graph::new(vec![0; nranks as usize], vec![channel]).expect("a graph"), sets).expect("a wiring")
}

/// All connection groups of a wiring in which a rank has links.
fn groups(wiring: &Wiring, rank: u32) -> Vec<ConnectionGroup> {
    let channels = |set: &LinkSet| {
        let (class, proto) = (set.class, set.proto);
        (0..set.channels).map(move |channel| ConnectionGroup::Channel { class, proto, channel })
    };
    let all = wiring.sets().iter().filter(|set| set.class != LinkClass::Peer).flat_map(channels);
    all.chain((0..wiring.nranks()).filter(|peer| *peer != rank).map(|peer| ConnectionGroup::pair(rank, peer))).collect()
}

/// The facts that a rank has sent.
fn read(bytes: &[u8]) -> PeerFacts {
    let (own, common): (Vec<u8>, Vec<u8>) = postcard::from_bytes(bytes).expect("decode");
    PeerFacts::decode(&own, &postcard::from_bytes(&common).expect("decode")).expect("decode")
}

fn facts(case: &Case, rank: u32, context: &Context, links: &Links) -> PeerFacts {
    let device = context.facts().expect("facts");
    PeerFacts {
        rank,
        host: HostFacts::read(None),
        process: u64::from(std::process::id()),
        device: context.device(),
        nvml_device: device.nvml_device,
        context: 0,
        uuid: device.uuid,
        bus_id: device.bus_id,
        capability: device.capability,
        reach: PeerReach { linked: context.linked().expect("devices").into(), ..PeerReach::default() },
        registers: false,
        location: links.location(),
        transports: if (case.no_peer_memory)(rank) { vec![TransportId::Shm] } else { case.transports.to_vec() },
        links: links.key(),
        tuning: Preferences {
            channels: 2,
            slot_bytes: 65536,
            message_channels: 1,
            message_line_bytes: 0,
            halvings: 0,
            candidates: Vec::new(),
        },
        cpus: 2,
    }
}

/// The links of a rank by name.
type Connected = BTreeMap<LinkId, LinkAddresses>;

/// Tries the transports and connects some connection groups of a rank; hands the result, and how peers are reached, to
/// `then` while the rank can still exchange.
fn connected(
    case: &Case,
    place: &Place,
    rank: u32,
    of: fn(&Wiring, u32) -> Vec<ConnectionGroup>,
    then: impl FnOnce(&mut Gather<'_>, Result<Connected, Error>, &str),
) {
    let context = Context::retain((case.device)(rank)).expect("a device");
    let (cancel, ledger) = (Cancel::new(), Arc::new(Ledger::default()));
    let links = Links::open(&context, rank, &cancel, &ledger).expect("a helper thread");
    let mut gather = Gather { place, rank, nranks: case.nranks, round: 0 };
    let mine = postcard::to_stdvec(&facts(case, rank, &context, &links).encode().expect("encode")).expect("encode");
    let peers: Vec<PeerFacts> = gather.all(&mine).iter().map(|bytes| read(bytes)).collect();
    let probed = transport::probe(&context, rank, &peers, &ledger, &links, &mut |bytes| Ok(gather.all(bytes)));
    let probe = probed.unwrap_or_else(|failed| panic!("rank {rank}: {}", failed.error));
    let wiring = (case.wiring)(case.nranks);
    links.plan(peers, wiring.clone());
    gather.all(&[]);
    let mut found = Connected::new();
    let result = links.connect(
        &of(&wiring, rank),
        |_| false,
        &|| Ok(()),
        |group, ends| {
            assert_eq!(ends.iter().map(|(need, _)| *need).collect::<Vec<_>>(), wiring.group_links(rank, group));
            found.extend(ends.iter().map(|(need, addresses)| (need.id, *addresses)));
            Ok(())
        },
    );
    then(&mut gather, result.map(|()| found), &probe.summary());
    // Nobody frees what a peer has mapped and is looking at.
    gather.all(&[]);
    links.close();
    assert!(ledger.bytes(Use::Links) > 0);
    drop((links, probe));
    // The helper thread may still have hold of the links.
    let until = Instant::now() + Duration::from_secs(10);
    while ledger.bytes(Use::Links) + ledger.bytes(Use::Persist) > 0 {
        assert!(Instant::now() < until, "memory is left");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A number that no other part of any link has.
fn mark(id: LinkId, part: u64) -> u64 {
    let parts = [id.from, id.to, id.class as u32, id.proto as u32, id.channel].map(u64::from);
    parts.into_iter().fold(part + 1, |sum, part| sum << 8 | part)
}

fn word(address: u64) -> &'static AtomicU64 {
    // SAFETY: on the software device, device memory is memory of this process; the links live until all have checked.
    unsafe { &*(address as *const AtomicU64) }
}

/// The words of a link that its sender writes: both ends of each slot, and the counter.
fn sent(need: &LinkNeed, connected: &Connected) -> Vec<u64> {
    let at = connected[&need.id];
    let size = u64::from(at.slot_bytes);
    let slots = (0..SLOTS as u64).flat_map(|slot| [at.slots + slot * size, at.slots + (slot + 1) * size - 8]);
    slots.chain([at.posted]).collect()
}

fn check(case: &Case, rank: u32, gather: &mut Gather<'_>, connected: &Connected) {
    let links = (case.wiring)(case.nranks).links(rank);
    let (counter, last) = (size_of::<Counter>() as u64, 2 * SLOTS as u64 + 1);
    for need in &links {
        let at = connected[&need.id];
        assert_eq!((at.slot_bytes, at.peer), (need.slot_bytes, need.peer(rank)));
        for counter_word in [at.posted, at.consumed].into_iter().flat_map(|base| (base..base + counter).step_by(8)) {
            assert_eq!(word(counter_word).load(Ordering::Acquire), 0, "{need:?}");
        }
    }
    gather.all(&[]);
    for need in &links {
        if need.id.from == rank {
            let words = sent(need, connected);
            words.iter().enumerate().for_each(|(n, at)| word(*at).store(mark(need.id, n as u64), Ordering::Release));
        } else {
            let consumed = connected[&need.id].consumed;
            word(consumed).store(mark(need.id, last), Ordering::Release);
        }
    }
    gather.all(&[]);
    for need in &links {
        let words = sent(need, connected);
        for (n, at) in words.iter().enumerate() {
            assert_eq!(word(*at).load(Ordering::Acquire), mark(need.id, n as u64), "{need:?}, word {n}");
        }
        let consumed = connected[&need.id].consumed;
        assert_eq!(word(consumed).load(Ordering::Acquire), mark(need.id, last), "{need:?}");
    }
}

/// Runs the ranks of this process, and looks that nothing is left of them.
fn ranks(case: &Case, place: &Place, body: impl Fn(u32) + Sync) {
    let first = place.rank as u32 * case.per_process;
    let before = Resources::now();
    thread::scope(|scope| {
        for rank in first..first + case.per_process {
            let body = &body;
            scope.spawn(move || body(rank));
        }
    });
    // Threads of the software device come when there is work, and those of ranks may still be on their way out.
    let left: Vec<String> =
        Resources::now().grown(&before).into_iter().filter(|line| !line.contains(" more threads: ")).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// Everything is connected and works, by these transports.
fn works(case: &Case, place: &Place, summaries: &[&str]) {
    // What the software device starts with its first use stays for the life of the process.
    let held: Vec<_> = (0..8).map(|device| Context::retain(device).expect("a device")).collect();
    held.iter().for_each(|context| drop(DeviceMemory::zeroed(context, 64).expect("memory")));
    ranks(case, place, |rank| {
        connected(case, place, rank, groups, |gather, result, summary| {
            let links = result.unwrap_or_else(|failed| panic!("rank {rank}: {failed}"));
            assert!(summaries.iter().any(|expected| summary.contains(expected)), "rank {rank}: {summary}");
            check(case, rank, gather, &links);
            gather.all(&[]);
        });
    });
}

fn run(name: &str, processes: usize, case: &Case, summaries: &[&str]) {
    match launch::child() {
        Some(me) => works(case, &me, summaries),
        None => Job::this_test(name, processes).run().assert_ok(),
    }
}

#[test]
fn device_memory_of_one_process() {
    let case = Case { per_process: 8, ..Case::of(8) };
    run("links::device_memory_of_one_process", 1, &case, &["(7 by P2P/direct pointer)"]);
}

#[test]
fn device_memory_of_processes() {
    run("links::device_memory_of_processes", 3, &Case::of(3), &["(2 by P2P/IPC)"]);
}

#[test]
fn host_memory_of_one_process() {
    let case = Case { per_process: 7, no_peer_memory: |_| true, ..Case::of(7) };
    run("links::host_memory_of_one_process", 1, &case, &["(6 by SHM/direct)"]);
}

#[test]
fn host_memory_of_processes() {
    let case = Case { no_peer_memory: |_| true, ..Case::of(4) };
    run("links::host_memory_of_processes", 4, &case, &["(3 by SHM/direct)"]);
}

/// Both ranks of a process open the memory of every rank of the other, on one device: a handle is opened once.
#[test]
fn ranks_of_one_device_open_the_same_memory() {
    let case = Case { per_process: 2, device: |rank| (rank / 2) as i32, ..Case::of(4) };
    run("links::ranks_of_one_device_open_the_same_memory", 2, &case, &["(1 by P2P/direct pointer, 2 by P2P/IPC)"]);
}

/// Three transports in one communicator: rank 1 cannot share device memory.
#[test]
fn all_transports_at_once() {
    let case = Case { per_process: 2, no_peer_memory: |rank| rank == 1, ..Case::of(6) };
    let summaries = [
        "(4 by P2P/IPC, 1 by SHM/direct)",
        "(5 by SHM/direct)",
        "(1 by P2P/direct pointer, 3 by P2P/IPC, 1 by SHM/direct)",
    ];
    run("links::all_transports_at_once", 3, &case, &summaries);
}

/// Only one rank wants anything: the others give their part, although nobody there has asked for it.
#[test]
fn a_rank_alone_gets_its_links() {
    let Some(me) = launch::child() else {
        for off in ["0", "1"] {
            Job::this_test("links::a_rank_alone_gets_its_links", 3).env("TEST_P2P_OFF", off).run().assert_ok();
        }
        return;
    };
    let case = Case { no_peer_memory: without_peer_memory(), ..Case::of(3) };
    let of: fn(&Wiring, u32) -> Vec<ConnectionGroup> = if me.rank == 1 {
        groups
    } else {
        |_, rank| if rank == 2 { vec![ConnectionGroup::pair(2, 0)] } else { Vec::new() }
    };
    // Rank 0 has a part of connection groups, but wants nothing itself.
    connected(&case, &me, me.rank as u32, of, |gather, result, _| {
        let links = result.expect("links");
        assert_eq!(
            links.len(),
            [0, groups(&everything(3), 1).iter().map(|group| everything(3).group_links(1, *group).len()).sum(), 2]
                [me.rank]
        );
        gather.all(&[]);
    });
}

fn without_peer_memory() -> fn(u32) -> bool {
    if std::env::var("TEST_P2P_OFF").is_ok_and(|off| off == "1") { |_| true } else { |_| false }
}

/// Rank 1 has other slots than the others think: who first finds it tells the other.
#[test]
fn another_layout_is_told() {
    let Some(me) = launch::child() else {
        for off in ["0", "1"] {
            Job::this_test("links::another_layout_is_told", 3).env("TEST_P2P_OFF", off).run().assert_ok();
        }
        return;
    };
    let usual = Case { no_peer_memory: without_peer_memory(), ..Case::of(3) };
    let other = |nranks| Wiring::of_host(nranks, Proto::Simple, 1, 4096).expect("a wiring");
    let case = if me.rank == 1 { Case { wiring: other, ..usual } } else { usual };
    let ring: fn(&Wiring, u32) -> Vec<ConnectionGroup> =
        |_, _| vec![ConnectionGroup::Channel { class: LinkClass::Ring, proto: Proto::Simple, channel: 0 }];
    connected(&case, &me, me.rank as u32, ring, |gather, result, _| {
        let error = result.expect_err("another layout");
        assert!(error.to_string().contains("laid out"), "rank {}: {error}", me.rank);
        assert!(matches!(error, Error::Remote { .. }));
        gather.all(&[]);
    });
}
