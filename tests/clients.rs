//! Programs that people have, run as they are over this library and the software device: PyTorch, CuPy, nccl4py, and
//! vLLM's binding.
//!
//! The scripts are in `tests/clients/`; a person can run each alone (its first lines say how). Their last line is
//! `N passed, N failed`. What differs from test to test is the environment: PyTorch's old and new backend, when it
//! connects, how strict the device is.

mod common;

#[path = "clients/hosts.rs"]
mod hosts;

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::launch::{Job, Outcome, STRICT};
use common::need;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

/// A script ends itself, with the stacks of its threads, when it takes longer than this.
const SCRIPT_DEADLINE: Duration = Duration::from_secs(240);
/// What a script may need beyond [`SCRIPT_DEADLINE`]: PyTorch starts, and torchrun ends its ranks.
const SLACK: Duration = Duration::from_secs(60);

/// The backend that PyTorch had before 2.15.
const LEGACY: (&str, &str) = ("TORCH_DIST_USE_NCCL2", "0");
/// How many runs besides the collectives the strictest device gets in the short form.
const STRICT_SAMPLE: usize = 4;

/// Which PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Torch {
    /// The newest, for CUDA 13.
    Newest,
    /// The last one that is tested for CUDA 12.
    Cuda12,
}

impl Torch {
    /// Where it is installed, or a skip.
    fn home(self) -> Option<PathBuf> {
        match self {
            Torch::Newest => {
                need::path_in("OXCCL_TORCH_HOME", "scripts/install-torch-cpu.sh DIR installs PyTorch and prints it")
            }
            Torch::Cuda12 => need::path_in(
                "OXCCL_TORCH12_HOME",
                "scripts/install-torch-cpu.sh DIR 2.8.0 installs PyTorch and prints it",
            ),
        }
    }
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

/// The Python of a folder that a script in `scripts/` filled, its helpers bounded; arguments follow.
fn interpreter(home: &Path) -> Job {
    interpreters(home, 1)
}

/// Several of it.
fn interpreters(home: &Path, processes: usize) -> Job {
    Job::program(home.join("bin/python"), processes)
        .env("SOFTCUDA_DEVICES", "4")
        .env("OMP_NUM_THREADS", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("CLIENT_DEADLINE_S", SCRIPT_DEADLINE.as_secs().to_string())
        .deadline(SCRIPT_DEADLINE + SLACK)
}

/// Fails unless the last line of what the script printed says that nothing failed, and at least `least` checks passed.
fn judge(outcome: &Outcome, least: usize) {
    // Of several processes, one prints it.
    let mut lasts = outcome.ranks.iter().filter_map(|rank| rank.stdout.lines().last());
    let last = lasts.find(|line| counts(line).is_some()).unwrap_or_default();
    let (passed, failed) =
        counts(last).unwrap_or_else(|| panic!("its last line is not `N passed, N failed`\n{outcome}"));
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

/// A run of a script of PyTorch's.
#[derive(Clone, Debug)]
struct Run {
    torch: Torch,
    script: PathBuf,
    /// Ranks under `torchrun`; 0: the script by itself.
    ranks: usize,
    env: Vec<(&'static str, &'static str)>,
    args: Vec<String>,
    /// Checks that must pass.
    least: usize,
    /// What goes wrong on purpose has something to say.
    warns: bool,
}

impl Run {
    fn new(name: &str, ranks: usize, least: usize) -> Run {
        let script = script(name);
        Run { torch: Torch::Newest, script, ranks, env: Vec::new(), args: Vec::new(), least, warns: false }
    }

    fn of(mut self, torch: Torch) -> Run {
        self.torch = torch;
        self
    }

    fn env(mut self, env: &[(&'static str, &'static str)]) -> Run {
        self.env.extend(env);
        self
    }

    fn args(mut self, args: &[&str]) -> Run {
        self.args.extend(args.iter().map(|arg| arg.to_string()));
        self
    }

    fn warns(mut self) -> Run {
        self.warns = true;
        self
    }

    fn run(&self) {
        let Some(home) = self.torch.home() else { return };
        let mut job = interpreter(&home).env("LD_LIBRARY_PATH", libraries(&home));
        if self.ranks > 0 {
            job =
                job.args(["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", &self.ranks.to_string()]);
        }
        job = job.args([&self.script]).args(&self.args).with(&self.env);
        eprintln!("{self:?}");
        judge(&if self.warns { job.allow_any_warning() } else { job }.run(), self.least);
    }
}

fn collectives(ranks: usize) -> Run {
    Run::new("torch_collectives.py", ranks, 150 * ranks)
}

fn training(ranks: usize) -> Run {
    Run::new("torch_train.py", ranks, 17 * ranks)
}

fn graphs() -> Run {
    Run::new("torch_graphs.py", 2, 100)
}

fn shrink() -> Run {
    // An aborted call has something to say.
    Run::new("torch_shrink.py", 3, 11).args(&["--device-id"]).warns()
}

fn timeouts(cases: &[&str], least: usize) -> Run {
    // A rank that is aborted or killed has something to say.
    Run::new("torch_timeout.py", 0, least).args(cases).warns()
}

fn errors() -> Run {
    Run::new("torch_errors.py", 0, 27).warns()
}

fn single() -> Run {
    Run::new("torch_single.py", 0, 30)
}

fn maps() -> Run {
    let profile = common::profile_dir();
    let folders = [profile.clone(), profile.join("softcuda")].map(|folder| folder.display().to_string());
    Run::new("torch_maps.py", 0, 11).args(&folders.each_ref().map(String::as_str))
}

fn cpu_operators() -> Run {
    let script = common::root().join("softcuda/python/test_softcuda_torch.py");
    Run { script, ..Run::new("", 0, 20) }
}

fn collectives_by_two() -> Vec<Run> {
    vec![collectives(2)]
}

fn collectives_by_four() -> Vec<Run> {
    vec![collectives(4).args(&["--device-id", "--quick"])]
}

fn collectives_legacy() -> Vec<Run> {
    let nonblocking =
        [LEGACY, ("TORCH_NCCL_USE_COMM_NONBLOCKING", "1"), ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "1")];
    let by_two = collectives(2).env(&nonblocking).args(&["--device-id", "--quick"]);
    vec![collectives(4).env(&[LEGACY]).args(&["--quick"]), by_two]
}

fn graph_runs() -> Vec<Run> {
    vec![graphs(), graphs().env(&[LEGACY]).args(&["--device-id"])]
}

fn shrinks() -> Vec<Run> {
    vec![shrink().args(&["--abort"]), shrink().env(&[LEGACY])]
}

fn training_runs() -> Vec<Run> {
    vec![training(2), training(4).env(&[LEGACY]).args(&["--device-id", "--quick"])]
}

/// The core with PyTorch for CUDA 12.
fn cuda12() -> Vec<Run> {
    vec![
        collectives(2).of(Torch::Cuda12),
        collectives(2).args(&["--device-id", "--quick"]).of(Torch::Cuda12),
        maps().of(Torch::Cuda12),
    ]
}

fn cuda12_timeouts() -> Vec<Run> {
    vec![timeouts(&["timeout", "timeout_old_blocking", "abort", "death"], 12).of(Torch::Cuda12)]
}

/// What is not of the core.
fn cuda12_more() -> Vec<Run> {
    [graphs(), single(), training(2).args(&["--quick"])].map(|run| run.of(Torch::Cuda12)).into()
}

fn run_all(runs: Vec<Run>) {
    runs.iter().for_each(Run::run);
}

#[test]
fn torch_collectives_by_two_ranks() {
    run_all(collectives_by_two());
}

#[test]
fn torch_collectives_by_four_ranks() {
    run_all(collectives_by_four());
}

#[test]
fn torch_collectives_legacy() {
    run_all(collectives_legacy());
}

#[test]
fn torch_graphs() {
    run_all(graph_runs());
}

#[test]
fn torch_shrinks() {
    run_all(shrinks());
}

#[test]
fn torch_timeouts() {
    timeouts(&[], 21).run();
}

#[test]
fn torch_shows_what_went_wrong() {
    errors().run();
}

#[test]
fn torch_in_one_process() {
    single().run();
}

#[test]
fn torch_has_our_libraries_loaded() {
    maps().run();
}

#[test]
fn torch_training() {
    run_all(training_runs());
}

#[test]
fn cpu_operators_for_torch() {
    cpu_operators().run();
}

#[test]
fn torch_for_cuda_12() {
    run_all(cuda12());
}

#[test]
fn torch_for_cuda_12_times_out() {
    run_all(cuda12_timeouts());
}

#[test]
fn torch_for_cuda_12_has_more() {
    run_all(cuda12_more());
}

/// The strictest device: the collectives, and a seeded sample of all other runs in a quick form; all of them as they
/// are in the long form. `OXCCL_SEED` picks another sample.
#[test]
fn torch_on_a_strict_device() {
    let mut rest = [
        collectives_by_four(),
        collectives_legacy(),
        graph_runs(),
        shrinks(),
        training_runs(),
        cuda12(),
        cuda12_timeouts(),
    ]
    .concat();
    rest.extend([cuda12_more(), vec![timeouts(&[], 21), errors(), single(), maps(), cpu_operators()]].concat());
    let runs = if need::long() {
        [collectives_by_two(), rest].concat()
    } else {
        let seed = env::var("OXCCL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1u64);
        eprintln!("a sample with seed {seed}");
        let mut random = SmallRng::seed_from_u64(seed);
        rest.shuffle(&mut random);
        rest.truncate(STRICT_SAMPLE);
        let quick = |run: Run| if run.ranks > 0 { run.args(&["--quick"]) } else { run };
        [collectives_by_two(), rest].concat().into_iter().map(quick).collect()
    };
    run_all(runs.into_iter().map(|run| run.env(&STRICT)).collect());
}

/// PyTorch as `pip install torch` leaves it, or a skip; arguments follow. Its libraries' RPATH leads to NVIDIA's NCCL
/// and CUDA runtime, but for these files of the build.
fn stock(preload: &[&str]) -> Option<Job> {
    let how = "scripts/install-torch-stock.sh DIR $OXCCL_TORCH_HOME makes it and prints it";
    let home = need::path_in("OXCCL_TORCH_STOCK", how)?;
    let files: Vec<_> = preload.iter().map(|file| common::profile_dir().join(file).display().to_string()).collect();
    Some(interpreter(&home).env("LD_LIBRARY_PATH", home.join("stubs")).env("LD_PRELOAD", files.join(":")))
}

/// `LD_PRELOAD` wins against the RPATH.
#[test]
fn torch_with_preloaded_libraries() {
    let job = || stock(&["libnccl.so.2", "softcuda/libcudart.so.13", "softcuda/libcuda.so.1"]);
    let (Some(maps), Some(collectives)) = (job(), job()) else { return };
    let profile = common::profile_dir();
    judge(
        &maps.args([script("torch_maps.py")]).args(["--beside"]).args([&profile, &profile.join("softcuda")]).run(),
        11,
    );
    let torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"];
    judge(&collectives.args(torchrun).args([script("torch_collectives.py")]).args(["--quick"]).run(), 300);
}

/// Who forgets this library gets NVIDIA's, which cannot run on the software device; the device says so.
#[test]
fn torch_with_the_software_device_and_nvidias_nccl() {
    let Some(job) = stock(&["softcuda/libcudart.so.13", "softcuda/libcuda.so.1"]) else { return };
    let outcome = job.args([script("torch_maps.py")]).allow_any_warning().run();
    let rank = &outcome.ranks[0];
    // NVIDIA's library may write its warnings after it.
    assert_eq!(rank.stdout.lines().rev().find_map(counts), Some((0, 1)), "{outcome}");
    assert!(rank.stderr.contains("like NVIDIA's libnccl.so.2; put softcuda's"), "{outcome}");
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
