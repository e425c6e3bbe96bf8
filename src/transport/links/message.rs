//! What ranks tell each other about links.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::Links;
use super::make::Offered;
use crate::plan::schedule::LinkId;
use crate::proxy::{Address, Destination, Message, Outbox, Progress, Registration, Source, Undeliverable};
use crate::sys::too_many_files;
use crate::transport::handshake::{Notice, Notices, Todo};
use crate::transport::net::MoverNotice;
use crate::transport::{ConnectionGroup, PeerFacts, TransportId};

/// The most bytes of a reason that is told to a peer: the rest of its message has room beside it.
const TEXT_MAX: usize = 512;

/// What a rank writes to another one of its communicator.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LinkMessage {
    /// How the other connects with its part of a group; what only their transport reads.
    Offer { epoch: u32, group: ConnectionGroup, info: Vec<u8>, wanted: bool },
    /// It has the other's part of a group.
    Taken { epoch: u32, group: ConnectionGroup },
    /// Something of the other is still missing in a group.
    Ask { epoch: u32, group: ConnectionGroup },
    /// It could not make its part of a group, or take the other's.
    Failed { epoch: u32, group: ConnectionGroup, text: String },
    /// Memory that is no link. It comes with the message.
    Memory { bytes: u64 },
    /// Memory by which a transport is tried. A descriptor of it comes with the message.
    Try { transport: TransportId },
    /// About memory that users have registered: for the communicator. A descriptor may come with the message.
    Registration { bytes: Vec<u8> },
    /// The receiver's end of a link over a network has left for good.
    Left { epoch: u32, link: LinkId },
    /// What is not about links: for the communicator.
    Notice { bytes: Vec<u8> },
    /// Nothing: where nobody receives it, it comes back.
    Ping,
}

impl LinkMessage {
    /// What says a notice about a group; none for an offer, which says more.
    pub fn of(epoch: u32, group: ConnectionGroup, notice: Notice) -> Option<LinkMessage> {
        match notice {
            Notice::Failed(mut text) => {
                // A message that is too long would not be read, and whoever waits for it wait on.
                text.truncate(text.floor_char_boundary(TEXT_MAX));
                Some(LinkMessage::Failed { epoch, group, text })
            }
            Notice::Ask => Some(LinkMessage::Ask { epoch, group }),
            Notice::Taken => Some(LinkMessage::Taken { epoch, group }),
            Notice::Offer { .. } => None,
        }
    }

    fn encode(&self) -> Vec<u8> {
        // Nothing of it can fail: it writes to memory.
        postcard::to_stdvec(self).unwrap_or_default()
    }
}

/// A message to a peer.
pub(super) fn to_peer(
    destination: Destination,
    peer: &PeerFacts,
    message: &LinkMessage,
    fd: Option<Arc<OwnedFd>>,
) -> Message {
    Message::new(destination, Address { key: peer.links, rank: peer.rank }, message.encode(), fd)
}

impl Links {
    /// Tells all other ranks something that is not about links: see [`super::Hooks::told`].
    pub fn tell_all(&self, bytes: &[u8]) {
        let Some(connectivity) = self.connectivity.get() else { return };
        let me = &connectivity.facts[self.rank as usize];
        let here = |peer: &PeerFacts| me.host.can_pass_descriptors(&peer.host);
        let reached = |peer: &&PeerFacts| peer.rank != self.rank && (here(peer) || peer.location.tcp.is_some());
        let notice = LinkMessage::Notice { bytes: bytes.to_vec() };
        let others = connectivity.facts.iter().filter(reached);
        self.send(others.map(|peer| to_peer(me.destination(peer), peer, &notice, None)));
    }

    /// Tells another rank something that is not about links: see [`super::Hooks::told`].
    pub fn tell(&self, to: u32, bytes: Vec<u8>) {
        self.send(self.message(to, &LinkMessage::Notice { bytes }, None));
    }

    /// Whether the calling thread is the event loop's, which must not wait for what others tell.
    pub fn is_loop_thread(&self) -> bool {
        self.registration.lock().as_ref().is_some_and(Registration::is_loop_thread)
    }

    /// Tells another rank something of registered memory: see [`super::Hooks::registration`].
    pub fn send_registration(&self, to: u32, bytes: Vec<u8>, fd: Option<Arc<OwnedFd>>) {
        self.send(self.message(to, &LinkMessage::Registration { bytes }, fd));
    }

    /// Tells a rank what a mover has to say.
    pub(super) fn tell_of_mover(&self, to: u32, notice: &MoverNotice) {
        let message = match *notice {
            MoverNotice::Left(link) => LinkMessage::Left { epoch: self.state.lock().epoch, link },
            MoverNotice::Ping => LinkMessage::Ping,
        };
        self.send(self.message(to, &message, None));
    }

    pub(super) fn send(&self, messages: impl IntoIterator<Item = Message>) {
        if let Some(registration) = &*self.registration.lock() {
            registration.send(messages);
        }
    }

    pub(super) fn message(&self, peer: u32, message: &LinkMessage, fd: Option<Arc<OwnedFd>>) -> Option<Message> {
        let facts = &self.connectivity.get()?.facts;
        let (me, peer) = (&facts[self.rank as usize], &facts[peer as usize]);
        Some(to_peer(me.destination(peer), peer, message, fd))
    }

    /// Notices without an offer.
    pub(super) fn messages(&self, group: ConnectionGroup, notices: Notices) -> Vec<Message> {
        let epoch = self.state.lock().epoch;
        let message = |notice| LinkMessage::of(epoch, group, notice);
        notices.into_iter().filter_map(|(peer, notice)| self.message(peer, &message(notice)?, None)).collect()
    }

    /// A message about a connection group, perhaps with an offer. In the event loop.
    fn receive_about(
        &self,
        from: u32,
        (epoch, group): (u32, ConnectionGroup),
        notice: Notice,
        offered: Option<Offered>,
        out: &mut Outbox,
    ) {
        let Some(connectivity) = self.connectivity.get() else { return };
        let mut state = self.state.lock();
        if state.epoch != epoch {
            return;
        }
        let peers = connectivity.wiring.group_peers(self.rank, group);
        if !peers.contains(&from) {
            log::info!(
                target: "INIT",
                "rank {from} wrote to rank {} about {group:?}, which they do not share",
                self.rank
            );
            return;
        }
        let (todo, answers) = state.handshake.receive(from, group, notice, || peers);
        drop(state);
        self.news.notify_all();
        self.messages(group, answers).into_iter().for_each(|message| out.add(message));
        if todo == Todo::default() {
            return;
        }
        let take = offered.filter(|_| todo.take);
        let links = self.own.upgrade().filter(|_| self.may_wait(connectivity, group));
        match links {
            // Without a thread for it, all others wait; but the system has one nearly always.
            Some(links) => links.serve_aside(group, take, todo.make, out),
            None => self.serve(group, take, todo.make).into_iter().for_each(|message| out.add(message)),
        }
    }
}

impl Source for Links {
    fn receive(&self, mut message: Message, out: &mut Outbox) {
        let (from, lost, fd) = (message.from.rank, message.lost, message.take_fd());
        let Ok(message) = postcard::from_bytes::<LinkMessage>(message.bytes()) else {
            log::info!(target: "INIT", "rank {from} sent a message to rank {} that cannot be read", self.rank);
            return;
        };
        match message {
            LinkMessage::Offer { epoch, group, info, wanted } => {
                let fd = if lost { Err(too_many_files()) } else { Ok(fd) };
                let offered = Offered { from, info, fd };
                self.receive_about(from, (epoch, group), Notice::Offer { wanted }, Some(offered), out);
            }
            LinkMessage::Taken { epoch, group } => self.receive_about(from, (epoch, group), Notice::Taken, None, out),
            LinkMessage::Ask { epoch, group } => self.receive_about(from, (epoch, group), Notice::Ask, None, out),
            LinkMessage::Failed { epoch, group, text } => {
                self.receive_about(from, (epoch, group), Notice::Failed(text), None, out);
            }
            LinkMessage::Memory { bytes } => self.take_memory(fd, lost, bytes),
            LinkMessage::Try { transport } => self.take_try(from, transport, fd),
            LinkMessage::Registration { bytes } => {
                if let Some(hooks) = self.hooks.get() {
                    (hooks.registration)(from, &bytes, fd);
                }
            }
            LinkMessage::Left { epoch, link } if link.to == from && self.state.lock().epoch == epoch => {
                self.engine.peer_left(link);
            }
            LinkMessage::Left { .. } | LinkMessage::Ping => {}
            LinkMessage::Notice { bytes } => self.hooks.get().into_iter().for_each(|hooks| (hooks.told)(from, &bytes)),
        }
    }

    fn undeliverable(&self, to: Address, why: Undeliverable) {
        let why = match why {
            Undeliverable::Silent => match self.give_up(to.rank) {
                Some(why) => why,
                None => return,
            },
            Undeliverable::Died => "its process has died".to_string(),
            Undeliverable::NoSource => "it has ended or aborted its communicator".to_string(),
            Undeliverable::Failed(error) => error.to_string(),
        };
        self.state.lock().handshake.lose(to.rank, &why);
        self.news.notify_all();
        self.engine.peer_gone(to.rank, &why);
        self.hooks.get().into_iter().for_each(|hooks| (hooks.untold)(to.rank));
    }

    fn progress(&self, _now: Instant, out: &mut Outbox) -> Progress {
        let (asks, next) = self.state.lock().handshake.tick(self.now());
        for (group, notices) in asks {
            self.messages(group, notices).into_iter().for_each(|message| out.add(message));
        }
        Progress::at(next.map(|next| self.start + next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::MESSAGE_MAX;

    #[test]
    fn a_reason_fits_its_message_however_long_it_is() {
        let accents = format!("x{}", "\u{e9}".repeat(5000));
        for (text, bytes) in [("short".to_string(), 5), ("x".repeat(5000), TEXT_MAX), (accents, TEXT_MAX - 1)] {
            let message = LinkMessage::of(u32::MAX, ConnectionGroup::pair(7, 9), Notice::Failed(text.clone()));
            let message = message.expect("a message");
            // What goes around it adds two addresses, a name and some lengths.
            assert!(message.encode().len() + 128 <= MESSAGE_MAX);
            let LinkMessage::Failed { text: told, .. } = message else { panic!("{message:?}") };
            assert!(text.starts_with(&told) && told.len() == bytes, "{}", told.len());
        }
    }
}
