//! Passing of file descriptors between processes of one host.
//!
//! Every post box is an abstract Unix datagram socket with a random name, so that neither `/tmp` nor
//! `/dev/shm` matters and no two processes can collide. A datagram carries one descriptor and the key
//! of the connection that it belongs to; the order of arrival does not matter.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::error::Error;

/// The random part of a post box's name.
pub type FdPostName = [u8; 16];
/// A message: the key of the connection, 8 bytes, little endian.
const MESSAGE_BYTES: usize = 8;
/// Descriptors that are kept for keys that nobody has asked for yet; more are closed.
const EARLY_MAX: usize = 4096;

/// A post box for descriptors.
pub struct FdPost {
    socket: OwnedFd,
    name: FdPostName,
    /// What has come under keys that nobody has asked for yet; none where the system had no descriptor left.
    early: HashMap<u64, Option<OwnedFd>>,
}

impl FdPost {
    /// Opens a post box with a random name.
    pub fn open() -> Result<FdPost, Error> {
        let name: FdPostName = rand::random();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            .map_err(|errno| Error::system("socket", "unix datagram socket", &errno.into()))?;
        rustix::net::bind(&socket, &address(&name)?)
            .map_err(|errno| Error::system("bind", "abstract unix socket", &errno.into()))?;
        Ok(FdPost { socket, name, early: HashMap::new() })
    }

    /// The name that peers send to.
    pub fn name(&self) -> FdPostName {
        self.name
    }

    /// Sends a descriptor to a peer's post box under a key.
    ///
    /// # Errors
    /// [`Error::Remote`] when the peer's box is gone, [`Error::Timeout`] when it stays full until the
    /// deadline, [`Error::Aborted`] when `cancel` becomes readable.
    pub fn send(
        &mut self,
        to: &FdPostName,
        key: u64,
        fd: BorrowedFd<'_>,
        cancel: BorrowedFd<'_>,
        limit: Duration,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + limit;
        let to = address(to)?;
        loop {
            match self.try_send(&to, key, fd) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::AGAIN) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::CONNREFUSED) => {
                    return Err(Error::Remote {
                        rank: None,
                        text: "the peer closed its socket for descriptors: it has died or given up".into(),
                    });
                }
                Err(errno) => return Err(Error::system("sendmsg", "descriptor of shared memory", &errno.into())),
            }
            // The peer's box is full, and perhaps it waits for ours: empty our own meanwhile.
            self.drain()?;
            self.pause(cancel, deadline, FULL_RETRY)?;
        }
    }

    fn try_send(&self, to: &SocketAddrUnix, key: u64, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let fds = [fd];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let bytes = key.to_le_bytes();
        rustix::net::sendmsg_addr(&self.socket, to, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).map(|_| ())
    }

    /// Receives the descriptor that was sent under a key.
    ///
    /// # Errors
    /// [`Error::Timeout`] when none came until the deadline, [`Error::Aborted`] when `cancel` becomes readable,
    /// [`Error::Resource`] when it came and this process may open no more files.
    pub fn receive(&mut self, key: u64, cancel: BorrowedFd<'_>, limit: Duration) -> Result<OwnedFd, Error> {
        let deadline = Instant::now() + limit;
        loop {
            self.drain()?;
            match self.early.remove(&key) {
                Some(Some(fd)) => return Ok(fd),
                Some(None) => return Err(Error::Resource(too_many_files())),
                None => {}
            }
            self.pause(cancel, deadline, Duration::MAX)?;
        }
    }

    /// Takes in everything that lies in the box.
    fn drain(&mut self) -> Result<(), Error> {
        loop {
            let mut bytes = [0; MESSAGE_BYTES];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let got =
                rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
            let message = match got {
                Ok(message) => message,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(Error::system("recvmsg", "descriptor of shared memory", &errno.into())),
            };
            let rights = control.drain().filter_map(|item| match item {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            let fd = rights.flatten().last();
            let lost = fd.is_none() && message.flags.contains(ReturnFlags::CTRUNC);
            // Anything else in the box is a stranger's; the descriptor closes on drop.
            if message.bytes == MESSAGE_BYTES && self.early.len() < EARLY_MAX && (fd.is_some() || lost) {
                self.early.insert(u64::from_le_bytes(bytes), fd);
            }
        }
    }

    /// Blocks until something arrives, `cancel` is readable, `nap` is over or the deadline passes.
    fn pause(&self, cancel: BorrowedFd<'_>, deadline: Instant, nap: Duration) -> Result<(), Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Timeout("a peer did not pass its shared memory in time".to_string()));
        }
        let wait = left.min(nap);
        let timeout = Timespec { tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: wait.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN), PollFd::from_borrowed_fd(cancel, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::system("poll", "unix datagram socket", &errno.into())),
        }
        if !fds[1].revents().is_empty() { Err(Error::Aborted) } else { Ok(()) }
    }
}

/// How long a sender rests while the peer's box is full.
const FULL_RETRY: Duration = Duration::from_millis(1);

fn too_many_files() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(0);
    format!("cannot take a peer's shared memory: Too many open files (limit of this process {limit}: ulimit -n)")
}

fn address(name: &FdPostName) -> Result<SocketAddrUnix, Error> {
    let mut text = b"oxccl-".to_vec();
    for byte in name {
        text.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    SocketAddrUnix::new_abstract_name(&text).map_err(|errno| Error::system("bind", "abstract unix socket name", &errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::SharedFile;
    use std::os::fd::AsFd;

    const LIMIT: Duration = Duration::from_secs(10);

    fn never() -> (OwnedFd, OwnedFd) {
        rustix::pipe::pipe().expect("a pipe")
    }

    #[test]
    fn descriptors_arrive_by_key_whatever_the_order() {
        let (cancel, _writer) = never();
        let (mut a, mut b) = (FdPost::open().expect("a"), FdPost::open().expect("b"));
        let first = SharedFile::create("test", 4096).expect("memory");
        let second = SharedFile::create("test", 8192).expect("memory");
        a.send(&b.name(), 1, first.descriptor(), cancel.as_fd(), LIMIT).expect("send");
        a.send(&b.name(), 2, second.descriptor(), cancel.as_fd(), LIMIT).expect("send");
        let got = b.receive(2, cancel.as_fd(), LIMIT).expect("second first");
        assert_eq!(rustix::fs::fstat(&got).expect("fstat").st_size, 8192);
        let got = b.receive(1, cancel.as_fd(), LIMIT).expect("first second");
        assert_eq!(rustix::fs::fstat(&got).expect("fstat").st_size, 4096);
    }

    #[test]
    fn two_full_boxes_do_not_block_each_other() {
        let (cancel, _writer) = never();
        let (mut a, mut b) = (FdPost::open().expect("a"), FdPost::open().expect("b"));
        let memory = SharedFile::create("test", 4096).expect("memory");
        let (to_a, to_b) = (a.name(), b.name());
        // More than any queue of the kernel holds, in both directions at once.
        let many = 600;
        std::thread::scope(|scope| {
            for (post, to) in [(&mut a, to_b), (&mut b, to_a)] {
                let (memory, cancel) = (&memory, cancel.as_fd());
                scope.spawn(move || {
                    (0..many).for_each(|key| post.send(&to, key, memory.descriptor(), cancel, LIMIT).expect("send"));
                    (0..many).for_each(|key| drop(post.receive(key, cancel, LIMIT).expect("receive")));
                });
            }
        });
    }

    #[test]
    fn waiting_ends_by_cancel_and_by_deadline() {
        let (cancel, writer) = never();
        let mut post = FdPost::open().expect("post");
        let late = post.receive(7, cancel.as_fd(), Duration::from_millis(20)).expect_err("nothing was sent");
        assert!(matches!(late, Error::Timeout(_)), "{late}");
        drop(writer);
        assert_eq!(post.receive(7, cancel.as_fd(), LIMIT).expect_err("cancelled"), Error::Aborted);
    }

    #[test]
    fn a_closed_box_is_a_dead_peer() {
        let (cancel, _writer) = never();
        let mut post = FdPost::open().expect("post");
        let gone = FdPost::open().expect("gone").name();
        let memory = SharedFile::create("test", 4096).expect("memory");
        let error = post.send(&gone, 1, memory.descriptor(), cancel.as_fd(), LIMIT).expect_err("nobody is there");
        assert!(matches!(error, Error::Remote { .. }), "{error}");
    }
}
