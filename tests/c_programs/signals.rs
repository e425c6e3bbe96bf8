//! What the library does to a C program's signals and standard streams: nothing.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use crate::common::launch::{self, Job, STRICT};
use crate::common::{self, need};
use crate::{assert_says, build_with_ours};

#[test]
fn no_thread_takes_a_signal() {
    let Some(program) = build_with_ours("cc", "signals.c") else { return };
    for variables in [&STRICT[..], &[]] {
        assert_says(&Job::program(program.path(), 1).args(["threads"]).with(variables).run(), "0 wrong");
    }
}

/// Not even at INFO, where lines are many: they must not end up in a socket or in shared memory.
#[test]
fn closed_standard_streams_stay_closed() {
    let Some(program) = build_with_ours("cc", "signals.c") else { return };
    for level in ["INFO", ""] {
        let job = Job::program(program.path(), 1).args(["streams"]).env("NCCL_DEBUG", level).allow_any_warning();
        // A file for the log has another number than stderr had.
        let log = program.folder().join(&format!("log-{level}"));
        let outcome = job.env("NCCL_DEBUG_FILE", if level.is_empty() { "".into() } else { log.clone() }).run();
        assert_says(&outcome, "0 wrong");
        let text = fs::read_to_string(&log).unwrap_or_default();
        assert_eq!(level == "INFO", text.contains("NCCL INFO") && text.contains("NCCL WARN"), "{text}");
    }
}

/// A pipe as stderr that nobody reads any more, in the middle of failures of all kinds.
#[test]
fn a_broken_stderr_ends_nobody() {
    let Some(program) = build_with_ours("cc", "survivors.c") else { return };
    for level in ["", "INFO"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let stdout = program.folder().join("stdout");
        let mut command = Command::new(need::tool("timeout").expect("timeout"));
        // The driver of one rank fails, so that softcuda has something to say, too.
        command.arg("60").arg(program.path()).args(["fault", "3", "cuMemCreate:1"]);
        command.env("LD_LIBRARY_PATH", common::library_path()).env("NCCL_DEBUG", level);
        command.env("NCCL_DEBUG_FILE", if level.is_empty() { "" } else { "/dev/stderr" });
        command.stdin(Stdio::null()).stdout(File::create(&stdout).expect("a file")).stderr(writer);
        assert!(command.status().expect("it starts").success());
        let text = fs::read_to_string(&stdout).expect("what it printed");
        for rank in 0..3 {
            assert!(text.contains(&format!("rank {rank} ended by exit 0")), "{text}");
            assert!(text.contains(&format!("rank {rank} create ")) && text.contains("out of memory"), "{text}");
        }
    }
}

/// A panic of the library, which must be a bug, is an error of a call and not the end of a program whose stderr is
/// broken.
#[test]
fn a_panic_and_a_broken_stderr() {
    if launch::child().is_some() {
        nccl::log::install();
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        drop(reader);
        // SAFETY: both are open; the number that is replaced is stderr's.
        assert_eq!(unsafe { libc::dup2(writer.as_raw_fd(), 2) }, 2);
        assert!(std::panic::catch_unwind(|| panic!("on purpose")).is_err());
        return;
    }
    Job::this_test("signals::a_panic_and_a_broken_stderr", 1).run().assert_ok();
}
