//! `NCCL_PROTO` from the environment to the kernels, by modes of `examples/perf`, which checks every value.

mod common;

use common::launch::{Job, Outcome};
use common::need;

/// perf's exit code where a rank failed.
const FAILED: i32 = 3;

/// Runs perf under `NCCL_PROTO`.
fn perf(proto: &str, arguments: &str) -> Option<Outcome> {
    let path = common::profile_dir().join("examples/perf");
    let path = need::need("examples/perf (cargo test builds it)", path.exists().then_some(path))?;
    let job = Job::program(path, 1).args(arguments.split_whitespace()).args(["--device", "soft"]);
    Some(
        job.env("NCCL_PROTO", proto)
            .env("NCCL_DEBUG", "INFO")
            .env("NCCL_DEBUG_SUBSYS", "TUNING")
            .allow_any_warning()
            .run(),
    )
}

fn printed(outcome: &Outcome) -> String {
    outcome.ranks[0].stdout.clone() + &outcome.ranks[0].stderr
}

#[test]
fn ll_is_used_where_it_is_chosen() {
    for (proto, carried) in [("LL", "/LL, "), ("simple;allreduce:^Simple", "/LL, "), ("^LL", "/Simple, ")] {
        let Some(outcome) = perf(proto, "all_reduce -n 4 -b 4 -e 1M -f 64 -i 3 -w 1") else { return };
        outcome.assert_ok();
        assert!(printed(&outcome).contains(carried), "{proto}: {outcome}");
    }
}

#[test]
fn ll_carries_every_type_and_operator() {
    for arguments in ["-n 3 -d all -o all -b 4K -e 4K -i 2 -w 1", "-n 2 -t -b 8 -e 4M -f 8 -i 3 -w 1"] {
        let Some(outcome) = perf("LL", &format!("all_reduce {arguments}")) else { return };
        outcome.assert_ok();
    }
}

#[test]
fn what_leaves_nothing_is_told_and_unknown_words_are_refused() {
    let Some(outcome) = perf("LL128", "all_reduce -n 2 -b 1K -e 1K -i 2 -w 1") else { return };
    outcome.assert_ok();
    assert!(
        printed(&outcome)
            .contains("NCCL_PROTO leaves only LL128, which the software device does not have; using Simple"),
        "{outcome}"
    );
    let Some(outcome) = perf("LL,fast", "all_reduce -n 2 -b 1K -e 1K -i 2 -w 1") else { return };
    assert_eq!(outcome.ranks[0].status.code(), Some(FAILED), "{outcome}");
    assert!(printed(&outcome).contains("\"fast\" is not known"), "{outcome}");
}
