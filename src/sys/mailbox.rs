//! Messages between processes of one host, with a file descriptor where there is one to pass.
//!
//! A mailbox is an abstract Unix datagram socket with a random name, so that neither `/tmp` nor `/dev/shm` matters and
//! no two processes can collide. What is sent has arrived, unless the receiver dies: the kernel loses nothing. It
//! takes few messages at a time, though (10 where nothing else is set).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::{ChildCloses, off_standard};
use crate::error::Error;

/// The random part of a mailbox's name.
pub type MailboxName = [u8; 16];
/// The most bytes of a message: an offer of 64 links, each with what a net plug-in says of it.
pub const MESSAGE_MAX: usize = 16 << 10;

/// A mailbox. A child has none.
pub struct Mailbox {
    // Before what it closes.
    _child_closes: ChildCloses,
    socket: OwnedFd,
    name: MailboxName,
}

/// A message that has come.
pub struct Datagram {
    /// What is written in it.
    pub bytes: Vec<u8>,
    /// The descriptor that came with it.
    pub fd: Option<OwnedFd>,
    /// There was a descriptor, but this process may open no more files.
    pub lost: bool,
}

/// What has become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It lies in the receiver's mailbox.
    Yes,
    /// There is no room for it now.
    Later,
    /// Nobody has that mailbox any more.
    Gone,
}

impl Mailbox {
    /// Opens a mailbox with a random name.
    ///
    /// # Errors
    /// [`Error::System`] where the process may open no more files.
    pub fn open() -> Result<Mailbox, Error> {
        let name: MailboxName = super::random::random();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            .map_err(io::Error::from)
            .and_then(off_standard)
            .map_err(|error| Error::system("socket", "unix datagram socket", &error))?;
        rustix::net::bind(&socket, &address(&name)?)
            .map_err(|errno| Error::system("bind", "abstract unix socket", &errno.into()))?;
        let _child_closes = ChildCloses::of(socket.as_fd());
        Ok(Mailbox { _child_closes, socket, name })
    }

    /// The name that others send to.
    pub fn name(&self) -> MailboxName {
        self.name
    }

    /// Sends a message of at most [`MESSAGE_MAX`] bytes; does not wait.
    ///
    /// # Errors
    /// [`Error::System`] where the system refuses the message for good.
    pub fn send(&self, to: &MailboxName, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<Sent, Error> {
        let to = address(to)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        loop {
            use rustix::io::Errno;
            let sent =
                rustix::net::sendmsg_addr(&self.socket, &to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
            return match sent {
                Ok(_) => Ok(Sent::Yes),
                Err(Errno::INTR) => continue,
                // Too many references: descriptors in messages that nobody has read yet count as open files.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => Ok(Sent::Later),
                Err(Errno::CONNREFUSED | Errno::CONNRESET | Errno::NOENT) => Ok(Sent::Gone),
                Err(errno) => Err(Error::system("sendmsg", "message to another process", &errno.into())),
            };
        }
    }

    /// The next message in the mailbox; none where it is empty. Does not wait.
    ///
    /// # Errors
    /// [`Error::System`] where the system has no memory.
    pub fn take(&self) -> Result<Option<Datagram>, Error> {
        loop {
            let mut bytes = [0; MESSAGE_MAX];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
            let message =
                match rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                    Ok(message) => message,
                    Err(rustix::io::Errno::AGAIN) => return Ok(None),
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(errno) => return Err(Error::system("recvmsg", "message of another process", &errno.into())),
                };
            let rights = control.drain().filter_map(|item| match item {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            let given = rights.flatten().last();
            let moved = given.map(off_standard).transpose();
            let lost = moved.is_err()
                || moved.as_ref().is_ok_and(Option::is_none) && message.flags.contains(ReturnFlags::CTRUNC);
            let fd = moved.unwrap_or_default();
            // A longer one is a stranger's.
            if message.bytes <= MESSAGE_MAX {
                return Ok(Some(Datagram { bytes: bytes[..message.bytes].to_vec(), fd, lost }));
            }
        }
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether somebody has a mailbox of this name; so where that cannot be found out.
pub fn is_open(name: &MailboxName) -> bool {
    !matches!(try_open(name), Err(Errno::CONNREFUSED))
}

/// Whether messages can go to a mailbox: somebody has it here, and it may be written to.
pub fn can_reach(name: &MailboxName) -> bool {
    !matches!(try_open(name), Err(Errno::CONNREFUSED | Errno::PERM | Errno::ACCESS))
}

/// Connects with a mailbox; so where this process can open no socket for it.
fn try_open(name: &MailboxName) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).map_err(io::Error::from);
    let socket = socket.and_then(off_standard);
    let (Ok(socket), Ok(address)) = (socket, address(name)) else { return Ok(()) };
    // Nothing is sent, and it does not matter whether the mailbox is full.
    rustix::net::connect(&socket, &address)
}

/// What to say where a descriptor did not arrive.
pub fn too_many_files() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(0);
    format!("cannot take a peer's shared memory: Too many open files (limit of this process {limit}: ulimit -n)")
}

fn address(name: &MailboxName) -> Result<SocketAddrUnix, Error> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = b"oxccl-".to_vec();
    let digits = name.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    text.extend(digits.map(|digit| DIGITS[usize::from(digit)]));
    SocketAddrUnix::new_abstract_name(&text)
        .map_err(|errno| Error::system("bind", "abstract unix socket name", &errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::SharedFile;

    #[test]
    fn messages_arrive_in_order_with_their_descriptors() {
        let (a, b) = (Mailbox::open().expect("a"), Mailbox::open().expect("b"));
        let memory = SharedFile::create("test", 8192).expect("memory");
        assert_eq!(a.send(&b.name(), b"first", Some(memory.descriptor())), Ok(Sent::Yes));
        assert_eq!(a.send(&b.name(), b"", None), Ok(Sent::Yes));
        let first = b.take().expect("take").expect("a message");
        assert_eq!((first.bytes.as_slice(), first.lost), (&b"first"[..], false));
        assert_eq!(rustix::fs::fstat(first.fd.expect("a descriptor")).expect("fstat").st_size, 8192);
        let second = b.take().expect("take").expect("a message");
        assert!(second.bytes.is_empty() && second.fd.is_none());
        assert!(b.take().expect("take").is_none());
    }

    #[test]
    fn a_full_mailbox_takes_messages_later() {
        let (a, b) = (Mailbox::open().expect("a"), Mailbox::open().expect("b"));
        let sent = (0..100_000u32).take_while(|n| a.send(&b.name(), &n.to_le_bytes(), None) == Ok(Sent::Yes)).count();
        assert!(sent > 0 && sent < 100_000);
        assert_eq!(a.send(&b.name(), b"", None), Ok(Sent::Later));
        assert!(b.take().expect("take").is_some());
        assert_eq!(a.send(&b.name(), b"", None), Ok(Sent::Yes));
    }

    #[test]
    fn what_is_too_long_is_a_strangers() {
        let (a, b) = (Mailbox::open().expect("a"), Mailbox::open().expect("b"));
        assert_eq!(a.send(&b.name(), &[1; MESSAGE_MAX + 1], None), Ok(Sent::Yes));
        assert_eq!(a.send(&b.name(), &[2; MESSAGE_MAX], None), Ok(Sent::Yes));
        assert_eq!(b.take().expect("take").expect("a message").bytes, [2; MESSAGE_MAX]);
    }

    #[test]
    fn a_closed_mailbox_is_told() {
        let mailbox = Mailbox::open().expect("post");
        let open = Mailbox::open().expect("open");
        let gone = open.name();
        assert!(is_open(&gone));
        drop(open);
        assert!(!is_open(&gone));
        assert_eq!(mailbox.send(&gone, b"x", None), Ok(Sent::Gone));
    }
}
