//! Ranks that do not fit together, and ids that lead nowhere.

use crate::common::abi::{INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, TIMEOUT};
use crate::common::launch::{self, Job};
use crate::common::nccl::UniqueId;
use crate::library::Lib;
use crate::rank::{DEADLINE, ID, NRANKS, RANK, all_told, answers, from_hex, hex, ranks, with_id};

/// The root that an id names, as `address<port>` in messages.
fn forged(id: &UniqueId, change: impl FnOnce(&mut [u8; 128])) -> UniqueId {
    let mut bytes = id.0;
    change(&mut bytes);
    UniqueId(bytes)
}

#[test]
fn ranks_out_of_range() {
    if launch::child().is_none() {
        let job = Job::this_test("rendezvous::ranks_out_of_range", 1);
        return job.deadline(DEADLINE).allow_any_warning().run().assert_ok();
    }
    let lib = Lib::load();
    for (rank, nranks) in [(2, 2), (-1, 2), (0, 0), (0, -3), (i32::MAX, 2), (i32::MIN, i32::MIN), (1, 1), (7, 3)] {
        let (answer, comm) = lib.init(nranks, lib.id(), rank);
        answer.is(INVALID_ARGUMENT, &["Invalid rank requested", &format!("{rank}/{nranks}")]);
        assert_eq!(comm, 0);
    }
    for rank in [0, i32::MAX] {
        lib.init(i32::MAX, lib.id(), rank).0.is(INVALID_ARGUMENT, &[&i32::MAX.to_string()]);
    }
    let (answer, comm) = lib.init(i32::MAX, lib.id(), 0);
    answer.is(INVALID_ARGUMENT, &[&i32::MAX.to_string(), "ranks"]);
    assert_eq!(comm, 0);
}

/// The classic: ranks counted from 1. Whoever has a right number is told of the wrong one.
#[test]
fn one_rank_out_of_range_ends_the_creation_of_all() {
    for (wrong, right) in [("2", "1"), ("-1", "0"), ("7", "0")] {
        let told = answers(&ranks(2).env_of(0, RANK, right).env_of(1, RANK, wrong).run());
        told[0].is(INVALID_USAGE, &[&format!("rank {wrong} "), "out of range", "2 ranks"]);
        told[1].is(INVALID_ARGUMENT, &["Invalid rank requested", &format!("{wrong}/2")]);
    }
}

#[test]
fn one_rank_twice() {
    let job = ranks(3).env(NRANKS, "3").env_of(2, RANK, "1");
    all_told(job, INVALID_USAGE, &["rank 1"]);
}

#[test]
fn ranks_disagree_on_their_number() {
    let job = ranks(2).env_of(0, NRANKS, "2").env_of(1, NRANKS, "3");
    all_told(job, INVALID_USAGE, &["2", "3", "rank"]);
    // Also where the larger number makes it look as if somebody were missing.
    let job = ranks(3).env_of(0, NRANKS, "4").env_of(1, NRANKS, "4").env_of(2, NRANKS, "3");
    all_told(job, INVALID_USAGE, &["3", "4", "rank"]);
}

#[test]
fn an_id_is_for_one_communicator() {
    let id = Lib::load().id();
    all_told(with_id(2, &id), SUCCESS, &[]);
    all_told(with_id(2, &id), REMOTE_ERROR, &["root", "the id was used before"]);
}

#[test]
fn an_id_of_a_dead_process() {
    const NAME: &str = "rendezvous::an_id_of_a_dead_process";
    if launch::child().is_some() {
        return println!("ID {}", hex(&Lib::load().id()));
    }
    let maker = Job::this_test(NAME, 1).deadline(DEADLINE).run();
    maker.assert_ok();
    let id = maker.ranks[0].stdout.lines().find_map(|line| line.split_once("ID ")).expect("an id").1;
    all_told(with_id(2, &from_hex(id)), REMOTE_ERROR, &["root", "has ended"]);
}

#[test]
fn an_id_that_is_garbage() {
    let good = Lib::load().id();
    let cases = [
        (UniqueId([0; 128]), "not made by ncclGetUniqueId"),
        (UniqueId([0xff; 128]), "not made by ncclGetUniqueId"),
        (forged(&good, |id| id[100] = 1), "invalid ncclUniqueId"),
        (forged(&good, |id| id[8..12].fill(0)), "invalid ncclUniqueId"),
    ];
    let jobs: Vec<_> = cases.iter().map(|(id, why)| (with_id(2, id).start(), why)).collect();
    for (running, why) in jobs {
        answers(&running.wait()).iter().for_each(|answer| {
            answer.is(INVALID_ARGUMENT, &[why]);
        });
    }
    // Only the magic is damaged: for the root this is a rank of another run, for the rank a root that hangs up.
    let other = forged(&good, |id| id[0] ^= 1);
    let outcome = with_id(2, &other).run();
    answers(&outcome).iter().for_each(|answer| {
        answer.is(REMOTE_ERROR, &["root"]);
    });
}

#[test]
fn every_process_made_its_own_id() {
    let lib = Lib::load();
    let job = ranks(2).env_of(0, ID, hex(&lib.id())).env_of(1, ID, hex(&lib.id())).env("OXCCL_BOOTSTRAP_TIMEOUT", "1");
    let told = all_told(job, TIMEOUT, &["same ncclUniqueId"]);
    told[0].is(TIMEOUT, &["rank 1"]);
    told[1].is(TIMEOUT, &["rank 0"]);
}

#[test]
fn other_settings_are_a_warning_and_no_error() {
    let outcome = ranks(2).env_of(1, "NCCL_BUFFSIZE", "65536").run();
    answers(&outcome).iter().for_each(|answer| {
        answer.is(SUCCESS, &[]);
    });
}
