//! NCCL's log format on the `log` facade.
//!
//! The library logs with the macros of the `log` crate and names the subsystems as the target:
//! `log::info!(target: "INIT,NET", "…")`. `log::warn!` is a WARN line, with the target `ATTN` an ATTN
//! line; `log::trace!` with the target `CALL` is a call trace. Every WARN also becomes the text of
//! `ncclGetLastError`, whether or not it is shown. Settings come from the environment at the first
//! line and again after [`reset`].

mod last_error;
mod line;
pub mod lines;
mod settings;
mod sink;
mod stamp;
#[cfg(test)]
mod tests;

pub use last_error::{last_error, last_error_text};
pub use settings::{LEVELS, LogSettings, SUBSYSTEMS};

use crate::error::{Code, Error};
use crate::sys;
pub use line::Place;
use line::{LogContext, render};
use settings::LineKind;
use sink::Sink;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

/// The text by which tools recognise the library file, and the version line of the log: NCCL's, as programs that read
/// either expect it. The NUL ends it in the file, where other texts follow.
const BANNER: &str = "NCCL version 2.32.3+cuda13.0\0";

/// How long a forked child waits for a lock, and how often it looks.
const CHILDS_PATIENCE: Duration = Duration::from_millis(50);
const CHILDS_NAP: Duration = Duration::from_millis(1);

/// The facade knows one logger per process, so this cannot be a field of anything.
static LOGGER: Logger = Logger { state: RwLock::new(None), foreign: AtomicBool::new(false) };

thread_local! {
    /// The `[D]` of a line: the CUDA device that this thread uses.
    static DEVICE: Cell<i32> = const { Cell::new(0) };
}

struct Logger {
    state: RwLock<Option<LogState>>,
    /// The program has its own logger: WARN lines are given to it.
    foreign: AtomicBool,
}

/// What is read from the environment, and what was opened because of it.
struct LogState {
    settings: LogSettings,
    /// NCCL_WARN_ENABLE_DEBUG_INFO has raised the level.
    raised: AtomicBool,
    sink: Sink,
    host: String,
    started: Instant,
}

/// Makes this library the process's logger. Every entry point calls it; only the first call works.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        guard_panics();
        if ::log::set_logger(&LOGGER).is_err() {
            LOGGER.foreign.store(true, Ordering::Relaxed);
        } else {
            ::log::set_max_level(::log::LevelFilter::Trace);
        }
        LOGGER.with(|_| ());
    });
}

/// A panic is told on stderr, whose reader may have gone.
fn guard_panics() {
    // In a panic the hook cannot be changed: then it stays as it is.
    if !std::thread::panicking() {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| sys::without_sigpipe(|| tell(panic))));
    }
}

/// Writes to stdout what the program has asked for; what cannot be written is lost.
pub fn to_stdout(text: &str) {
    sink::to_stdout(text);
}

/// Takes a lock that a thread holds for as long as a line takes; in a forked child, whose line may be lost, within
/// [`CHILDS_PATIENCE`]. The locks of this room are the standard library's: those of `parking_lot` share tables, which a
/// child may find locked, too.
fn hold<G>(
    wait: impl FnOnce() -> Result<G, PoisonError<G>>,
    attempt: impl Fn() -> Result<G, TryLockError<G>>,
) -> Option<G> {
    if !sys::is_forked() {
        return Some(wait().unwrap_or_else(PoisonError::into_inner));
    }
    let until = Instant::now() + CHILDS_PATIENCE;
    loop {
        match attempt() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(CHILDS_NAP),
        }
    }
}

/// Makes the next line read the environment again; an open log file is closed (ncclResetDebugInit).
pub fn reset() {
    if let Some(mut state) = hold(|| LOGGER.state.write(), || LOGGER.state.try_write()) {
        *state = None;
    }
    LOGGER.limit(::log::LevelFilter::Trace);
}

/// Sets the device number that lines of this thread carry.
pub fn set_thread_device(device: i32) {
    DEVICE.set(device);
}

/// Shows `error` as a WARN line from `place` and makes it the last error, whoever is the process's logger.
pub fn failure(place: &Place<'_>, error: &Error) {
    let text = error.to_string();
    LOGGER.emit(LineKind::Warn, u64::MAX, place, &text);
    if LOGGER.foreign.load(Ordering::Relaxed) {
        ::log::warn!("{}: {text}", place.function);
    }
}

/// Whether a communicator has already told stderr about a failure. A field of the communicator.
#[derive(Debug, Default)]
pub struct FirstFailure(AtomicBool);

/// How long stderr is not told the same again: communicators of a process often fail of one thing.
const REPEAT: Duration = Duration::from_secs(10);

/// The last failure that stderr was told of, and when.
static TOLD: Mutex<Option<(String, Instant)>> = Mutex::new(None);

/// Prints one WARN line about `error` to stderr, whatever NCCL_DEBUG says, if `once` has not done so before, nor
/// anybody else in the last seconds. Nothing is printed where WARN lines already go to the same file as stderr.
pub fn first_failure(once: &FirstFailure, place: &Place<'_>, error: &Error) {
    if error.code() == Code::Success || once.0.swap(true, Ordering::Relaxed) {
        return;
    }
    tell_stderr(place, error);
}

/// The same for a communicator that was never made, and has nothing to remember it in.
pub fn tell_stderr(place: &Place<'_>, error: &Error) {
    let text = error.to_string();
    if is_told(&text) {
        return;
    }
    LOGGER.with(|state| {
        if !(state.shows(LineKind::Warn) && state.sink.is_stderr()) {
            let line = state.render(LineKind::Warn, place, &text);
            sink::to_stderr(line.trim_start_matches('\n'));
        }
    });
}

/// Whether stderr was told of a failure a moment ago; it is from now on.
fn is_told(text: &str) -> bool {
    let Some(mut told) = hold(|| TOLD.lock(), || TOLD.try_lock()) else { return false };
    let now = Instant::now();
    let same = told.as_ref().is_some_and(|(last, at)| last == text && now.duration_since(*at) < REPEAT);
    if !same {
        *told = Some((text.to_string(), now));
    }
    same
}

/// The version line of the process's first communicator: every process shows it at INFO, only the one of rank 0 at
/// VERSION and WARN. At VERSION and INFO a second line says which library that is, and which file: `library` finds
/// its path.
pub fn banner(rank: i32, library: fn() -> String) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let place = Place { file: "", line: 0, function: "" };
        let version = BANNER.trim_end_matches('\0');
        let file = || format!("oxccl {} is loaded from {}", env!("CARGO_PKG_VERSION"), library());
        LOGGER.with(|state| {
            if state.shows(LineKind::Info) {
                state.write(LineKind::Info, &place, version);
                state.write(LineKind::Info, &place, &file());
            } else if rank == 0 && state.shows(LineKind::Version) {
                state.write(LineKind::Version, &place, version);
                if !state.shows(LineKind::Warn) {
                    state.write(LineKind::Version, &place, &file());
                }
            }
        });
    });
}

/// The kind of a line of a plug-in, by NCCL's number of its level.
fn plugin_kind(level: i32) -> Option<LineKind> {
    match level {
        1 => Some(LineKind::Version),
        2 => Some(LineKind::Warn),
        3 | 4 => Some(LineKind::Info),
        5 => Some(LineKind::Trace),
        _ => None,
    }
}

/// Whether a line of a plug-in is shown, by NCCL's numbers of its level and subsystems.
pub fn shows_plugin_line(level: i32, subsystems: u64) -> bool {
    let Some(kind) = plugin_kind(level) else { return false };
    LOGGER.with(|state| state.shows(kind) && state.settings.subsystems & subsystems != 0) == Some(true)
}

/// Shows a line of a plug-in from a file (for TRACE, a function) and line. A WARN line is the last error, too, whoever
/// is the process's logger.
pub fn plugin_line(level: i32, subsystems: u64, (file, line): (&str, u32), text: &str) {
    let Some(kind) = plugin_kind(level) else { return };
    let function = if kind == LineKind::Trace { file } else { "" };
    let bits = if kind == LineKind::Warn { u64::MAX } else { subsystems };
    LOGGER.emit(kind, bits, &Place { file, line, function }, text);
    if kind == LineKind::Warn && LOGGER.foreign.load(Ordering::Relaxed) {
        ::log::warn!("{file}:{line}: {text}");
    }
}

impl Logger {
    /// Runs `f` on the state, which is read first where it is missing; not at all where the state cannot be had.
    fn with<R>(&self, f: impl FnOnce(&LogState) -> R) -> Option<R> {
        if let Some(state) = hold(|| self.state.read(), || self.state.try_read())?.as_ref() {
            return Some(f(state));
        }
        let mut slot = hold(|| self.state.write(), || self.state.try_write())?;
        let state = slot.get_or_insert_with(LogState::from_environment);
        self.limit(state.settings.max_level());
        Some(f(state))
    }

    fn limit(&self, level: ::log::LevelFilter) {
        if !self.foreign.load(Ordering::Relaxed) {
            ::log::set_max_level(level);
        }
    }

    fn emit(&self, kind: LineKind, subsystems: u64, place: &Place<'_>, text: &str) {
        if kind == LineKind::Warn {
            last_error::set(text);
        }
        self.with(|state| {
            if state.shows(kind) && state.settings.subsystems & subsystems != 0 {
                state.write(kind, place, text);
            }
            if kind == LineKind::Warn && state.settings.info_after_warn {
                state.raised.store(true, Ordering::Relaxed);
                self.limit(::log::LevelFilter::Info.max(state.settings.max_level()));
            }
        });
    }
}

impl LogState {
    fn from_environment() -> LogState {
        let settings = LogSettings::read(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()));
        let host = line::host_name();
        let sink = Sink::open(settings.log_file(), &host);
        LogState { settings, raised: AtomicBool::new(false), sink, host, started: Instant::now() }
    }

    fn shows(&self, kind: LineKind) -> bool {
        self.settings.shows(kind) || (kind == LineKind::Info && self.raised.load(Ordering::Relaxed))
    }

    fn render(&self, kind: LineKind, place: &Place<'_>, text: &str) -> String {
        let stamp = match self.settings.stamps(kind) {
            true => stamp::now(&self.settings.stamp_format),
            false => String::new(),
        };
        let context = LogContext {
            host: &self.host,
            pid: std::process::id(),
            thread: rustix::thread::gettid().as_raw_nonzero().get(),
            device: DEVICE.get(),
            uptime_ms: self.started.elapsed().as_secs_f64() * 1e3,
        };
        render(kind, &stamp, &context, place, text)
    }

    fn write(&self, kind: LineKind, place: &Place<'_>, text: &str) {
        self.sink.write(&self.render(kind, place, text));
    }
}

impl ::log::Log for Logger {
    fn enabled(&self, metadata: &::log::Metadata<'_>) -> bool {
        let Some((kind, subsystems)) = settings::classify(metadata) else {
            return false;
        };
        kind == LineKind::Warn || self.with(|s| s.shows(kind) && s.settings.subsystems & subsystems != 0) == Some(true)
    }

    fn log(&self, record: &::log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let Some((kind, subsystems)) = settings::classify(record.metadata()) else {
            return;
        };
        let place = Place {
            file: record.file().map_or("", line::short_file),
            line: record.line().unwrap_or(0),
            function: record.module_path().map_or("", line::short_module),
        };
        self.emit(kind, subsystems, &place, &record.args().to_string());
    }

    fn flush(&self) {}
}
