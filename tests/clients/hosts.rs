//! PyTorch on two hosts, which have nothing in common but a network: a torchrun on each, with two ranks.

use crate::common::hosts::Hosts;
use crate::{LEGACY, Run, Torch, collectives, interpreters, judge, libraries, need, training};

/// Hosts, and ranks of each.
const NODES: [&str; 2] = ["2", "2"];

/// How the torchruns find each other.
#[derive(Clone, Copy)]
enum Meeting {
    /// All are told the first one's address.
    Address,
    /// By a store that one of them opens.
    Store,
}

impl Meeting {
    fn options(self, host: usize) -> Vec<String> {
        let number = host.to_string();
        let options: &[&str] = match self {
            Meeting::Address => &["--node-rank", &number, "--master-addr", "h1", "--master-port", "29500"],
            Meeting::Store => &["--rdzv-backend", "c10d", "--rdzv-endpoint", "h1:29400", "--rdzv-id", "7"],
        };
        options.iter().map(|word| word.to_string()).collect()
    }
}

/// Runs a script by torchruns on two hosts.
fn run(run: &Run, meeting: Meeting) {
    let Some(home) = run.torch.home() else { return };
    let Some(hosts) = Hosts::new(2) else { return };
    let [nodes, each] = NODES;
    let mut job = interpreters(&home, 2).env("LD_LIBRARY_PATH", libraries(&home)).env("GLOO_SOCKET_IFNAME", "eth0");
    job = job.args(["-m", "torch.distributed.run", "--nnodes", nodes, "--nproc-per-node", each]);
    for host in 0..2 {
        job = job.args_of(host, meeting.options(host));
    }
    let job = job.args([&run.script]).args(&run.args).with(&run.env);
    let outcome = hosts.place_named(job, &[0, 1]).run();
    hosts.assert_empty();
    judge(&outcome, run.least);
}

#[test]
fn torch_collectives_on_two_hosts() {
    let ours = collectives(4).args(&["--quick"]);
    run(&ours, Meeting::Address);
    if need::long() {
        run(&collectives(4).env(&[LEGACY]).args(&["--device-id"]), Meeting::Store);
        run(&ours.of(Torch::Cuda12), Meeting::Address);
    }
}

/// DistributedDataParallel, FullyShardedDataParallel, layers that are cut up.
#[test]
fn torch_training_on_two_hosts() {
    run(&training(4).args(&["--device-id", "--quick"]), Meeting::Store);
    if need::long() {
        run(&training(4).env(&[LEGACY]), Meeting::Address);
    }
}
