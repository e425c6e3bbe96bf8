//! Calls that do not match: every rank hears of it, by name, instead of hanging. The sender writes a hash
//! of each call beside its data, and the receiver compares.

use std::thread;
use std::time::{Duration, Instant};

use crate::built;
use crate::case::{Case, Form};
use crate::common::abi::{INVALID_USAGE, REMOTE_ERROR, SUCCESS};
use crate::common::contract::{Func, Operator};
use crate::common::launch;
use crate::common::oracle::{DataType, RedOp};
use crate::graphs::mode;
use crate::member::{Item, Member, Prepared, Submission};
use crate::setup::{self, Setup, Transport, seeded_rng};

/// Most time until all ranks know: generous, since a machine can be busy.
const LIMIT: Duration = Duration::from_secs(20);
/// Tells a process which row of [`ROWS`] is tried, and which rank is the odd one.
const ROW: &str = "OXCCL_TEST_MISMATCH";

/// What all ranks but one call, what that one calls, and words that the explanation has to have.
struct Row {
    name: &'static str,
    common: fn() -> Vec<Case>,
    odd: fn() -> Vec<Case>,
    words: &'static [&'static str],
}

fn typed(func: Func, count: usize, dtype: DataType, op: RedOp) -> Case {
    Case::plain((func, dtype, func.reduces().then_some(Operator::Plain(op))), count)
}

const ROWS: [Row; 13] = [
    Row {
        name: "count",
        common: || vec![Case::of(Func::AllReduce, 1000)],
        odd: || vec![Case::of(Func::AllReduce, 1001)],
        words: &["AllReduce", "1000", "1001"],
    },
    Row {
        name: "count, many slots",
        common: || vec![Case::of(Func::AllReduce, 700_000)],
        odd: || vec![Case::of(Func::AllReduce, 3)],
        words: &["AllReduce", "700000"],
    },
    Row {
        name: "type",
        common: || vec![typed(Func::AllReduce, 64, DataType::Int32, RedOp::Sum)],
        odd: || vec![typed(Func::AllReduce, 64, DataType::Float32, RedOp::Sum)],
        words: &["AllReduce", "int32", "float32"],
    },
    Row {
        name: "type, and other bytes",
        common: || vec![typed(Func::AllGather, 64, DataType::Int32, RedOp::Sum)],
        odd: || vec![typed(Func::AllGather, 64, DataType::Float64, RedOp::Sum)],
        words: &["AllGather", "int32", "float64"],
    },
    Row {
        name: "operator",
        common: || vec![typed(Func::AllReduce, 64, DataType::Int32, RedOp::Sum)],
        odd: || vec![typed(Func::AllReduce, 64, DataType::Int32, RedOp::Max)],
        words: &["AllReduce", "sum", "max"],
    },
    Row {
        name: "operator of a scatter",
        common: || vec![typed(Func::ReduceScatter, 64, DataType::Float64, RedOp::Min)],
        odd: || vec![typed(Func::ReduceScatter, 64, DataType::Float64, RedOp::Avg)],
        words: &["ReduceScatter", "min", "avg"],
    },
    Row {
        name: "root",
        common: || vec![Case::of(Func::Broadcast, 500)],
        odd: || vec![Case { root: 1, ..Case::of(Func::Broadcast, 500) }],
        words: &["Broadcast", "root"],
    },
    Row {
        name: "root of a reduction",
        common: || vec![Case { root: 1, ..Case::of(Func::Reduce, 500) }],
        odd: || vec![Case::of(Func::Reduce, 500)],
        words: &["Reduce", "root"],
    },
    Row {
        name: "function",
        common: || vec![Case::of(Func::AllReduce, 100)],
        odd: || vec![Case::of(Func::ReduceScatter, 100)],
        words: &["AllReduce", "ReduceScatter"],
    },
    Row {
        name: "function that reduces nothing",
        common: || vec![Case::of(Func::AllGather, 100)],
        odd: || vec![Case::of(Func::Broadcast, 100)],
        words: &["AllGather", "Broadcast"],
    },
    Row {
        name: "gather and scatter",
        common: || vec![Case::of(Func::Gather, 100)],
        odd: || vec![Case::of(Func::Scatter, 100)],
        words: &["Gather", "Scatter"],
    },
    Row {
        name: "a call is skipped",
        common: || vec![Case::of(Func::AllReduce, 100), Case::of(Func::AllGather, 100)],
        odd: || vec![Case::of(Func::AllGather, 100)],
        words: &["AllReduce", "AllGather"],
    },
    Row {
        name: "all to all",
        common: || vec![Case::of(Func::AlltoAll, 100)],
        odd: || vec![Case::of(Func::AlltoAll, 200)],
        words: &["AlltoAll", "100", "200"],
    },
];

fn is_built(row: &Row) -> bool {
    (row.common)().iter().chain(&(row.odd)()).all(|case| built::FUNCS.contains(&case.func))
}

/// The communicator's state once it is not success any more, or when time is up.
fn failed_state(member: &Member) -> i32 {
    let until = Instant::now() + LIMIT;
    loop {
        let state = member.api.nccl.async_error(member.comm).expect("a query");
        if state != SUCCESS || Instant::now() > until {
            return state;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// One rank of a row: a call that matches, those that do not, and what all must hear of it.
fn body(member: &mut Member, row: &Row, odd: usize) {
    let mut own = seeded_rng("own");
    member.run(&[Item::Collective(Case::of(Func::AllReduce, 10))], Submission::Queued, &mut own);
    let cases = if member.rank == odd { (row.odd)() } else { (row.common)() };
    let mut calls: Vec<Prepared> = cases.iter().map(|case| case.prepare(member)).collect();
    for call in &mut calls {
        // A later call may already be refused.
        let _ = member.issue(call);
    }
    assert!(member.wait_for(LIMIT), "rank {}, {}: the stream has not ended", member.rank, row.name);
    assert_eq!(failed_state(member), INVALID_USAGE, "rank {}, {}", member.rank, row.name);
    let text = member.api.nccl.last_error();
    for word in row.words {
        let there = text.to_ascii_lowercase().contains(&word.to_ascii_lowercase());
        assert!(there, "rank {}, {}: `{word}` is missing in: {text}", member.rank, row.name);
    }
}

/// As [`setup::each_rank`], but the communicator is aborted.
fn each_rank_aborts(me: &launch::Place, work: impl Fn(&mut Member) + Sync) {
    setup::each_rank_ending(me, work, |member| {
        member.api.nccl.abort(member.comm).expect("abort");
        member.leave();
    });
}

#[test]
fn every_rank_hears_of_it() {
    if let Some(me) = launch::child() {
        let text = std::env::var(ROW).expect("the test says which row");
        let (row, odd) = text.split_once(' ').expect("two numbers");
        let (row, odd): (usize, usize) = (row.parse().expect("a number"), odd.parse().expect("a number"));
        return each_rank_aborts(&me, |member| body(member, &ROWS[row], odd));
    }
    let mut failed = Vec::new();
    for (at, row) in ROWS.iter().enumerate().filter(|(_, row)| is_built(row)) {
        for (transport, n) in [(Transport::P2p, 2), (Transport::P2p, 3), (Transport::Threads, 4), (Transport::Shm, 4)] {
            // Every number of ranks with everything run; otherwise one that changes from row to row.
            if !setup::long() && (at + n) % 3 != 0 && n != 2 {
                continue;
            }
            let setup = Setup { transport, ..Setup::plain(n) };
            for odd in if setup::long() { (0..n).collect() } else { vec![at % n] } {
                println!("{} by rank {odd} under {}", row.name, setup.label());
                let job = setup.job("mismatch::every_rank_hears_of_it").env(ROW, format!("{at} {odd}"));
                let outcome = job.allow_any_warning().run();
                if outcome.ranks.iter().any(|rank| !rank.status.success()) {
                    failed.push(format!("{} by rank {odd} under {}\n{outcome}", row.name, setup.label()));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} of them failed:\n{}", failed.len(), failed.join("\n"));
}

/// Captured calls are compared when they are replayed.
#[test]
fn replays_that_do_not_match() {
    if let Some(me) = launch::child() {
        return each_rank_aborts(&me, |member| {
            let (graphs, stream) = (member.api.graphs, member.streams[0]);
            let mut call = Case::of(Func::AllReduce, 100 + member.rank).prepare(member);
            let graph = graphs.capture(stream, mode(), || member.must_issue(&mut call));
            let exec = graphs.instantiate(graph);
            graphs.destroy(graph);
            graphs.launch(exec, stream);
            assert!(member.wait_for(LIMIT), "rank {}: the stream has not ended", member.rank);
            let (state, text) = (failed_state(member), member.api.nccl.last_error());
            // Who hears of it from the peer knows that the peer has left.
            assert!([INVALID_USAGE, REMOTE_ERROR].contains(&state), "rank {}: {state}, {text}", member.rank);
            assert!(text.contains("a captured collective"), "rank {}: {text}", member.rank);
            graphs.destroy_exec(exec);
        });
    }
    Setup::plain(2).job("mismatch::replays_that_do_not_match").allow_any_warning().run().assert_ok();
}

/// What is the same in other words: Bcast and Broadcast, with and without a configuration, operators with handles
/// of their own, buffers in place on some ranks only, another type for the same bytes where nothing is reduced.
#[test]
fn other_words_match() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let mut own = seeded_rng("own");
            let odd = member.rank % 2 == 1;
            let forms = [Form::Plain, Form::NullConfig, Form::Config];
            let mut items = Vec::new();
            for (at, func) in built::FUNCS.iter().enumerate() {
                let func = if *func == Func::Bcast && odd { Func::Broadcast } else { *func };
                let form = forms[(member.rank + at) % 3];
                let in_place = func == Func::Bcast || func.has_in_place() && odd;
                let as_bytes = odd && !func.reduces();
                items.push(Item::Collective(Case { form, in_place, as_bytes, phase: at, ..Case::of(func, 300 + at) }));
                if built::PRE_MUL_SUM && func.reduces() {
                    let kind = (func, DataType::Float32, Some(Operator::PreMulSum { device: odd }));
                    items.push(Item::Collective(Case { phase: at, ..Case::plain(kind, 90) }));
                }
            }
            for submission in [Submission::Queued, Submission::Group] {
                member.run(&items, submission, &mut own);
            }
        });
    }
    for n in [2, 3, 4] {
        Setup::plain(n).run("mismatch::other_words_match");
    }
}
