//! Programs that fail at their first call, linked as users link them: whatever is wrong, one line says what, in the log
//! and, where no log was asked for, on stderr; `ncclGetLastError` has the same text.

use std::fs;
use std::path::Path;

use crate::common;
use crate::common::abi::{INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, TIMEOUT, UNHANDLED_CUDA_ERROR};
use crate::common::c_program::{Folder, Program};
use crate::common::launch::{Job, Outcome};
use crate::{build_library, build_with_ours};

struct Client {
    program: Program,
}

impl Client {
    fn new() -> Option<Client> {
        Some(Client { program: build_with_ours("cc", "first_failure.c")? })
    }

    fn job(&self, mode: &[&str]) -> Job {
        Job::program(self.program.path(), 1).args(mode).allow_any_warning()
    }

    /// The program fails with this code and a text that has all these parts, and says so in one line: of the log where
    /// warnings are shown, of stderr where nothing was asked for.
    fn fails(&self, mode: &[&str], settings: &[(&str, &str)], code: i32, parts: &[&str]) {
        let with = |debug| {
            settings.iter().fold(self.job(mode).env("NCCL_DEBUG", debug), |job, (name, value)| job.env(name, value))
        };
        let (logged, quiet) = (with("WARN").run(), with("").run());
        let text = told(&logged, code);
        for part in parts {
            assert!(text.contains(part), "`{part}` is missing\n{logged}");
        }
        assert!(one_warning(&logged.ranks[0].stdout, &text), "{logged}");
        // Of a wrong argument of a later call ncclGetLastError tells; stderr hears of communicators that are not made.
        let creation = !["handle", "null", "destroyed"].contains(&mode[0]);
        // (Not compared with the first run's: an address or a process id may be in it.)
        let text = told(&quiet, code);
        assert!(!creation || one_warning(&quiet.ranks[0].stderr, &text), "{quiet}");
        assert_eq!(quiet.ranks[0].stdout.lines().count(), 1, "{quiet}");
    }
}

/// Whether there is one warning in what was printed, and it ends with this text.
fn one_warning(printed: &str, text: &str) -> bool {
    let warnings: Vec<&str> = printed.lines().filter(|line| line.contains("NCCL WARN")).collect();
    warnings.len() == 1 && warnings[0].ends_with(text)
}

/// The text of the program's answer, which must be the expected code.
fn told(outcome: &Outcome, code: i32) -> String {
    let begin = format!("code {code}: ");
    let line = outcome.ranks[0].stdout.lines().find_map(|line| line.strip_prefix(&begin));
    assert_eq!(outcome.ranks[0].status.code(), Some(1), "{outcome}");
    line.unwrap_or_else(|| panic!("no `{begin}`\n{outcome}")).to_string()
}

/// A folder of libraries to go before all others, and what else the program needs.
fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), common::profile_dir().display())
}

#[test]
fn no_driver() {
    let Some(client) = Client::new() else { return };
    let without = common::profile_dir().display().to_string();
    client.fails(
        &["make"],
        &[("LD_LIBRARY_PATH", &without)],
        UNHANDLED_CUDA_ERROR,
        &["no CUDA driver", "libcuda.so.1"],
    );
    client.fails(&["make"], &[("SOFTCUDA_DEVICES", "0")], UNHANDLED_CUDA_ERROR, &["device"]);
    client.fails(&["make"], &[("CUDA_VISIBLE_DEVICES", "")], UNHANDLED_CUDA_ERROR, &["device"]);
}

#[test]
fn a_driver_that_is_too_old() {
    let Some(client) = Client::new() else { return };
    let folder = Folder::new("old-driver");
    let driver = folder.join("libcuda.so.1");
    let Some(()) = build_library("old_driver.c", &driver, &["-Wl,-soname,libcuda.so.1"]) else { return };
    let path = path_with(folder.path());
    let parts = ["lacks cuDriverGetVersion", "too old", &driver.display().to_string()];
    client.fails(&["make"], &[("LD_LIBRARY_PATH", &path)], UNHANDLED_CUDA_ERROR, &parts);
    // One that says how old it is, and one that is old enough.
    for (version, parts) in [
        ("11080", ["is too old", "CUDA 11.8", "CUDA 12.0, release 525 or newer"]),
        ("12000", ["lacks cu", "placeholder", "CUDA 12.0"]),
    ] {
        let flags = ["-Wl,-soname,libcuda.so.1", &format!("-DVERSION={version}")];
        let Some(()) = build_library("old_driver.c", &driver, &flags) else { return };
        client.fails(&["make"], &[("LD_LIBRARY_PATH", &path)], UNHANDLED_CUDA_ERROR, &parts);
    }
    // A file that is no library at all.
    fs::write(&driver, "nothing").expect("the file can be written");
    client.fails(&["make"], &[("LD_LIBRARY_PATH", &path)], UNHANDLED_CUDA_ERROR, &["libcuda.so.1", "file too short"]);
}

/// Whatever the driver has against the kernels, and whenever it says so, others are looked for; none are there.
#[test]
fn kernels_that_the_driver_refuses() {
    let Some(client) = Client::new() else { return };
    for (fault, call) in [
        ("softcudaModuleLoadImage:1:209", "softcudaModuleLoadImage"),
        ("cuModuleGetFunction:1:500", "cuModuleGetFunction"),
        ("cuFuncLoad:3:218", "cuFuncLoad"),
    ] {
        let parts = ["compute capability 9.0", "host image: ", call, "none could be made"];
        client.fails(&["make"], &[("SOFTCUDA_FAULT", fault)], UNHANDLED_CUDA_ERROR, &parts);
    }
    // Others would need as much memory.
    let fault = [("SOFTCUDA_FAULT", "cuFuncLoad:1:2")];
    client.fails(&["make"], &fault, UNHANDLED_CUDA_ERROR, &["cuFuncLoad", "out of memory"]);
}

#[test]
fn addresses_and_interfaces_that_cannot_be() {
    let Some(client) = Client::new() else { return };
    let address = |value, parts: &[&str]| client.fails(&["make"], &[("NCCL_COMM_ID", value)], INVALID_ARGUMENT, parts);
    address("somewhere", &["NCCL_COMM_ID='somewhere'", "port", "<host>:<port>"]);
    address("127.0.0.1:99999", &["NCCL_COMM_ID='127.0.0.1:99999'", "65535"]);
    address("no-such-host.invalid:1234", &["NCCL_COMM_ID", "no-such-host.invalid"]);
    let interface =
        |value, parts: &[&str]| client.fails(&["make"], &[("NCCL_SOCKET_IFNAME", value)], INVALID_USAGE, parts);
    interface("nosuch", &["NCCL_SOCKET_IFNAME='nosuch'", "available: "]);
    interface("127.0.0.1", &["NCCL_SOCKET_IFNAME='127.0.0.1'", "takes interface names"]);
}

#[test]
fn words_that_are_not_known() {
    let Some(client) = Client::new() else { return };
    client.fails(
        &["make"],
        &[("NCCL_ALGO", "rings")],
        INVALID_USAGE,
        &["NCCL_ALGO=rings", "\"rings\" is not known", "ring, "],
    );
    client.fails(
        &["make"],
        &[("NCCL_PROTO", "fast")],
        INVALID_USAGE,
        &["NCCL_PROTO=fast", "\"fast\" is not known", "Simple"],
    );
    client.fails(
        &["make"],
        &[("NCCL_ALGO", "broadcasts:ring")],
        INVALID_USAGE,
        &["NCCL_ALGO", "\"broadcasts\" is no function"],
    );
}

#[test]
fn all_devices_of_a_process() {
    let Some(client) = Client::new() else { return };
    client.fails(&["all", "99"], &[], INVALID_ARGUMENT, &["Invalid device", "99"]);
    client.fails(&["all", "0"], &[], INVALID_USAGE, &["device 0", "NCCL_MULTI_RANK_GPU_ENABLE"]);
    client.fails(&["all"], &[("CUDA_VISIBLE_DEVICES", "")], UNHANDLED_CUDA_ERROR, &["device"]);
}

#[test]
fn structures_and_handles_that_are_none() {
    let Some(client) = Client::new() else { return };
    client.fails(&["magic"], &[], INVALID_ARGUMENT, &["ncclConfig_t", "INITIALIZER"]);
    client.fails(&["garbage"], &[], INVALID_ARGUMENT, &["ncclConfig_t", "INITIALIZER"]);
    client.fails(&["null"], &[], INVALID_ARGUMENT, &["comm", "NULL"]);
    client.fails(&["handle"], &[], INVALID_ARGUMENT, &["comm"]);
    client.fails(&["destroyed"], &[], INVALID_ARGUMENT, &["comm", "destroyed"]);
}

#[test]
fn ranks_that_do_not_come() {
    let Some(client) = Client::new() else { return };
    let limit = ("OXCCL_BOOTSTRAP_TIMEOUT", "1");
    client.fails(&["wait"], &[limit], TIMEOUT, &["rank 1", "1 of 2"]);
    let maker = client.job(&["id"]).run();
    maker.assert_ok();
    let id = maker.ranks[0].stdout.lines().last().expect("an id").to_string();
    client.fails(&["join", &id], &[limit], REMOTE_ERROR, &["root", "has ended"]);
    client.fails(&["join", &"0".repeat(256)], &[limit], INVALID_ARGUMENT, &["ncclUniqueId"]);
}
