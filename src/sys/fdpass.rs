//! Letters between processes of one host, with a file descriptor where there is one to pass.
//!
//! A post box is an abstract Unix datagram socket with a random name, so that neither `/tmp` nor `/dev/shm` matters and
//! no two processes can collide. What is sent has arrived, unless the receiver dies: the kernel loses nothing. It
//! takes few letters at a time, though (10 where nothing else is set).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::{ChildCloses, off_standard};
use crate::error::Error;

/// The random part of a post box's name.
pub type PostName = [u8; 16];
/// The most bytes of a letter.
pub const LETTER_MAX: usize = 1024;

/// A post box, with a bell for whoever waits at it. A child has neither.
pub struct Post {
    // Before what they close.
    _child_closes: [ChildCloses; 2],
    socket: OwnedFd,
    bell: OwnedFd,
    name: PostName,
}

/// A letter that has come.
pub struct Parcel {
    /// What is written in it.
    pub bytes: Vec<u8>,
    /// The descriptor that came with it.
    pub fd: Option<OwnedFd>,
    /// There was a descriptor, but this process may open no more files.
    pub lost: bool,
}

/// What has become of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It lies in the receiver's box.
    Yes,
    /// There is no room for it now.
    Later,
    /// Nobody has that box any more.
    Gone,
}

impl Post {
    /// Opens a post box with a random name.
    ///
    /// # Errors
    /// [`Error::System`] where the process may open no more files.
    pub fn open() -> Result<Post, Error> {
        let name: PostName = super::random::random();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            .map_err(io::Error::from)
            .and_then(off_standard)
            .map_err(|error| Error::system("socket", "unix datagram socket", &error))?;
        rustix::net::bind(&socket, &address(&name)?)
            .map_err(|errno| Error::system("bind", "abstract unix socket", &errno.into()))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(io::Error::from)
            .and_then(off_standard)
            .map_err(|error| Error::system("eventfd", "bell of a post box", &error))?;
        let _child_closes = [ChildCloses::of(socket.as_fd()), ChildCloses::of(bell.as_fd())];
        Ok(Post { _child_closes, socket, bell, name })
    }

    /// The name that others send to.
    pub fn name(&self) -> PostName {
        self.name
    }

    /// Ends the [`Post::wait`] that is under way, or the next one.
    pub fn ring(&self) {
        // The counter can only be full of earlier rings.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Waits until there is a letter, or the bell rings, or a time has come; now and then it returns for nothing.
    pub fn wait(&self, until: Option<Instant>) {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        let mut rings = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut rings);
    }

    /// Sends a letter of at most [`LETTER_MAX`] bytes; does not wait.
    ///
    /// # Errors
    /// [`Error::System`] where the system refuses the letter for good.
    pub fn send(&self, to: &PostName, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<Sent, Error> {
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
                // Too many references: descriptors in letters that nobody has read yet count as open files.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => Ok(Sent::Later),
                Err(Errno::CONNREFUSED | Errno::CONNRESET | Errno::NOENT) => Ok(Sent::Gone),
                Err(errno) => Err(Error::system("sendmsg", "letter to another process", &errno.into())),
            };
        }
    }

    /// The next letter in the box; none where it is empty. Does not wait.
    ///
    /// # Errors
    /// [`Error::System`] where the system has no memory.
    pub fn take(&self) -> Result<Option<Parcel>, Error> {
        loop {
            let mut bytes = [0; LETTER_MAX];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
            let message =
                match rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                    Ok(message) => message,
                    Err(rustix::io::Errno::AGAIN) => return Ok(None),
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(errno) => return Err(Error::system("recvmsg", "letter of another process", &errno.into())),
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
            if message.bytes <= LETTER_MAX {
                return Ok(Some(Parcel { bytes: bytes[..message.bytes].to_vec(), fd, lost }));
            }
        }
    }
}

/// Whether somebody has a post box of this name; so where that cannot be found out.
pub fn is_open(name: &PostName) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).map_err(io::Error::from);
    let socket = socket.and_then(off_standard);
    let (Ok(socket), Ok(address)) = (socket, address(name)) else { return true };
    // Nothing is sent, and it does not matter whether the box is full.
    !matches!(rustix::net::connect(&socket, &address), Err(rustix::io::Errno::CONNREFUSED))
}

/// What to say where a descriptor did not arrive.
pub fn too_many_files() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(0);
    format!("cannot take a peer's shared memory: Too many open files (limit of this process {limit}: ulimit -n)")
}

fn address(name: &PostName) -> Result<SocketAddrUnix, Error> {
    let mut text = b"oxccl-".to_vec();
    for byte in name {
        text.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    SocketAddrUnix::new_abstract_name(&text)
        .map_err(|errno| Error::system("bind", "abstract unix socket name", &errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::SharedFile;

    #[test]
    fn letters_arrive_in_order_with_their_descriptors() {
        let (a, b) = (Post::open().expect("a"), Post::open().expect("b"));
        let memory = SharedFile::create("test", 8192).expect("memory");
        assert_eq!(a.send(&b.name(), b"first", Some(memory.descriptor())), Ok(Sent::Yes));
        assert_eq!(a.send(&b.name(), b"", None), Ok(Sent::Yes));
        let first = b.take().expect("take").expect("a letter");
        assert_eq!((first.bytes.as_slice(), first.lost), (&b"first"[..], false));
        assert_eq!(rustix::fs::fstat(first.fd.expect("a descriptor")).expect("fstat").st_size, 8192);
        let second = b.take().expect("take").expect("a letter");
        assert!(second.bytes.is_empty() && second.fd.is_none());
        assert!(b.take().expect("take").is_none());
    }

    #[test]
    fn a_full_box_takes_letters_later() {
        let (a, b) = (Post::open().expect("a"), Post::open().expect("b"));
        let sent = (0..100_000u32).take_while(|n| a.send(&b.name(), &n.to_le_bytes(), None) == Ok(Sent::Yes)).count();
        assert!(sent > 0 && sent < 100_000);
        assert_eq!(a.send(&b.name(), b"", None), Ok(Sent::Later));
        assert!(b.take().expect("take").is_some());
        assert_eq!(a.send(&b.name(), b"", None), Ok(Sent::Yes));
    }

    #[test]
    fn what_is_too_long_is_a_strangers() {
        let (a, b) = (Post::open().expect("a"), Post::open().expect("b"));
        assert_eq!(a.send(&b.name(), &[1; LETTER_MAX + 1], None), Ok(Sent::Yes));
        assert_eq!(a.send(&b.name(), &[2; LETTER_MAX], None), Ok(Sent::Yes));
        assert_eq!(b.take().expect("take").expect("a letter").bytes, [2; LETTER_MAX]);
    }

    #[test]
    fn the_bell_ends_one_wait_and_letters_all() {
        let far = || Some(Instant::now() + std::time::Duration::from_secs(60));
        let (a, b) = (Post::open().expect("a"), Post::open().expect("b"));
        let start = Instant::now();
        b.ring();
        b.ring();
        b.wait(far());
        assert_eq!(a.send(&b.name(), b"x", None), Ok(Sent::Yes));
        (0..3).for_each(|_| b.wait(far()));
        assert!(b.take().expect("take").is_some());
        assert!(start.elapsed().as_secs() < 60);
        let soon = Instant::now() + std::time::Duration::from_millis(5);
        while Instant::now() < soon {
            b.wait(Some(soon));
        }
    }

    #[test]
    fn a_closed_box_is_told() {
        let post = Post::open().expect("post");
        let open = Post::open().expect("open");
        let gone = open.name();
        assert!(is_open(&gone));
        drop(open);
        assert!(!is_open(&gone));
        assert_eq!(post.send(&gone, b"x", None), Ok(Sent::Gone));
    }
}
