//! The rendezvous as pure state machines: no socket, no clock, no thread, no environment.
//!
//! Bytes and times go in, [`Action`]s come out. A driver (`net`, or the simulator of the tests) owns
//! the connections and carries the actions out.
//!
//! ```text
//! member ──Join──▶ root            address, version, settings, facts of the rank
//! member ◀─Welcome─ root           when everybody is in: all addresses and facts, or those of the next links
//! child ──Hello──▶ parent          the tree: each rank connects to its parent and accepts its children
//! child ──Up──▶ parent ──Down──▶   an all-gather: blocks go up, all come down; large ones go round a ring
//! member ──Done──▶ root            this rank's initialisation is complete
//! ```
//!
//! *Why a tree and not NCCL's ring.* A ring all-gather of n ranks is n(n-1) messages, each of which wakes
//! a process; with 64 processes on 2 cores that is what takes seconds. A tree needs 2(n-1) messages, and
//! every rank is woken once or twice. Large blocks take the ring, which moves every byte once per rank.
//!
//! *What is known is never waited for.* The first failure of a member goes to the root, which tells all
//! members, and over the tree, which tells them again without the root. Each says which rank is to blame.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub mod checkin;
pub mod failure;
pub mod member;
pub mod ranks;
pub mod root;
pub mod roots;
pub mod stranger;
pub mod tree;
pub mod wire;

#[cfg(test)]
mod tests;

/// A connection, numbered by the machine that owns it.
pub type Conn = u64;

/// The most ranks of a communicator.
pub const MAX_RANKS: u32 = 1 << 20;
/// The most bytes of facts that a rank may bring to the rendezvous.
pub const MAX_FACTS: usize = 64 << 10;
/// The most bytes that one rank may bring to an all-gather, or that one message may have.
pub const MAX_BLOCK: usize = 64 << 20;
/// Up to this many bytes in all, the root tells every rank everything.
pub const FULL_ROSTER: usize = 64 << 20;
/// Connections that have not said yet who they are; beyond this the oldest is dropped.
pub const MAX_PENDING: usize = 4096;
/// By how many refused exchanges a rank may be ahead of another one.
pub const MAX_REFUSALS: u64 = 1024;
/// How long a new connection may take to say who it is.
pub const HANDSHAKE: Duration = Duration::from_secs(20);
/// How long the other side of a new connection may take to answer the handshake. Longer than [`HANDSHAKE`]: it may be
/// busy.
pub const ANSWER: Duration = Duration::from_secs(60);
/// How long one connect may take before it is tried again.
pub const CONNECT: Duration = Duration::from_secs(10);
/// How long a refused connect is tried again where a listener must be there already.
pub const REFUSED: Duration = Duration::from_secs(2);
/// How long a failed root waits for its members to hang up.
pub const HANG_UP: Duration = Duration::from_secs(2);

/// What a machine wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a connection; the outcome comes back by [`Machine::connected`].
    Connect {
        /// The number that the connection will have.
        conn: Conn,
        /// Where to.
        to: SocketAddr,
    },
    /// Send bytes on a connection, after all that were sent before.
    Send {
        /// The connection.
        conn: Conn,
        /// What to send; shared, since a root sends the same to thousands.
        bytes: Arc<[u8]>,
    },
    /// Send what is still queued, then close. The machine hears no more of this connection.
    Close {
        /// The connection.
        conn: Conn,
    },
    /// Close the listening socket: nobody else is expected.
    StopListening,
    /// Write a log line.
    Log(Level, String),
}

/// The level of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Shown by default once warnings are on.
    Warn,
    /// Worth a look, but no error of this process: its own ranks have theirs. Never the last error.
    Attention,
    /// Shown at `NCCL_DEBUG=INFO`.
    Info,
}

/// Why a connect failed, as far as it matters for trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nothing listens there.
    Refused,
    /// No way to get there, or no answer: may pass.
    Unreachable,
    /// Anything else: trying again is of no use.
    Other,
}

/// A failed connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    /// The kind.
    pub cause: Cause,
    /// The system's text.
    pub text: String,
}

/// What a driver feeds and obeys. `now` is the time since any fixed moment.
pub trait Machine {
    /// A connection came in at the listener; its number is returned.
    fn accepted(&mut self, now: Duration, from: SocketAddr) -> Conn;
    /// An [`Action::Connect`] is through, or failed.
    fn connected(&mut self, now: Duration, conn: Conn, outcome: Result<(), ConnectError>);
    /// Bytes arrived.
    fn received(&mut self, now: Duration, conn: Conn, bytes: &[u8]);
    /// The other side closed the connection (`None`), or it broke. The machine hears no more of it.
    fn closed(&mut self, now: Duration, conn: Conn, error: Option<String>);
    /// A connection ended before any byte of it came: its other end is a process of this run whose connections are
    /// protected otherwise than this one's. The machine hears no more of it.
    fn mismatched(&mut self, now: Duration, conn: Conn, text: &str) {
        self.closed(now, conn, Some(text.to_string()));
    }
    /// The secret of whoever is connected to with a magic, where it is another one than that of its own connections.
    fn secret(&self, _magic: u64) -> Option<[u8; 32]> {
        None
    }
    /// What a connection that comes in must begin with; none as long as that is not known. Who begins otherwise is a
    /// stranger.
    fn preamble(&self) -> Option<wire::Preamble> {
        None
    }
    /// Time has passed.
    fn tick(&mut self, now: Duration);
    /// When [`Machine::tick`] is wanted next.
    fn deadline(&self) -> Option<Duration>;
    /// The next action, in order.
    fn action(&mut self) -> Option<Action>;
}
