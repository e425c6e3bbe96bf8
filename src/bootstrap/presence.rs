//! A rank that is about to join. The call that creates a communicator which does not block returns before the rank has
//! checked in: it first loads kernels, for instance. Should its process die meanwhile, the root must know that it was
//! coming.

use std::os::fd::AsFd;
use std::time::Duration;

use super::id::{IdParts, UniqueId};
use super::meeting::Meeting;
use super::net::secure_layer::ConnectionSecurity;
use super::net::socket::SecureSocket;
use super::process;
use super::protocol::checkin::Announcement;
use super::protocol::wire::{Encoder, FrameKind, Preamble, Service};
use crate::secure;
use crate::sys::ChildCloses;

/// How long it may take to tell the root, for each step but that the ends meet: the caller of a call that does not wait
/// has to.
const LIMIT: Duration = Duration::from_millis(50);

/// A connection with the root that says how long this process lives. Dropped, it says that there is nothing to worry
/// about.
pub struct Presence {
    _child_closes: ChildCloses,
    socket: SecureSocket,
}

impl Presence {
    /// Tells its root that a rank is about to join. None where the root does not answer at once: the rank then
    /// counts as one that has not come.
    pub fn announce(ids: &[UniqueId], rank: u32, nranks: u32) -> Option<Presence> {
        let Meeting { own, place, .. } = Meeting::of(ids, rank, nranks).ok()?;
        let IdParts { magic, root, secret, .. } = own;
        let frame = Announcement { rank, nranks, process: process(), root: (place.index, place.count) }.encode();
        let (preamble, security) =
            (Preamble::new(magic, Service::Root), ConnectionSecurity::new(secret, secure::user_key()));
        let told = SecureSocket::connect(root, LIMIT, preamble, &security).and_then(|mut socket| {
            socket.send(&frame)?;
            Ok(socket)
        });
        match told {
            Ok(socket) => Some(Presence { _child_closes: ChildCloses::of(socket.as_fd()), socket }),
            Err(why) => {
                log::info!(target: "BOOTSTRAP", "Bootstrap: rank {rank} is not announced to the root: {why}");
                None
            }
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let told = self.socket.send(&Encoder::new(FrameKind::Done, 0).finish());
        // Until the root closes, for a moment: to close what has something to read would take back what was sent.
        while told.is_ok() && matches!(self.socket.read_some(), Ok(1..)) {}
    }
}
