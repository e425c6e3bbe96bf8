//! What the library writes, and where: levels, layouts, NCCL_DEBUG_FILE, broken pipes.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::common;
use crate::tool::{self, Folder, Headers, stderr, stdout};

/// The line of a failing call, with numbers replaced by # and the host by H.
const WARN: &str =
    "\n[#-#-# #:#:#] H:#:# [#] abi/group.rs:# (ncclGroupEnd) NCCL WARN ncclGroupEnd: not in a group call.\n";
/// The same without timestamp.
const PLAIN: &str = "\nH:#:# [#] abi/group.rs:# (ncclGroupEnd) NCCL WARN ncclGroupEnd: not in a group call.\n";

/// say.c as a program; made once.
pub fn program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<(Folder, PathBuf)> = OnceLock::new();
    tool::compilers()?;
    let make = || {
        let folder = Folder::new();
        let program = folder.path("say");
        let flags = "-std=c11 -Wall -Wextra -pedantic -Werror -Wno-deprecated-declarations -pthread";
        tool::compile(
            "cc",
            flags,
            &Headers::Ours,
            "tests/abi/say.c",
            &program,
            &[&common::profile_dir().join("libnccl.so.2")],
        );
        (folder, program)
    };
    Some(PROGRAM.get_or_init(make).1.clone())
}

pub fn command(variables: &[(&str, &str)], args: &[&str]) -> Option<Command> {
    Some(tool::command(&program()?, &common::profile_dir(), variables, args))
}

/// Runs say.c; it must end well.
pub fn say(variables: &[(&str, &str)], args: &[&str]) -> Option<Output> {
    let output = tool::output(command(variables, args)?);
    assert!(output.status.success(), "{args:?} {variables:?}: {} {}", output.status, stderr(&output));
    Some(output)
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the host has a name");
    name.trim().split('.').next().unwrap_or("").replace(['%', '/'], "-")
}

/// Runs of digits become #, the host H.
pub fn normal(text: &str) -> String {
    let mut out = String::new();
    for c in text.replace(&format!("{}:", host()), "H:").chars() {
        match c.is_ascii_digit() {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(c),
        }
    }
    out
}

#[test]
fn levels_show_what_they_should() {
    for (level, expected) in [
        ("", ""),
        ("garbage", ""),
        ("VERSION", ""),
        ("WARN", WARN),
        ("warn", WARN),
        ("ATTN", WARN),
        ("INFO", WARN),
        ("ABORT", WARN),
        ("TRACE", WARN),
    ] {
        let Some(run) = say(&[("NCCL_DEBUG", level)], &["warn", "last"]) else { return };
        assert_eq!(normal(&stdout(&run)), expected, "NCCL_DEBUG={level}");
        assert_eq!(stderr(&run), "ncclGroupEnd: not in a group call.\n");
    }
    let Some(run) = say(&[("NCCL_DEBUG_LEVELS", "attn,Warn")], &["warn"]) else { return };
    assert_eq!(normal(&stdout(&run)), WARN);
}

#[test]
fn timestamps_follow_their_variables() {
    let format = "NCCL_DEBUG_TIMESTAMP_FORMAT";
    let levels = "NCCL_DEBUG_TIMESTAMP_LEVELS";
    for (name, value, expected) in [
        (levels, "INFO", PLAIN.to_string()),
        (levels, "NONE", PLAIN.to_string()),
        (levels, "nonsense", WARN.to_string()),
        (format, "", PLAIN.to_string()),
        (format, "at_%H%%_%3f ", PLAIN.replacen("\n", "\nat #% # ", 1)),
        (format, "%Q%H%", PLAIN.replacen("\n", "\n%Q#%", 1)),
        (format, &"x".repeat(300), PLAIN.to_string()),
    ] {
        let Some(run) = say(&[("NCCL_DEBUG", "WARN"), (name, value)], &["warn"]) else { return };
        assert_eq!(normal(&stdout(&run)), expected, "{name}={value}");
    }
}

#[test]
fn the_log_settings_are_read_again_after_a_reset() {
    let args = ["warn", "set", "NCCL_DEBUG=WARN", "warn", "reset", "warn"];
    let Some(run) = say(&[], &args) else { return };
    assert_eq!(normal(&stdout(&run)), WARN);
}

#[test]
fn subsystems_filter_info_and_a_warning_can_raise_the_level() {
    let line = "NCCL INFO NCCL_BUFFSIZE set by environment to #.\n";
    for (subsystems, shown) in
        [("ENV", true), ("", true), ("^env", false), ("NET", false), ("ALL", true), ("NET,^ENV", true)]
    {
        let variables = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", subsystems), ("NCCL_BUFFSIZE", "1048576")];
        let Some(run) = say(&variables, &["init"]) else { return };
        assert_eq!(normal(&stdout(&run)).contains(line), shown, "{subsystems}: {}", stdout(&run));
    }
    let variables = [("NCCL_DEBUG", "WARN"), ("NCCL_BUFFSIZE", "1048576"), ("NCCL_WARN_ENABLE_DEBUG_INFO", "1")];
    let Some(run) = say(&variables, &["warn", "init"]) else { return };
    assert!(normal(&stdout(&run)).contains(&format!("H:#:# [#] {line}")), "{}", stdout(&run));
}

#[test]
fn a_communicator_that_is_not_made_is_told_on_stderr() {
    for level in ["", "VERSION", "WARN"] {
        let Some(run) = say(&[("NCCL_DEBUG", level)], &["init"]) else { return };
        let line = stderr(&run);
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains("(ncclCommInitRank) NCCL WARN ") && line.contains("libcuda"), "{line}");
        assert_eq!(stdout(&run).is_empty(), level != "WARN");
    }
    // Not twice where both go to the same place.
    let Some(run) = say(&[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", "/dev/stderr")], &["init"]) else { return };
    assert_eq!(stderr(&run).matches("NCCL WARN").count(), 1, "{}", stderr(&run));
}

#[test]
fn the_log_goes_to_its_file() {
    let Some(_) = program() else { return };
    let folder = Folder::new();
    let pattern = folder.path("%h.%p.%%x%q.log").display().to_string();
    let Some(run) = say(&[("NCCL_DEBUG_FILE", &pattern), ("NCCL_DEBUG", "WARN")], &["warn"]) else { return };
    assert_eq!((stdout(&run), stderr(&run)), (String::new(), String::new()));
    let files: Vec<_> = std::fs::read_dir(folder.path("")).unwrap().map(|f| f.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(normal(&name.replacen('.', ":", 1)), "H:#.%x%q.log");
    assert_eq!(normal(&std::fs::read_to_string(file).unwrap()), WARN);
    // Only where more than version lines are wanted.
    let Some(_) =
        say(&[("NCCL_DEBUG", "VERSION"), ("NCCL_DEBUG_FILE", &folder.path("none").display().to_string())], &["warn"])
    else {
        return;
    };
    assert!(!folder.path("none").exists());
}

#[test]
fn a_log_file_that_cannot_be_opened_is_told_once_and_stdout_stays() {
    for path in ["/nowhere/at/all", "/proc/1/none", "/"] {
        let Some(run) = say(&[("NCCL_DEBUG_FILE", path), ("NCCL_DEBUG", "WARN")], &["warn", "warn"]) else { return };
        assert_eq!(normal(&stdout(&run)), WARN.repeat(2));
        assert_eq!(stderr(&run).lines().count(), 1, "{}", stderr(&run));
        assert!(stderr(&run).contains(path) && stderr(&run).contains("NCCL_DEBUG_FILE"), "{}", stderr(&run));
    }
}

#[test]
fn an_old_log_file_is_emptied_and_devices_are_used_as_they_are() {
    let Some(_) = program() else { return };
    let folder = Folder::new();
    let path = folder.write("log", "old\n");
    let Some(_) = say(&[("NCCL_DEBUG_FILE", &path), ("NCCL_DEBUG", "WARN")], &["warn"]) else { return };
    assert_eq!(normal(&std::fs::read_to_string(&path).unwrap()), WARN);
    for (device, on_stdout) in [("/dev/stdout", true), ("/dev/stderr", false), ("/dev/full", false)] {
        let Some(run) = say(&[("NCCL_DEBUG_FILE", device), ("NCCL_DEBUG", "WARN")], &["warn"]) else { return };
        assert_eq!(normal(&stdout(&run)), if on_stdout { WARN } else { "" });
        assert_eq!(normal(&stderr(&run)), if device == "/dev/stderr" { WARN } else { "" });
    }
}

#[test]
fn lines_of_many_processes_and_threads_in_one_file_are_whole() {
    let Some(_) = program() else { return };
    let folder = Folder::new();
    let path = folder.path("log").display().to_string();
    let variables = [("NCCL_DEBUG_FILE", path.as_str()), ("NCCL_DEBUG", "WARN")];
    // One that comes when no other is there empties the file.
    let start = || {
        let mut command = command(&variables, &["threads", "stay"]).expect("compilers");
        command.stdin(Stdio::piped()).spawn().expect("starts")
    };
    let children: Vec<_> = (0..16).map(|_| start()).collect();
    let lines_there = || std::fs::read_to_string(&path).is_ok_and(|text| text.matches("WARN").count() == 16 * 4 * 100);
    let until = Instant::now() + Duration::from_secs(60);
    while !lines_there() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    for mut child in children {
        drop(child.stdin.take());
        assert!(child.wait().expect("ends").success());
    }
    let text = normal(&std::fs::read_to_string(&path).unwrap());
    let lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
    let whole = WARN.trim();
    assert!(lines.iter().all(|line| *line == whole), "{:?}", lines.iter().find(|line| **line != whole));
    assert_eq!(lines.len(), 16 * 4 * 100, "no process empties a file that another one writes");
}

#[test]
fn a_fifo_without_a_reader_does_not_hang_and_with_one_is_used() {
    let Some(_) = program() else { return };
    let folder = Folder::new();
    let path = folder.path("fifo").display().to_string();
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    let variables = [("NCCL_DEBUG_FILE", path.as_str()), ("NCCL_DEBUG", "WARN")];
    let Some(run) = say(&variables, &["warn"]) else { return };
    assert_eq!(normal(&stdout(&run)), WARN);
    assert!(stderr(&run).contains(&path));
    let reader = Command::new("timeout").args(["20", "cat", &path]).stdout(Stdio::piped()).spawn().expect("cat");
    let run = say(&variables, &["warn"]).expect("compilers");
    assert_eq!((stdout(&run), stderr(&run)), (String::new(), String::new()));
    assert_eq!(normal(&stdout(&reader.wait_with_output().expect("cat ends"))), WARN);
}

#[test]
fn a_reader_that_goes_away_does_not_kill_the_program() {
    let variables = [("NCCL_DEBUG", "WARN")];
    let Some(mut broken) = command(&variables, &["many", "last"]) else { return };
    let mut child = broken.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    drop(child.stdout.take());
    let run = child.wait_with_output().expect("ends");
    assert_eq!(run.status.signal(), None);
    assert!(run.status.success() && stderr(&run).contains("not in a group call"), "{} {}", run.status, stderr(&run));
}

#[test]
fn a_fifo_whose_reader_goes_away_does_not_kill_the_program() {
    let Some(_) = program() else { return };
    let folder = Folder::new();
    let path = folder.path("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut reader = OpenOptions::new().read(true).custom_flags(nonblocking).open(&path).expect("a reader");
    let variables = [("NCCL_DEBUG_FILE", path.to_str().expect("a path")), ("NCCL_DEBUG", "WARN")];
    let mut command = command(&variables, &["warn", "stay", "many", "last"]).expect("compilers");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let until = Instant::now() + Duration::from_secs(60);
    // No bytes: nobody has opened it for writing. An error: nothing was written yet.
    while reader.read(&mut [0; 1]).unwrap_or(0) == 0 {
        assert!(Instant::now() < until, "no line comes");
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(reader);
    let run = child.wait_with_output().expect("ends");
    assert!(run.status.success(), "{} {}", run.status, stderr(&run));
    assert_eq!((stdout(&run).as_str(), stderr(&run).as_str()), ("", "ncclGroupEnd: not in a group call.\n"));
}

/// A failure that stderr is told of, the error of a log file that cannot be opened, and a dump.
#[test]
fn a_stderr_or_stdout_that_nobody_reads_does_not_kill_the_program() {
    for variables in [&[("NCCL_DEBUG", "")][..], &[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", "/nowhere/at/all")]] {
        let Some(mut broken) = command(variables, &["init", "init", "dump"]) else { return };
        let mut child = broken.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        drop((child.stdout.take(), child.stderr.take()));
        let status = child.wait().expect("ends");
        assert!(status.success(), "{variables:?}: {status}");
    }
}

#[test]
fn a_closed_stdout_does_not_matter() {
    let Some(program) = program() else { return };
    let mut shell = tool::command(&PathBuf::from("sh"), &common::profile_dir(), &[("NCCL_DEBUG", "WARN")], &[]);
    shell.arg("-c").arg(format!("exec {} many last >&-", program.display()));
    let run = tool::output(shell);
    assert!(run.status.success(), "{} {}", run.status, stderr(&run));
    assert_eq!(stderr(&run), "ncclGroupEnd: not in a group call.\n");
}

#[test]
fn a_forked_child_logs_under_its_own_number() {
    let Some(run) = say(&[("NCCL_DEBUG", "WARN")], &["warn", "fork"]) else { return };
    let text = stdout(&run);
    let pid = |line: &str| line.split(':').nth(3).map(str::to_string);
    let pids: Vec<_> = text.lines().filter(|l| l.contains("WARN")).map(pid).collect();
    assert_eq!(pids.len(), 2);
    assert_ne!(pids[0], pids[1], "{text}");
}

#[test]
fn nothing_is_written_unless_asked_for() {
    let Some(run) = say(&[("NCCL_BUFFSIZE", "abc")], &["warn", "fork", "threads", "last"]) else { return };
    assert_eq!(stdout(&run), "");
    assert_eq!(stderr(&run), "ncclGroupEnd: not in a group call.\n");
}

#[test]
fn the_dump_has_the_published_variables() {
    let Some(run) = say(&[("NCCL_DEBUG_SUBSYS", "net,coll")], &["dump"]) else { return };
    let text = stdout(&run);
    assert!(text.starts_with("=== ncclParam Registry Dump ===\nNCCL_DEBUG (ncclDebugLogLevel) ["), "{text}");
    assert!(text.contains("    Current value=COLL,NET set_by=Environment default=INIT,ENV,BOOTSTRAP\n"), "{text}");
    assert_eq!(text.matches("    Accepted value: ").count(), 7);
    let Some(run) = say(&[("NCCL_PARAM_DUMP_ALL", "true")], &["dump"]) else { return };
    assert_eq!(stdout(&run).matches("    Accepted value: ").count(), 10);
}

/// The version line, unchanged: plain at VERSION and WARN, once a process; an INFO line at INFO. VERSION and
/// INFO also say which file it is.
#[test]
fn the_first_communicator_says_the_version() {
    let Some(program) = program() else { return };
    let version = "NCCL version #.#.#+cuda#.#\n";
    let both = format!(
        "{version}oxccl #.#.# is loaded from {}\n",
        normal(&common::profile_dir().join("libnccl.so.2").to_string_lossy())
    );
    for (level, expected) in [("", ""), ("VERSION", &both), ("WARN", version)] {
        let mut command = tool::command_on_softcuda(&program, &common::profile_dir());
        command.env("NCCL_DEBUG", level).args(["make", "make"]);
        let run = tool::output(command);
        assert!(run.status.success(), "{} {}", run.status, stderr(&run));
        assert_eq!((normal(&stdout(&run)).as_str(), stderr(&run).as_str()), (expected, ""), "NCCL_DEBUG={level}");
    }
    let mut command = tool::command_on_softcuda(&program, &common::profile_dir());
    command.env("NCCL_DEBUG", "INFO").args(["make", "make"]);
    let text = stdout(&tool::output(command));
    assert_eq!(normal(&text).matches(&format!("H:#:# [#] NCCL INFO {version}")).count(), 1, "{text}");
    assert!(normal(&text).contains("NCCL INFO oxccl #.#.# is loaded from ") && text.contains("libnccl.so"), "{text}");
    // Nothing in a good run reads like a failure, but for a line of NCCL's that people look for.
    let text = text.replace("NET/Plugin: Could not find: libnccl-net.so", "");
    let bad = ["fail", "error", "cannot", "could not", "WARN"];
    let worrying = text.lines().find(|line| bad.iter().any(|word| line.to_lowercase().contains(&word.to_lowercase())));
    assert_eq!(worrying, None);
}
