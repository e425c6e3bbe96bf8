//! The layouts of the lines, which programs read (`docs/nccl-behaviour.md`). Pure, but for the host's name.

use super::settings::LineKind;

/// Who writes a line.
pub(super) struct LogContext<'a> {
    pub host: &'a str,
    pub pid: u32,
    pub thread: i32,
    /// CUDA device of the thread, 0 if it has none.
    pub device: i32,
    /// Milliseconds since the log was set up.
    pub uptime_ms: f64,
}

/// Where in the source a line comes from.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The file, relative to the source root.
    pub file: &'a str,
    /// The line; 0 where it is not known, it is left out then.
    pub line: u32,
    /// The function, or the C function that the user called.
    pub function: &'a str,
}

/// One line, with its newline; `stamp` is the finished timestamp or empty.
pub(super) fn render(kind: LineKind, stamp: &str, context: &LogContext<'_>, place: &Place<'_>, text: &str) -> String {
    let LogContext { host, pid, thread, device, uptime_ms } = context;
    let Place { file, line, function } = place;
    match kind {
        LineKind::Version => format!("{stamp}{text}\n"),
        LineKind::Info => format!("{stamp}{host}:{pid}:{thread} [{device}] NCCL INFO {text}\n"),
        LineKind::Trace if text.starts_with("nccl") && text.ends_with(')') => {
            format!("{stamp}{host}:{pid}:{thread} NCCL CALL {text}\n")
        }
        LineKind::Trace => {
            format!("{stamp}{host}:{pid}:{thread} [{device}] {uptime_ms:.6} {function}:{line} NCCL TRACE {text}\n")
        }
        LineKind::Warn | LineKind::Attn => {
            let word = if kind == LineKind::Warn { "WARN" } else { "ATTN" };
            let at = if *line == 0 { (*file).to_string() } else { format!("{file}:{line}") };
            // Plug-ins do not say a function.
            let of = if function.is_empty() { String::new() } else { format!(" ({function})") };
            format!("\n{stamp}{host}:{pid}:{thread} [{device}] {at}{of} NCCL {word} {text}\n")
        }
    }
}

/// A source file relative to the source root, as NCCL names its own.
pub(super) fn short_file(path: &str) -> &str {
    path.rsplit_once("src/").map_or(path, |(_, tail)| tail)
}

/// A module's path without the crate's name.
pub(super) fn short_module(path: &str) -> &str {
    path.split_once("::").map_or(path, |(_, tail)| tail)
}

/// The host's name up to the first dot, fit for a file name.
pub(super) fn host_name() -> String {
    short_host(&rustix::system::uname().nodename().to_string_lossy())
}

pub(super) fn short_host(name: &str) -> String {
    name.split('.').next().unwrap_or("").replace(['%', '/'], "-")
}
