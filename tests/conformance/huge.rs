//! More than 2^32 bytes in one call, in place.

use std::fs;
use std::time::Duration;

use crate::built;
use crate::case::Case;
use crate::common::contract::{Func, Operator, Source};
use crate::common::launch;
use crate::common::oracle::{DataType, RedOp};
use crate::member::{Action, Item, Member, Prepared};
use crate::setup::{self, Setup, long};

/// Ranks, each with one buffer.
const RANKS: usize = 2;
/// Bytes of a buffer, a little over 2^32 and odd.
const BYTES: usize = (1 << 32) + 4097;
/// Free memory that it takes, in KiB.
const NEEDED_KIB: u64 = 12 << 20;
/// Bytes that are written or compared at a time.
const PIECE: usize = 16 << 20;

/// What the system could give without swapping, in KiB.
fn available_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Runs `with` on every piece of a buffer's part: its address and where in the part it begins.
fn pieces(start: u64, bytes: usize, mut with: impl FnMut(u64, usize, usize)) {
    for at in (0..bytes).step_by(PIECE) {
        with(start + at as u64, at, PIECE.min(bytes - at));
    }
}

fn one(member: &mut Member, func: Func, buffer: u64) {
    let cuda = member.api.cuda;
    let operator = func.reduces().then_some(Operator::Plain(RedOp::Sum));
    let mut case = Case::plain((func, DataType::Int8, operator), 0);
    (case.in_place, case.phase) = (true, 17);
    let contract = case.contract(member);
    let (send_at, recv_at) = contract.in_place();
    let blocks = (send_at + contract.sends()).max(recv_at + contract.output().len());
    let largest =
        if matches!(func, Func::AllGather | Func::ReduceScatter | Func::Gather | Func::Scatter) { RANKS } else { 1 };
    assert!(blocks <= largest);
    case.count = BYTES / largest;
    let content = case.content(RANKS);
    let input = member.tile(content, Source::Rank(member.rank));
    let mut staging = vec![0; PIECE];
    let send = buffer + (send_at * case.count) as u64;
    pieces(send, contract.sends() * case.count, |address, at, n| {
        input.fill(&mut staging[..n], case.phase + at);
        cuda.copy_to_device(address, &staging[..n]).expect("copy");
    });
    let recv = buffer + (recv_at * case.count) as u64;
    let mut call = Prepared {
        item: Item::Collective(case),
        action: Action::Collective(case),
        buffers: (send, recv),
        scalar: 0,
        operator: None,
        regions: Vec::new(),
        stream: 0,
        title: format!("{case:?}"),
        size: 1,
    };
    member.must_issue(&mut call);
    member.wait();
    for (place, block) in contract.output().into_iter().enumerate() {
        let tile = member.tile(content, block.source);
        pieces(recv + (place * case.count) as u64, case.count, |address, at, n| {
            cuda.copy_to_host(&mut staging[..n], address).expect("copy");
            let wrong = tile.first_wrong(&staging[..n], case.phase + block.block * case.count + at);
            assert_eq!(wrong.map(|wrong| wrong.0 + at), None, "{func:?}, rank {}, block {place}", member.rank);
        });
    }
}

#[test]
fn over_4_gib() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let buffer = member.api.cuda.alloc(BYTES).expect("memory");
            built::FUNCS.iter().filter(|func| func.has_in_place()).for_each(|func| one(member, *func, buffer));
            // SAFETY: all calls have been waited for.
            unsafe { member.api.cuda.free(buffer) }.expect("free");
        });
    }
    if !long() {
        return eprintln!("huge::over_4_gib runs with OXCCL_LONG=1 only");
    }
    let free = available_kib();
    if free < NEEDED_KIB {
        return eprintln!("SKIPPED huge::over_4_gib: {free} KiB are free, {NEEDED_KIB} are needed");
    }
    let job = Setup::plain(RANKS).job("huge::over_4_gib");
    job.deadline(Duration::from_secs(1200)).run().assert_ok();
}
