//! A rank that is about to join. The call that creates a communicator which does not block returns before the rank has
//! checked in: it first loads kernels, for instance. Should its process die meanwhile, the root must know that it was
//! coming.

use std::io::Read;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::Socket;

use super::id::{IdParts, UniqueId};
use super::meeting::Meeting;
use super::net::socket;
use super::process;
use super::protocol::checkin::Announcement;
use super::protocol::wire::{Encoder, FrameKind, Preamble, Service};
use crate::sys::ChildCloses;

/// How long it may take to tell the root, for each step: the caller of a call that does not wait has to.
const LIMIT: Duration = Duration::from_millis(20);

/// A connection with the root that says how long this process lives. Dropped, it says that there is nothing to worry
/// about.
pub struct Presence {
    _child_closes: ChildCloses,
    socket: Socket,
}

impl Presence {
    /// Tells its root that a rank is about to join. None where the root does not answer at once: the rank then
    /// counts as one that has not come.
    pub fn announce(ids: &[UniqueId], rank: u32, nranks: u32) -> Option<Presence> {
        let Meeting { own: IdParts { magic, root, .. }, place, .. } = Meeting::of(ids, rank, nranks).ok()?;
        let frame = Announcement { rank, nranks, process: process(), root: (place.index, place.count) }.encode();
        let message = [Preamble::new(magic, Service::Root).encode().as_slice(), &frame].concat();
        let told = socket::connect_and_wait(root, LIMIT).and_then(|socket| {
            socket::send_all(&socket, &message)?;
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
        let told = socket::send_all(&self.socket, &Encoder::new(FrameKind::Done, 0).finish());
        // Until the root closes, for a moment: to close what has something to read would take back what was sent.
        let mut answer = [0; 64];
        while told.is_ok() && matches!(self.socket.read(&mut answer), Ok(1..)) {}
    }
}
