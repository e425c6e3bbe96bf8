//! Ranks on several hosts, and in several containers of one host: what holds on one host holds among them.

use std::time::{Duration, Instant};

use rand::RngExt;

use crate::built;
use crate::case::{Case, kinds};
use crate::common::abi::{REMOTE_ERROR, SUCCESS};
use crate::common::contract::Func;
use crate::common::hosts::Hosts;
use crate::common::launch::{self, STRICT};
use crate::common::nccl::TEST_KEY;
use crate::graphs::Replay;
use crate::member::{Api, Item, Member, Submission};
use crate::messages::Message;
use crate::setup::{self, Setup, Transport, long, seeded_rng};

/// All functions, messages of all sizes and to everybody, alone and in groups.
fn body(member: &mut Member) {
    let mut plan = seeded_rng("hosts");
    let mut own = seeded_rng(&format!("order of rank {}", member.rank));
    let n = member.nranks;
    for round in 0..if long() { 20 } else { 2 } {
        let mut items = Vec::new();
        for func in built::FUNCS {
            let of_func: Vec<_> = kinds().into_iter().filter(|kind| kind.0 == *func).collect();
            let kind = of_func[plan.random_range(0..of_func.len())];
            items.push(Item::Collective(Case::random(&mut plan, kind, n)));
        }
        for part in items.chunks(3) {
            let all = [Submission::Each, Submission::Queued, Submission::Group];
            member.run(part, all[(round + plan.random_range(0..3usize)) % 3], &mut own);
        }
        let messages = (0..10 * n).map(|_| Item::Message(Message::random(&mut plan, n, 100_000)));
        member.run(&messages.collect::<Vec<_>>(), Submission::Group, &mut own);
    }
}

/// The host of each rank: hosts of one, of equal and of unequal size, interleaved and reversed.
const PLACES: [&[usize]; 8] = [
    &[0, 1],
    &[0, 1, 2],
    &[0, 0, 1, 1],
    &[0, 1, 0, 1],
    &[1, 1, 0, 0],
    &[1, 0, 0, 0],
    &[0, 0, 1, 1, 1, 2],
    &[0, 0, 0, 1, 1, 1, 1],
];

#[test]
fn of_every_shape() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, body);
    }
    let Some(hosts) = Hosts::new(3) else { return };
    let large: &[usize] = &[0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];
    for places in PLACES.into_iter().chain(long().then_some(large)) {
        println!("ranks on hosts {places:?}");
        let job = Setup::plain(places.len()).job("hosts::of_every_shape");
        hosts.place(job, places, true).run().assert_ok();
    }
    // No store wakes who waits for it.
    for places in [&[1, 0, 1, 0, 2][..], &[0, 1, 1]] {
        println!("ranks on hosts {places:?}, strict");
        let job = Setup::plain(places.len()).job("hosts::of_every_shape").with(&STRICT);
        hosts.place(job, places, true).run().assert_ok();
    }
}

/// What the cost model would not choose here, too: rings, trees, and hierarchical algorithms, on channels that enter a
/// host at different ranks.
#[test]
fn by_every_algorithm() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, body);
    }
    let Some(hosts) = Hosts::new(3) else { return };
    for algorithm in ["ring", "tree", "direct", "direct2", "pat"] {
        let places: &[usize] = if long() { &[0, 0, 1, 1, 1, 2] } else { &[0, 1, 1, 0, 1] };
        let setup = Setup { algorithm: Some(algorithm), channels: Some(2), ..Setup::plain(places.len()) };
        hosts.place(setup.job("hosts::by_every_algorithm"), places, true).run().assert_ok();
    }
}

/// The same where all that goes between hosts is encrypted: nothing of it is seen by who calls.
#[test]
fn encrypted() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, body);
    }
    let Some(hosts) = Hosts::new(2) else { return };
    for places in [&[0usize, 1][..], &[0, 1, 1]] {
        let job = Setup::plain(places.len()).job("hosts::encrypted").env(TEST_KEY, "k".repeat(40));
        hosts.place(job.with(&STRICT), places, true).run().assert_ok();
    }
    // As the mover has it where ranks are on one host.
    let job = Setup { transport: Transport::Net, ..Setup::plain(3) }.job("hosts::encrypted");
    job.env(TEST_KEY, "k".repeat(40)).env("NCCL_NSOCKS_PERTHREAD", "3").run().assert_ok();
}

/// Graphs among hosts, launched again and again with calls between: no host code runs when a graph does.
#[test]
fn graphs_are_replayed() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let calls = [100, 30_000].map(|count| Case::of(Func::AllReduce, count).prepare(member));
            let mut replay = Replay::capture(member, calls.into(), Submission::Queued);
            for round in 0..if long() { 1000 } else { 20 } {
                replay.run(member, 2, round % 2);
                let direct = Item::Collective(Case::of(Func::AllGather, 500));
                member.run(&[direct], Submission::Each, &mut seeded_rng("direct"));
            }
            drop(replay.end());
        });
    }
    let Some(hosts) = Hosts::new(2) else { return };
    for strict in [false, true] {
        let job = Setup::plain(4).job("hosts::graphs_are_replayed");
        let job = if strict { job.with(&STRICT) } else { job };
        hosts.place(job, &[0, 1, 0, 1], true).run().assert_ok();
    }
}

/// A rank sends, and ends its communicator before the other side has asked for it: all that was sent arrives.
#[test]
fn who_ends_first_loses_nothing() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        for round in 0..if long() { 100 } else { 10 } {
            let mut member = Member::of_process(api, &me, &format!("id {round}"));
            let mut own = seeded_rng("own");
            // What has come back before makes a careless end a reset.
            let pairs = [(0, 1), (1, 0)].map(|pair| Item::Message(Message::bytes(pair, 300_000, round)));
            member.run(&pairs, Submission::Group, &mut own);
            if me.rank == 1 {
                std::thread::sleep(Duration::from_millis(50));
            }
            member.run(&[Item::Message(Message::bytes((0, 1), 300_000, round + 1))], Submission::Queued, &mut own);
            member.end();
        }
        return;
    }
    let Some(hosts) = Hosts::new(2) else { return };
    hosts.place(Setup::plain(2).job("hosts::who_ends_first_loses_nothing"), &[0, 1], true).run().assert_ok();
}

/// A rank that calls late, by more than a stranger may take to say who it is: nobody's connection is lost meanwhile.
#[test]
fn a_late_rank_is_waited_for() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            if me.rank == 1 {
                std::thread::sleep(Duration::from_millis(if long() { 7000 } else { 300 }));
            }
            member.run(
                &[Item::Collective(Case::of(Func::AllReduce, 1000))],
                Submission::Queued,
                &mut seeded_rng("own"),
            );
        });
    }
    let Some(hosts) = Hosts::new(3) else { return };
    hosts.place(Setup::plain(3).job("hosts::a_late_rank_is_waited_for"), &[0, 1, 2], true).run().assert_ok();
}

/// A process that dies on another host is named by the others, in the middle of a call.
#[test]
fn a_rank_that_dies_is_named() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let mut member = Member::of_process(api, &me, "id");
        let mut own = seeded_rng("own");
        let call = [Item::Collective(Case::of(Func::AllReduce, 1000))];
        member.run(&call, Submission::Queued, &mut own);
        if me.rank == 1 {
            me.barrier("called");
            std::process::abort();
        }
        me.barrier("called");
        let start = Instant::now();
        let mut lost = Case::of(Func::AllReduce, 100_000).prepare(&mut member);
        // It may be refused already.
        let _ = member.issue(&mut lost);
        while api.nccl.async_error(member.comm) == Ok(SUCCESS) && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(api.nccl.async_error(member.comm), Ok(REMOTE_ERROR));
        println!("heard after {:?}", start.elapsed());
        api.nccl.abort(member.comm).expect("an abort");
        return std::mem::forget(member);
    }
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Setup::plain(3).job("hosts::a_rank_that_dies_is_named").allow_any_warning();
    let outcome = hosts.place(job, &[0, 1, 1], true).run();
    let said = |rank: usize| outcome.ranks[rank].warnings().join("\n");
    assert!([0, 2].iter().all(|rank| outcome.ranks[*rank].status.success()), "{}\n{}", said(0), said(2));
    // Who notices it first names it; the other may hear first that that one leaves.
    assert!([0, 2].iter().any(|rank| said(*rank).contains("rank 1")), "{}\n{}", said(0), said(2));
}

#[test]
fn containers_of_one_host() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, body);
    }
    let Some(hosts) = Hosts::new(2) else { return };
    for strict in [false, true] {
        let job = Setup::plain(3).job("hosts::containers_of_one_host");
        let job = if strict { job.with(&STRICT) } else { job };
        hosts.place(job, &[0, 1, 1], false).run().assert_ok();
    }
}
