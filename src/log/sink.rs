//! Where lines go: stdout, or the file of NCCL_DEBUG_FILE. One write call a line, and a reader that
//! went away never kills the process.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, fcntl_setfl, flock, fstat, ftruncate, open};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::sys::{off_standard, without_sigpipe};

/// Tries to open a FIFO that nobody reads yet, or to lock a file that another process is truncating.
const TRIES: u32 = 100;
/// Time between two of them.
const PAUSE: Duration = Duration::from_millis(10);
/// How long one line waits for a full pipe or terminal before the rest of it is dropped.
const FULL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// An open log.
pub(super) enum Sink {
    Stdout,
    Stderr,
    File(OwnedFd),
    Nowhere,
}

impl Sink {
    /// Opens `file` (a pattern with %h and %p), or stdout where there is none or it cannot be opened;
    /// stderr then says why.
    pub fn open(file: Option<&str>, host: &str) -> Sink {
        let sink = match file.map(|pattern| expand(pattern, host, std::process::id())) {
            None => Sink::Stdout,
            Some(path) if path == "/dev/stdout" => Sink::Stdout,
            Some(path) if path == "/dev/stderr" => Sink::Stderr,
            Some(path) => open_file(&path).map(Sink::File).unwrap_or_else(|why| {
                to_stderr(&format!("NCCL_DEBUG_FILE {path} cannot be opened: {why}. The log goes to stdout.\n"));
                Sink::Stdout
            }),
        };
        match sink.with_fd(|fd| fstat(fd)) {
            Some(Ok(_)) => sink,
            // A stdout that the program has closed: its number may soon be another file's.
            _ => Sink::Nowhere,
        }
    }

    /// Writes one finished line. A failure to write is no reason to fail.
    pub fn write(&self, line: &str) {
        self.with_fd(|fd| write_line(fd, line.as_bytes()));
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
        match self {
            Sink::Stdout => Some(f(std::io::stdout().as_fd())),
            Sink::Stderr => Some(f(std::io::stderr().as_fd())),
            Sink::File(fd) => Some(f(fd.as_fd())),
            Sink::Nowhere => None,
        }
    }
}

/// Writes one line to stderr.
pub(super) fn to_stderr(line: &str) {
    write_line(std::io::stderr().as_fd(), line.as_bytes());
}

/// Writes text to stdout.
pub(super) fn to_stdout(text: &str) {
    write_line(std::io::stdout().as_fd(), text.as_bytes());
}

/// `%h` is the host, `%p` the process, `%%` a percent sign, anything else stays.
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

/// Opens for appending, so that lines of several processes stay whole. The first process that has the
/// file open empties it, as NCCL does; the others find it locked.
fn open_file(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut tries = 0;
    let fd = loop {
        match open(path, flags, Mode::from_raw_mode(0o666)) {
            Err(Errno::NXIO | Errno::INTR) if tries < TRIES => std::thread::sleep(PAUSE),
            result => break off_standard(result?)?,
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

/// The program may put a pipe in place of stdout or stderr at any time, so that all are treated as one.
fn write_line(fd: BorrowedFd<'_>, line: &[u8]) {
    let _ = without_sigpipe(|| write_all(fd, line));
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
