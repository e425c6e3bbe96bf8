//! What goes over the wire where the program has set a key, and jobs whose processes do not agree on it.

use std::time::{Duration, Instant};

use crate::common::abi::INVALID_USAGE;
use crate::common::hosts::Hosts;
use crate::common::launch;
use crate::common::nccl::TEST_KEY;
use crate::gateway;
use crate::logged::{assert_says, job};
use crate::member::{Member, body};

const KEY: &str = "a key of thirty-two bytes or more, for tests";
const OTHER: &str = "another key of thirty-two bytes or more, too";
/// What ranks add: nothing else on the wire looks like several of it in a row.
const PATTERN: u32 = 0x5ec2_e75e;
/// How long the end of a job may take that cannot begin.
const SECONDS: Duration = Duration::from_secs(30);

fn contains(bytes: &[u8], value: u32) -> bool {
    let wanted = value.to_ne_bytes().repeat(8);
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// A gateway between the hosts sees data in plain where no key is set, and none where one is. What ranks tell each
/// other beside that is never seen.
#[test]
fn a_captured_stream_has_no_data_in_it() {
    if let Some(me) = launch::child() {
        if me.rank == 2 {
            let carried = gateway::publish_ports(&me);
            let carried = carried.lock().expect("no panic");
            let all: Vec<Vec<u8>> = carried.iter().map(|(_, kept)| kept.lock().expect("no panic").clone()).collect();
            let seen = all.iter().any(|bytes| contains(bytes, PATTERN));
            println!("{} streams, {} bytes", all.len(), all.iter().map(Vec::len).sum::<usize>());
            assert_eq!(seen, std::env::var_os(TEST_KEY).is_none());
            // The interface's name is in every rank's record.
            assert!(!all.iter().any(|bytes| bytes.windows(4).any(|window| window == b"eth0")));
            return;
        }
        me.await_published("gateway");
        let member = Member::join_of(&me, 2, "id").unwrap_or_else(|failure| panic!("{failure:?}"));
        (0..3).for_each(|round| assert_eq!(member.sum(round, 1), 2));
        member.sum_pattern(PATTERN);
        member.end();
        return me.publish(&format!("over.{}", me.rank), b"");
    }
    let Some(hosts) = gateway::hosts() else { return };
    for key in [None, Some(KEY)] {
        let test = job("encryption::a_captured_stream_has_no_data_in_it", 3);
        let test = key.into_iter().fold(test, |test, key| test.env(TEST_KEY, key));
        let outcome = gateway::place(&hosts, test).run();
        outcome.assert_ok();
        assert_says(&outcome, 0, "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0");
    }
}

#[test]
fn ranks_that_agree_on_a_key_meet() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let Some(hosts) = Hosts::new(2) else { return };
    for fixed in [None, Some("10.9.0.1:43999")] {
        let test = job("encryption::ranks_that_agree_on_a_key_meet", 4).env(TEST_KEY, KEY);
        let test = fixed.into_iter().fold(test, |test, at| test.env("NCCL_COMM_ID", at));
        let outcome = hosts.place(test, &[0, 1, 0, 1], true).run();
        outcome.assert_ok();
    }
}

/// No rank goes on in plain, none waits, and all say why.
#[test]
fn ranks_that_do_not_agree_are_told() {
    if let Some(me) = launch::child() {
        let start = Instant::now();
        let failure = Member::join(&me, "id").err().expect("they cannot meet");
        println!("after {:?}: {failure}", start.elapsed());
        // Ranks that come late hear it from the root, as long as its process lives.
        me.barrier("told");
        assert_eq!(failure.code, INVALID_USAGE, "{failure}");
        assert!(failure.text.contains("ncclSetEncryption"), "{failure}");
        assert!(start.elapsed() < SECONDS, "{failure}");
        return;
    }
    let Some(hosts) = Hosts::new(2) else { return };
    for keys in [
        [None, None, Some(KEY)],
        [Some(KEY), Some(KEY), None],
        [Some(KEY), Some(OTHER), Some(KEY)],
        [None, Some(KEY), Some(OTHER)],
    ] {
        println!("keys {keys:?}");
        let mut test = job("encryption::ranks_that_do_not_agree_are_told", 3).allow_any_warning();
        for (rank, key) in keys.iter().enumerate() {
            test = key.iter().fold(test, |test, key| test.env_of(rank, TEST_KEY, key));
        }
        hosts.place(test, &[0, 1, 1], true).run().assert_ok();
    }
}

/// A key that is set after the id was made counts; one that is taken back does not, for what is made afterwards; a
/// communicator that was made with a key keeps it.
#[test]
fn keys_come_and_go() {
    if let Some(me) = launch::child() {
        let member = Member::join_when(&me, "first", |nccl| nccl.set_encryption(Some(KEY)).expect("a key"));
        let member = member.unwrap_or_else(|failure| panic!("{failure:?}"));
        member.nccl.set_encryption(None).expect("no key");
        let plain = Member::join(&me, "second").unwrap_or_else(|failure| panic!("{failure:?}"));
        (0..3).for_each(|round| assert_eq!((member.sum(round, 1), plain.sum(round, 1)), (2, 2)));
        member.end();
        plain.end();
        return;
    }
    let Some(hosts) = Hosts::new(2) else { return };
    hosts.place(job("encryption::keys_come_and_go", 2), &[0, 1], true).run().assert_ok();
}
