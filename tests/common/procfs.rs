//! What the kernel knows about a process, for the report of a rank that hangs.

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Most threads of one process that a report lists.
const MAX_THREADS: usize = 64;

/// A report of a process: state, memory, and for every thread its name, what it waits in, and the
/// system call that it is in. Parts that may not be read, or a process that is gone, are left out.
pub fn describe(pid: u32) -> String {
    let base = format!("/proc/{pid}");
    let mut out = String::new();
    let status = fs::read_to_string(format!("{base}/status")).unwrap_or_default();
    if status.is_empty() {
        return format!("  pid {pid}: gone\n");
    }
    let wanted = ["State:", "Threads:", "VmRSS:", "SigQ:"];
    let facts: Vec<String> = status
        .lines()
        .filter(|line| wanted.iter().any(|key| line.starts_with(key)))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let _ = writeln!(out, "  pid {pid}: {}", facts.join(", "));
    let mut tids = task_ids(Path::new(&base));
    let hidden = tids.len().saturating_sub(MAX_THREADS);
    tids.truncate(MAX_THREADS);
    for tid in tids {
        out.push_str(&describe_thread(&format!("{base}/task/{tid}"), tid));
    }
    if hidden > 0 {
        let _ = writeln!(out, "    and {hidden} more threads");
    }
    out
}

/// One line for a thread, and its kernel stack where the system shows it.
fn describe_thread(task: &str, tid: u32) -> String {
    let read = |name: &str| fs::read_to_string(format!("{task}/{name}")).unwrap_or_default();
    let comm = read("comm");
    let state = read("stat").rsplit(')').next().unwrap_or("").trim().chars().next().unwrap_or('?');
    let (wchan, syscall) = (read("wchan"), read("syscall"));
    let call = syscall.split_whitespace().next().unwrap_or("").to_string();
    let mut out =
        format!("    thread {tid} {:<16} {state} waits in {:<24} syscall {call}\n", comm.trim(), wchan.trim());
    for frame in read("stack").lines().take(6) {
        let _ = writeln!(out, "      {}", frame.trim_start_matches("[<0>] "));
    }
    out
}

/// The ids of a process's threads, in numeric order; `process` is `/proc/<pid>`.
pub fn task_ids(process: &Path) -> Vec<u32> {
    let mut ids: Vec<u32> = fs::read_dir(process.join("task"))
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    ids.sort_unstable();
    ids
}
