//! Letters that are to be sent. Those to one box keep their order; a box that is full holds up no other.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::letter::{Address, Content, Envelope};
use crate::sys::{Parcel, Post, PostName, Sent};

/// A letter from a source to another one.
#[derive(Clone)]
pub struct Letter {
    /// The post box of that one's process.
    pub post: PostName,
    /// Whom it is for.
    pub to: Address,
    /// What it says.
    pub bytes: Vec<u8>,
    /// What goes with it; it stays open until the letter is sent.
    pub fd: Option<Arc<OwnedFd>>,
}

/// A letter on its way.
struct Waiting {
    post: PostName,
    from: Address,
    to: Address,
    bytes: Vec<u8>,
    fd: Option<Arc<OwnedFd>>,
    /// Its source is gone: it is sent now or not at all.
    last: bool,
}

/// The letters of a process that wait to be sent.
pub struct Outbox {
    from: Address,
    reply: PostName,
    waiting: VecDeque<Waiting>,
    /// Letters of the process to itself.
    own: VecDeque<Parcel>,
    /// There are letters that [`Outbox::send`] has not seen.
    fresh: bool,
}

/// What came of sending.
#[derive(Default)]
pub(super) struct Sending {
    /// Letters that can never arrive: who sent them, and to whom.
    pub dead: Vec<(Address, Address)>,
    /// Some boxes are full.
    pub full: bool,
}

impl Outbox {
    pub(super) fn new(reply: PostName) -> Outbox {
        let nobody = Address { key: 0, rank: 0 };
        Outbox { from: nobody, reply, waiting: VecDeque::new(), own: VecDeque::new(), fresh: false }
    }

    /// Letters are from this source from now on.
    pub(super) fn of(&mut self, from: Address) -> &mut Outbox {
        self.from = from;
        self
    }

    /// Adds a letter, unless the same one waits already: who asks again and again asks once at a time.
    pub fn add(&mut self, letter: Letter) {
        let Letter { post, to, bytes, fd } = letter;
        let envelope = Envelope::new(to, self.from, self.reply, Content::Bytes(bytes));
        self.push(post, self.from, to, envelope.encode(), fd);
    }

    /// Adds what says that there is no source.
    pub(super) fn bounce(&mut self, envelope: &Envelope) {
        if let Some(back) = envelope.bounce(self.reply) {
            self.push(envelope.reply, envelope.to, envelope.from, back.encode(), None);
        }
    }

    fn push(&mut self, post: PostName, from: Address, to: Address, bytes: Vec<u8>, fd: Option<Arc<OwnedFd>>) {
        let same = |other: &Waiting| other.fd.is_none() && other.post == post && other.bytes == bytes;
        if fd.is_some() || !self.waiting.iter().any(same) {
            self.waiting.push_back(Waiting { post, from, to, bytes, fd, last: false });
            self.fresh = true;
        }
    }

    /// A source is gone: its letters go now, or not at all.
    pub(super) fn last_letters(&mut self, from: Address) {
        self.waiting.iter_mut().filter(|letter| letter.from == from).for_each(|letter| letter.last = true);
    }

    /// Whether there is something to do at once.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh || !self.own.is_empty()
    }

    /// Sends what there is room for.
    pub(super) fn send(&mut self, post: &Post) -> Sending {
        let mut sending = Sending::default();
        let mut full: HashSet<PostName> = HashSet::new();
        self.fresh = false;
        for letter in std::mem::take(&mut self.waiting) {
            if letter.post == self.reply {
                self.keep_own(letter);
                continue;
            }
            let sent = match full.contains(&letter.post) {
                true => Ok(Sent::Later),
                false => post.send(&letter.post, &letter.bytes, letter.fd.as_ref().map(|fd| fd.as_fd())),
            };
            match sent {
                Ok(Sent::Yes) => {}
                Ok(Sent::Later) if letter.last => {}
                Ok(Sent::Later) => {
                    full.insert(letter.post);
                    self.waiting.push_back(letter);
                }
                Ok(Sent::Gone) => sending.dead.push((letter.from, letter.to)),
                Err(error) => {
                    log::info!(target: "INIT", "a letter to rank {} is lost: {error}", letter.to.rank);
                    sending.dead.push((letter.from, letter.to));
                }
            }
        }
        sending.full = !full.is_empty();
        sending
    }

    /// A letter to a source of this process needs no socket.
    fn keep_own(&mut self, letter: Waiting) {
        let (fd, lost) = match letter.fd.map(|fd| fd.try_clone()) {
            None => (None, false),
            Some(Ok(fd)) => (Some(fd), false),
            Some(Err(_)) => (None, true),
        };
        self.own.push_back(Parcel { bytes: letter.bytes, fd, lost });
    }

    /// The next letter of the process to itself.
    pub(super) fn take_own(&mut self) -> Option<Parcel> {
        self.own.pop_front()
    }
}
