//! Who is at the other end of a connection, and how what goes over it is protected. Bytes in, bytes out: there are no
//! sockets, no clock and no generator of random numbers here, so that one test runs thousands of handshakes.
//!
//! Every TCP connection of the library begins with a *handshake* by which both ends show that they know the same
//! secret, without telling it. Who connects has sent some bytes in plain before, which say what the connection is for;
//! they are the handshake's *context*.
//!
//! ```text
//! connects ── protection, nonce, Noise message 1 ──────────────────────▶ accepts
//! connects ◀─ protection, verdict, nonce, Noise message 2, proof ─────── accepts
//! connects ── proof, confirmation ─────────────────────────────────────▶ accepts
//! ```
//!
//! A proof is a keyed hash over all that has gone over the connection, both ways, with the side that makes it. So what
//! was recorded, sent back, or changed on its way is none. What the ends want of the connection's protection is covered
//! by it: where they do not agree, both know that it is so, and that it is no stranger who says it.
//!
//! * `keys` has the secrets, and what is derived from them;
//! * `handshake` is the machine of both sides;
//! * `session` seals what goes over a connection afterwards, unless that stays in plain.
//!
//! docs/decisions/encryption.md says against whom this helps.

mod handshake;
mod keys;
mod session;
#[cfg(test)]
mod tests;

pub use handshake::{HELLO_BYTES, HandshakeProgress, RANDOM_BYTES, Refused, SecureHandshake};
pub use keys::{Protection, Secret, UserKey, set_user_key, user_key};
pub use session::{BrokenSeal, RECORD_MAX, SEAL_MAX, Session};
