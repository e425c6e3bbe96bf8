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
