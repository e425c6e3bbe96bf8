//! Which ranks write to each other's devices: what processes see of the machine, and what lies between devices.

use crate::bind::Api;
use crate::common::launch::{self, Job, Outcome, Place};
use crate::common::oracle::{DataType, RedOp};
use crate::data::{Case, Member};

/// Where a process sees one device only, that is its own.
fn body(me: &Place) {
    let api = Api::load();
    let seen = api.cuda.device_count().expect("devices");
    api.cuda.use_device(me.rank % seen).expect("a device");
    let member = Member::new(&api, api.init(me.nranks, api.meet(me, "id"), me.rank), me.rank, me.nranks);
    let cases = [(DataType::Float32, 1000), (DataType::Uint8, 1), (DataType::Float64, 100_003)];
    member.run(&cases.map(|(data, count)| Case::plain(data, RedOp::Sum, count)));
    member.end();
}

fn logged(name: &str, n: usize) -> Job {
    Job::this_test(name, n).env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "INIT,P2P,SHM")
}

/// The same where each process sees its own device only, as under Slurm and Ray.
fn each_sees_its_own(job: Job, n: usize) -> Job {
    (0..n).fold(job, |job, rank| job.env_of(rank, "CUDA_VISIBLE_DEVICES", rank.to_string()))
}

/// By which transports a rank has links, as it says: "1 by P2P/IPC, 1 by SHM/direct".
fn links(outcome: &Outcome, rank: usize) -> String {
    let said = &outcome.ranks[rank].stdout;
    let line = said.lines().find_map(|line| line.split_once(" has links with ")).unwrap_or_else(|| panic!("{outcome}"));
    let (_, list) = line.1.split_once('(').unwrap_or_else(|| panic!("{outcome}"));
    list.trim_end_matches(')').to_string()
}

#[test]
fn devices_that_the_other_processes_do_not_see() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let outcome = each_sees_its_own(logged("peer_access::devices_that_the_other_processes_do_not_see", 3), 3).run();
    outcome.assert_ok();
    assert_eq!([0, 1, 2].map(|rank| links(&outcome, rank)), ["2 by P2P/IPC"; 3]);
}

/// The pair that cannot use peer memory takes host memory, the others do not.
#[test]
fn two_devices_without_access() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let job = || logged("peer_access::two_devices_without_access", 3).env("SOFTCUDA_LINKS", "1-2:none");
    // The driver says so; where each process sees its own device only, mapping fails.
    for (outcome, told) in [(job().run(), false), (each_sees_its_own(job(), 3).run(), true)] {
        outcome.assert_ok();
        let mixed = "1 by P2P/IPC, 1 by SHM/direct";
        assert_eq!([0, 1, 2].map(|rank| links(&outcome, rank)), ["2 by P2P/IPC", mixed, mixed]);
        let line = "P2P does not work between rank 1 (device ";
        assert_eq!([0, 1, 2].map(|rank| outcome.ranks[rank].stdout.contains(line)), [false, told, false], "{outcome}");
    }
}

/// Runs with links between devices that do not do what the driver says; the lower rank of such a pair warns, once.
fn lying(name: &str, links: &str, words: &str) -> Outcome {
    let job = logged(name, 3).env("SOFTCUDA_LINKS", links).allow_warning("P2P does not work between rank ");
    let outcome = job.run();
    outcome.assert_ok();
    let of = |rank: usize| {
        let said = outcome.ranks[rank].stdout.lines();
        said.filter(|line| line.contains("WARN") && line.contains(words) && line.contains("ACS")).count()
    };
    assert_eq!([0, 1, 2].map(of), [1, 0, 0], "{outcome}");
    outcome
}

#[test]
fn a_device_whose_writes_are_lost() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let words = "rank 0 (device 0, busId 10000) and rank 2 (device 2, busId 12000): what one writes does not arrive at";
    let outcome = lying("peer_access::a_device_whose_writes_are_lost", "0-2:lost", words);
    let mixed = "1 by P2P/IPC, 1 by SHM/direct";
    assert_eq!([0, 1, 2].map(|rank| links(&outcome, rank)), [mixed, "2 by P2P/IPC", mixed]);
}

#[test]
fn a_device_whose_writes_are_lost_for_all() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let words = "rank 1 (device 1, busId 11000), rank 2 (device 2, busId 12000): what one writes does not arrive at";
    let outcome = lying("peer_access::a_device_whose_writes_are_lost_for_all", "0-*:lost", words);
    let mixed = "1 by P2P/IPC, 1 by SHM/direct";
    assert_eq!([0, 1, 2].map(|rank| links(&outcome, rank)), ["2 by SHM/direct", mixed, mixed]);
}

/// Copies that take longer than anybody waits.
#[test]
fn a_device_that_does_not_answer() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let words = "rank 0 (device 0, busId 10000) and rank 1 (device 1, busId 11000): copies do not end within 5 s";
    let outcome = lying("peer_access::a_device_that_does_not_answer", "0-1:stall@9000ms", words);
    let mixed = "1 by P2P/IPC, 1 by SHM/direct";
    assert_eq!([0, 1, 2].map(|rank| links(&outcome, rank)), [mixed, mixed, "2 by P2P/IPC"]);
}
