//! Whether other processes still hold something that this one has lent them: each keeps the end of a pipe as long as it
//! does. The system closes it where a process dies, and a forked child gives it up at once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;

use super::{ChildCloses, off_standard};

/// A descriptor that a forked child closes.
struct KeptEnd {
    _child_closes: ChildCloses,
    fd: OwnedFd,
}

impl KeptEnd {
    fn of(fd: OwnedFd) -> KeptEnd {
        KeptEnd { _child_closes: ChildCloses::of(fd.as_fd()), fd }
    }
}

/// The lender's view.
pub struct Holders {
    /// Closed when nobody can become a holder any more.
    give: Option<KeptEnd>,
    watch: KeptEnd,
}

/// What a holder keeps.
pub struct Hold(#[allow(dead_code, reason = "it is kept and closed, and nothing else")] KeptEnd);

impl Holders {
    /// No holders yet.
    ///
    /// # Errors
    /// What the system says where the process may open no more files.
    pub fn new() -> io::Result<Holders> {
        let (watch, give) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
        let (watch, give) = (off_standard(watch)?, off_standard(give)?);
        Ok(Holders { give: Some(KeptEnd::of(give)), watch: KeptEnd::of(watch) })
    }

    /// A descriptor that makes whoever receives it a holder; while it is on its way, it counts as one.
    ///
    /// # Errors
    /// As [`Holders::new`]; and after [`Holders::close`].
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        let give = self.give.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        off_standard(give.fd.try_clone()?)
    }

    /// From here on there are no more holders than there are now.
    pub fn close(&mut self) {
        self.give = None;
    }

    /// Whether nobody holds it any more, after [`Holders::close`]. What cannot be found out is not so.
    pub fn are_gone(&self) -> bool {
        let mut polled = [PollFd::new(&self.watch.fd, PollFlags::empty())];
        let known = rustix::event::poll(&mut polled, Some(&Timespec::default()));
        known.is_ok() && polled[0].revents().contains(PollFlags::HUP)
    }
}

impl Hold {
    /// Holds what came with a descriptor, until it is dropped.
    pub fn of(fd: OwnedFd) -> Hold {
        Hold(KeptEnd::of(fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_there_until_all_have_let_go() {
        let mut holders = Holders::new().expect("a pipe");
        let (on_its_way, hold) = (holders.descriptor().expect("a descriptor"), holders.descriptor().expect("another"));
        assert!(!holders.are_gone());
        let hold = Hold::of(hold);
        holders.close();
        assert!(holders.descriptor().is_err() && !holders.are_gone());
        drop(on_its_way);
        assert!(!holders.are_gone());
        drop(hold);
        assert!(holders.are_gone());
    }
}
