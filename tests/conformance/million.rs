//! A million small calls: nothing piles up.

use std::time::Duration;

use crate::case::Case;
use crate::common::contract::Func;
use crate::common::launch;
use crate::common::resources::Resources;
use crate::member::{Member, Prepared};
use crate::setup::{self, Setup, long};

/// Calls with everything run, and otherwise.
const CALLS: (usize, usize) = (1_000_000, 20_000);
/// Calls before the first count: buffers and pools have their size by then.
const WARMUP: usize = 2_000;
/// Calls between two waits.
const BATCH: usize = 100;
/// Growth of resident memory that is allowed, in KiB: allocators keep some slack.
const SLACK_KIB: u64 = 2048;

/// Makes calls and waits now and then.
fn repeat(member: &Member, call: &mut Prepared, calls: usize) {
    for at in 1..=calls {
        member.must_issue(call);
        if at % BATCH == 0 {
            member.wait();
        }
    }
    member.wait();
}

#[test]
fn a_million_small_calls() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let mut call = Case::of(Func::AllReduce, 2).prepare(member);
            repeat(member, &mut call, WARMUP);
            let before = Resources::now();
            let calls = if long() { CALLS.0 } else { CALLS.1 };
            repeat(member, &mut call, calls);
            before.assert_same();
            before.assert_memory_within(SLACK_KIB);
            member.check(vec![call]);
        });
    }
    for n in [1, 2] {
        let job = Setup::plain(n).job("million::a_million_small_calls");
        job.deadline(Duration::from_secs(if long() { 1200 } else { 120 })).run().assert_ok();
    }
}
