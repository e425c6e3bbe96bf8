//! Where lines go: stdout, or the file of NCCL_DEBUG_FILE. One write call a line, and a reader that
//! went away never kills the process.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, fcntl_setfl, flock, fstat, ftruncate, open};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Tries to open a FIFO that nobody reads yet, or to lock a file that another process is truncating.
const TRIES: u32 = 100;
/// Time between two of them.
const PAUSE: Duration = Duration::from_millis(10);
/// How long one line waits for a full pipe or terminal before the rest of it is dropped.
const FULL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// An open log.
pub(super) struct Sink {
    target: Target,
    /// The target can send SIGPIPE.
    pipe: bool,
}

enum Target {
    Stdout,
    Stderr,
    File(OwnedFd),
    Nowhere,
}

impl Sink {
    /// Opens `file` (a pattern with %h and %p), or stdout where there is none or it cannot be opened;
    /// stderr then says why.
    pub fn open(file: Option<&str>, host: &str) -> Sink {
        let target = match file.map(|pattern| expand(pattern, host, std::process::id())) {
            None => Target::Stdout,
            Some(path) if path == "/dev/stdout" => Target::Stdout,
            Some(path) if path == "/dev/stderr" => Target::Stderr,
            Some(path) => open_file(&path).map(Target::File).unwrap_or_else(|error| {
                let why = std::io::Error::from(error);
                to_stderr(&format!("NCCL_DEBUG_FILE {path} cannot be opened: {why}. The log goes to stdout.\n"));
                Target::Stdout
            }),
        };
        let sink = Sink { target, pipe: false };
        match sink.with_fd(|fd| fstat(fd)) {
            Some(Ok(stat)) => Sink { pipe: can_break(stat.st_mode), ..sink },
            // A stdout that the program has closed: its number may soon be another file's.
            _ => Sink { target: Target::Nowhere, pipe: false },
        }
    }

    /// Writes one finished line. A failure to write is no reason to fail.
    pub fn write(&self, line: &str) {
        self.with_fd(|fd| write_line(fd, line.as_bytes(), self.pipe));
    }

    /// Whether lines end up in the same file as stderr.
    pub fn is_stderr(&self) -> bool {
        let place = |fd: BorrowedFd<'_>| fstat(fd).ok().map(|s| (s.st_dev, s.st_ino));
        match self.with_fd(place) {
            Some(Some(here)) => place(std::io::stderr().as_fd()) == Some(here),
            _ => false,
        }
    }

    fn with_fd<R>(&self, f: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
        match &self.target {
            Target::Stdout => Some(f(std::io::stdout().as_fd())),
            Target::Stderr => Some(f(std::io::stderr().as_fd())),
            Target::File(fd) => Some(f(fd.as_fd())),
            Target::Nowhere => None,
        }
    }
}

/// Writes one line to stderr.
pub(super) fn to_stderr(line: &str) {
    let stderr = std::io::stderr();
    let pipe = fstat(&stderr).is_ok_and(|s| can_break(s.st_mode));
    write_line(stderr.as_fd(), line.as_bytes(), pipe);
}

/// `%h` is the host, `%p` the process, `%%` a percent sign, anything else stays (spec §9.3).
pub(super) fn expand(pattern: &str, host: &str, pid: u32) -> String {
    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match (c, chars.as_str().chars().next()) {
            ('%', Some('h')) => out.push_str(host),
            ('%', Some('p')) => out.push_str(&pid.to_string()),
            ('%', Some('%')) => out.push('%'),
            _ => {
                out.push(c);
                continue;
            }
        }
        chars.next();
    }
    out
}

fn can_break(mode: u32) -> bool {
    matches!(FileType::from_raw_mode(mode), FileType::Fifo | FileType::Socket)
}

/// Opens for appending, so that lines of several processes stay whole. The first process that has the
/// file open empties it, as NCCL does; the others find it locked.
fn open_file(path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut tries = 0;
    let fd = loop {
        match open(path, flags, Mode::from_raw_mode(0o666)) {
            Err(Errno::NXIO | Errno::INTR) if tries < TRIES => std::thread::sleep(PAUSE),
            result => break result?,
        }
        tries += 1;
    };
    fcntl_setfl(&fd, OFlags::APPEND)?;
    if FileType::from_raw_mode(fstat(&fd)?.st_mode) == FileType::RegularFile {
        empty_if_first(&fd);
    }
    Ok(fd)
}

/// Whoever gets the exclusive lock empties the file; every process then holds a shared one for as long
/// as it logs. File systems without locks are only appended to.
fn empty_if_first(fd: &OwnedFd) {
    if flock(fd, FlockOperation::NonBlockingLockExclusive).is_ok() {
        let _ = ftruncate(fd, 0);
    }
    for _ in 0..TRIES {
        match flock(fd, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(PAUSE),
            _ => return,
        }
    }
}

fn write_line(fd: BorrowedFd<'_>, line: &[u8], pipe: bool) {
    match pipe {
        true => without_sigpipe(|| write_all(fd, line)),
        false => write_all(fd, line).is_ok(),
    };
}

/// One write call in the normal case; the rest of a short write follows.
fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                if poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], Some(&FULL))? == 0 {
                    return Err(Errno::AGAIN);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Runs `write` with SIGPIPE held back in this thread and takes away the one that it may have caused.
/// Whether `write` succeeded.
fn without_sigpipe(write: impl FnOnce() -> Result<(), Errno>) -> bool {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGPIPE);
    let Ok(before) = mask.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK) else {
        return false;
    };
    let result = write();
    if result == Err(Errno::PIPE) && !before.contains(Signal::SIGPIPE) {
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        if SignalFd::with_flags(&mask, flags).and_then(|fd| fd.read_signal()).is_err() {
            return false; // out of descriptors: the signal stays held back, which is better than dying of it
        }
    }
    let _ = before.thread_set_mask();
    result.is_ok()
}
