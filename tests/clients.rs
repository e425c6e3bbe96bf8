//! Programs that people have, run as they are over this library and the software device: PyTorch, CuPy, nccl4py, and
//! vLLM's binding.
//!
//! The scripts are in `tests/clients/`; a person can run each alone (its first lines say how). Their last line is
//! `N passed, N failed`. What differs from test to test is the environment: PyTorch's old and new backend, when it
//! connects, how strict the device is.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::launch::{Job, Outcome};
use common::need;

/// A script ends itself, with the stacks of its threads, when it takes longer than this.
const SCRIPT_DEADLINE: Duration = Duration::from_secs(240);
/// What a script may need beyond [`SCRIPT_DEADLINE`]: PyTorch starts, and torchrun ends its ranks.
const SLACK: Duration = Duration::from_secs(60);

/// The backend that PyTorch had before 2.15.
const LEGACY: (&str, &str) = ("TORCH_DIST_USE_NCCL2", "0");
/// The software device at its strictest: operations begin late, no store wakes who waits, allocations wait for work.
const STRICT: [(&str, &str); 3] = [("SOFTCUDA_DELAY_US", "100"), ("SOFTCUDA_NO_WAKE", "1"), ("SOFTCUDA_ALLOC_WAITS", "1")];

/// Where PyTorch is installed, or a skip.
fn torch() -> Option<PathBuf> {
    need::path_in("OXCCL_TORCH_HOME", "scripts/install-torch-cpu.sh DIR installs PyTorch and prints it")
}

/// `LD_LIBRARY_PATH` for PyTorch: placeholders, the software device, this library.
fn libraries(torch: &Path) -> std::ffi::OsString {
    let profile = common::profile_dir();
    common::join_library_path(&[torch.join("stubs"), profile.join("softcuda"), profile])
}

/// The file of a script of this folder.
fn script(name: &str) -> PathBuf {
    common::root().join("tests/clients").join(name)
}

/// PyTorch's Python with its libraries found and its helpers bounded; arguments follow.
fn python(torch: &Path) -> Job {
    interpreter(torch).env("LD_LIBRARY_PATH", libraries(torch))
}

/// The Python of a folder that a script in `scripts/` filled.
fn interpreter(home: &Path) -> Job {
    Job::program(home.join("bin/python"), 1)
        .env("SOFTCUDA_DEVICES", "4")
        .env("OMP_NUM_THREADS", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("CLIENT_DEADLINE_S", SCRIPT_DEADLINE.as_secs().to_string())
        .deadline(SCRIPT_DEADLINE + SLACK)
}

/// `torchrun` with a number of ranks; the script and its arguments follow.
fn torchrun(torch: &Path, ranks: usize, name: &str) -> Job {
    python(torch)
        .args(["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", &ranks.to_string()])
        .args([script(name)])
}

fn with(mut job: Job, env: &[(&str, &str)]) -> Job {
    for (name, value) in env {
        job = job.env(name, value);
    }
    job
}

/// Fails unless the last line of what the script printed says that nothing failed, and at least `least` checks passed.
fn judge(outcome: &Outcome, least: usize) {
    let stdout = &outcome.ranks[0].stdout;
    let last = stdout.lines().last().unwrap_or_default();
    let (passed, failed) = counts(last).unwrap_or_else(|| panic!("its last line is not `N passed, N failed`\n{outcome}"));
    outcome.assert_ok();
    assert!(failed == 0 && passed >= least, "{passed} checks passed, {failed} failed, {least} should pass\n{outcome}");
    eprintln!("{last} in {:.1} s", outcome.ranks[0].elapsed.as_secs_f64());
}

/// The numbers of `N passed, N failed`.
fn counts(line: &str) -> Option<(usize, usize)> {
    let (passed, failed) = line.split_once(", ")?;
    let number = |part: &str, word: &str| part.strip_suffix(word)?.trim().parse().ok();
    Some((number(passed, "passed")?, number(failed, "failed")?))
}

#[test]
fn last_lines_are_read() {
    assert_eq!(counts("12 passed, 3 failed"), Some((12, 3)));
    assert_eq!(counts("12 passed"), None);
    assert_eq!(counts("OK 12 passed, 3 failed"), None);
}

/// The environment of a test of `torch_collectives.py`, its ranks, and its arguments.
fn collectives(ranks: usize, env: &[(&str, &str)], args: &[&str]) {
    let Some(torch) = torch() else { return };
    let outcome = with(torchrun(&torch, ranks, "torch_collectives.py").args(args), env).run();
    judge(&outcome, 150 * ranks);
}

#[test]
fn torch_collectives_by_two_ranks() {
    collectives(2, &[], &[]);
}

#[test]
fn torch_collectives_by_four_ranks() {
    collectives(4, &[], &["--device-id", "--quick"]);
}

#[test]
fn torch_collectives_legacy() {
    collectives(4, &[LEGACY], &["--quick"]);
}

#[test]
fn torch_collectives_legacy_nonblocking() {
    let register = ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "1");
    collectives(2, &[LEGACY, ("TORCH_NCCL_USE_COMM_NONBLOCKING", "1"), register], &["--device-id", "--quick"]);
}

#[test]
fn torch_collectives_on_a_strict_device() {
    collectives(2, &STRICT, &["--quick"]);
    collectives(2, &[&STRICT[..], &[LEGACY]].concat(), &["--device-id", "--quick"]);
}

fn graphs(env: &[(&str, &str)], args: &[&str]) {
    let Some(torch) = torch() else { return };
    judge(&with(torchrun(&torch, 2, "torch_graphs.py").args(args), env).run(), 100);
}

#[test]
fn torch_graphs() {
    graphs(&[], &[]);
    graphs(&[LEGACY], &["--device-id"]);
}

#[test]
fn torch_graphs_on_a_strict_device() {
    graphs(&STRICT, &[]);
}

#[test]
fn torch_shrinks() {
    let Some(torch) = torch() else { return };
    for (env, args) in [(&[][..], &["--device-id", "--abort"][..]), (&[LEGACY][..], &["--device-id"][..])] {
        let job = with(torchrun(&torch, 3, "torch_shrink.py").args(args), env);
        // An aborted call has something to say.
        judge(&job.allow_any_warning().run(), 11);
    }
}

#[test]
fn torch_timeouts() {
    let Some(torch) = torch() else { return };
    // A rank that is aborted or killed has something to say.
    judge(&python(&torch).args([script("torch_timeout.py")]).allow_any_warning().run(), 21);
}

#[test]
fn torch_in_one_process() {
    let Some(torch) = torch() else { return };
    judge(&python(&torch).args([script("torch_single.py")]).run(), 30);
    judge(&with(python(&torch).args([script("torch_single.py")]), &STRICT).run(), 30);
}

#[test]
fn torch_has_our_libraries_loaded() {
    let Some(torch) = torch() else { return };
    let profile = common::profile_dir();
    judge(&python(&torch).args([script("torch_maps.py"), profile.clone(), profile.join("softcuda")]).run(), 8);
}

/// `LD_PRELOAD` wins over whatever the loader would find: here, empty libraries of the same names.
#[test]
fn torch_with_preloaded_libraries() {
    let (Some(torch), Some(cc)) = (torch(), need::tool("cc")) else { return };
    let decoys = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("clients-decoys-{}", std::process::id()));
    fs::create_dir_all(&decoys).expect("the target folder can be written");
    let profile = common::profile_dir();
    let ours = [profile.clone(), profile.join("softcuda")];
    let names = [(0, "libnccl.so.2"), (1, "libcudart.so.13"), (1, "libcuda.so.1")];
    for (_, name) in names {
        let mut link = Command::new(&cc);
        link.args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(decoys.join(name)).arg(format!("-Wl,-soname,{name}"));
        assert!(link.status().expect("cc starts").success(), "{link:?}");
    }
    let preload = names.map(|(folder, name)| ours[folder].join(name).display().to_string()).join(":");
    let job = interpreter(&torch)
        .env("LD_LIBRARY_PATH", std::env::join_paths([&decoys, &torch.join("stubs")]).expect("no colon in the paths"))
        .env("LD_PRELOAD", preload);
    let outcome = job.args([script("torch_maps.py")]).args(ours).run();
    let _ = fs::remove_dir_all(&decoys);
    judge(&outcome, 8);
}

fn training(ranks: usize, env: &[(&str, &str)], args: &[&str]) {
    let Some(torch) = torch() else { return };
    judge(&with(torchrun(&torch, ranks, "torch_train.py").args(args), env).run(), 17 * ranks);
}

#[test]
fn torch_training_by_two_ranks() {
    training(2, &[], &[]);
}

#[test]
fn torch_training_by_four_ranks() {
    training(4, &[LEGACY], &["--device-id", "--quick"]);
}

#[test]
fn torch_training_on_a_strict_device() {
    training(2, &STRICT, &["--quick"]);
}

#[test]
fn cpu_operators_for_torch() {
    let Some(torch) = torch() else { return };
    let tests = common::root().join("softcuda/python/test_softcuda_torch.py");
    judge(&python(&torch).args([tests]).run(), 20);
}

/// A client that needs no PyTorch, with the Python of `scripts/install-python-clients.sh`.
fn python_client(name: &str, least: usize, warning: Option<&str>) {
    let how = "scripts/install-python-clients.sh DIR installs CuPy and nccl4py and prints it";
    let Some(home) = need::path_in("OXCCL_PYTHON_CLIENTS", how) else { return };
    let job = interpreter(&home).args([script(name)]);
    judge(&warning.into_iter().fold(job, Job::allow_warning).run(), least);
}

#[test]
fn cupy() {
    python_client("cupy_nccl.py", 42, None);
}

#[test]
fn nccl4py() {
    python_client("nccl4py.py", 35, None);
}

#[test]
fn vllm() {
    python_client("ctypes_vllm.py", 36, Some("invalid type 99"));
}
