//! What stands between a machine and a socket: the handshake, and the seals of what goes over the connection. The
//! machine sees what comes from ranks of the run, in plain, and what comes from strangers, to tell what they are. Pure.
//!
//! ```text
//! connects ── preamble, in plain; first message ─▶ accepts
//! connects ◀─ preamble, in plain; answer ───────── accepts
//! connects ── proof ─────────────────────────────▶ accepts       all that follows is sealed
//! ```

use std::borrow::Cow;

use crate::bootstrap::protocol::wire::{PREAMBLE, Preamble, Service};
use crate::secure::{
    self, HELLO_BYTES, HandshakeProgress, Protection, RANDOM_BYTES, Refused, Secret, SecureHandshake, Session, UserKey,
};

/// What the connections of a machine are secured by.
#[derive(Clone, Debug)]
pub struct ConnectionSecurity {
    secret: Secret,
    /// Of connections among ranks; it is another one where there are several roots.
    members: Secret,
    user_key: Option<UserKey>,
    /// A key that is set later counts, too.
    follows: bool,
}

/// Why there is no connection any more.
pub enum LayerEnd {
    /// It is nobody of this run, or somebody between has changed what came.
    Broken(String),
    /// It is a process of this run that is set otherwise.
    Mismatch(Refused),
}

enum LayerState {
    /// This side has connected, and has said nothing.
    Fresh,
    /// Somebody has connected, and has said so much.
    Unknown(Vec<u8>),
    /// The preamble was sent, or has come; of the other side's so many bytes have come.
    Handshake {
        handshake: Box<SecureHandshake>,
        preamble: [u8; PREAMBLE],
        answer: Option<Vec<u8>>,
    },
    /// It is nobody of this run: the machine is to see what it says. Nothing is ever sent to it.
    Foreign,
    Open(Box<Session>),
}

/// The layer of one connection.
pub struct SecureLayer {
    state: LayerState,
    /// What has come of a record.
    input: Vec<u8>,
    /// What is to be sent as it is.
    output: Vec<u8>,
}

impl ConnectionSecurity {
    /// Of a rank: by the id's secret, and the user's key where there is one.
    pub fn new(secret: Secret, user_key: Option<UserKey>) -> ConnectionSecurity {
        ConnectionSecurity { members: secret.clone(), secret, user_key, follows: false }
    }

    /// The same with another secret for connections among ranks.
    pub fn with_members(self, members: Secret) -> ConnectionSecurity {
        ConnectionSecurity { members, ..self }
    }

    /// The same for a connection with whoever has another secret.
    pub fn of(&self, secret: Option<[u8; 32]>) -> Cow<'_, ConnectionSecurity> {
        match secret {
            None => Cow::Borrowed(self),
            Some(secret) => Cow::Owned(ConnectionSecurity { secret: Secret::new(secret), ..self.clone() }),
        }
    }

    /// Of a root. Where there was no key when it was made, one that the program sets before ranks come counts.
    pub fn of_root(secret: Secret, user_key: Option<UserKey>) -> ConnectionSecurity {
        ConnectionSecurity { follows: true, ..ConnectionSecurity::new(secret, user_key) }
    }

    fn protection(&self) -> Protection {
        let late = || if self.follows { secure::user_key() } else { None };
        self.user_key.clone().or_else(late).map_or(Protection::Sealed, Protection::Encrypted)
    }

    fn handshake(&self, connects: bool, preamble: &[u8; PREAMBLE], random: [u8; RANDOM_BYTES]) -> Box<SecureHandshake> {
        let is_of_members = preamble[8..12] == (Service::Peer as u32).to_le_bytes();
        let secret = if is_of_members { &self.members } else { &self.secret };
        let secret = secret.derive(&[&b"bootstrap "[..], preamble].concat());
        let make = if connects { SecureHandshake::connect } else { SecureHandshake::accept };
        Box::new(make(preamble, &secret, self.protection(), random))
    }
}

impl SecureLayer {
    /// Of a connection that this side makes.
    pub fn connecting() -> SecureLayer {
        SecureLayer { state: LayerState::Fresh, input: Vec::new(), output: Vec::new() }
    }

    /// Of a connection that somebody has made.
    pub fn accepted() -> SecureLayer {
        SecureLayer { state: LayerState::Unknown(Vec::new()), input: Vec::new(), output: Vec::new() }
    }

    /// Begins the handshake with a preamble, which says what the connection is for.
    pub fn begin(&mut self, security: &ConnectionSecurity, preamble: [u8; PREAMBLE], random: [u8; RANDOM_BYTES]) {
        let mut handshake = security.handshake(true, &preamble, random);
        self.output.extend_from_slice(&preamble);
        self.output.extend_from_slice(&handshake.output());
        self.state = LayerState::Handshake { handshake, preamble, answer: Some(Vec::new()) };
    }

    /// This side has connected, and has said nothing yet.
    pub fn is_fresh(&self) -> bool {
        matches!(self.state, LayerState::Fresh)
    }

    /// Somebody has connected, and it is not known yet who that is.
    pub fn is_unknown(&self) -> bool {
        matches!(self.state, LayerState::Unknown(_))
    }

    /// The handshake is under way.
    pub fn is_handshake(&self) -> bool {
        matches!(self.state, LayerState::Handshake { .. })
    }

    /// The ends have met.
    pub fn is_open(&self) -> bool {
        matches!(self.state, LayerState::Open(_))
    }

    /// Nothing can ever be sent.
    pub fn is_foreign(&self) -> bool {
        matches!(self.state, LayerState::Foreign)
    }

    /// What is to be sent as it is, once.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Seals what is to be sent; false where the ends have not met.
    pub fn seal(&mut self, plain: &[u8], records: &mut Vec<u8>) -> bool {
        match &mut self.state {
            LayerState::Open(session) => session.seal_all(plain, records).is_ok(),
            _ => false,
        }
    }

    /// Takes what has come; what the machine is to see of it is added to `plain`. `expected`: the preamble of who
    /// connects; before it is known, whoever does has to wait.
    ///
    /// # Errors
    /// The connection is over. What [`SecureLayer::output`] has is to be sent before.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        (security, expected): (&ConnectionSecurity, Option<Preamble>),
        random: impl FnOnce() -> [u8; RANDOM_BYTES],
        plain: &mut Vec<u8>,
    ) -> Result<(), LayerEnd> {
        match &mut self.state {
            LayerState::Fresh if bytes.is_empty() => {}
            LayerState::Fresh => return Err(broken("it says something before it was spoken to")),
            LayerState::Foreign => plain.extend_from_slice(bytes),
            LayerState::Open(_) => {
                self.input.extend_from_slice(bytes);
                return self.open(plain);
            }
            LayerState::Unknown(said) => {
                said.extend_from_slice(bytes);
                let Some(expected) = expected.map(Preamble::encode) else {
                    let is_long = said.len() > PREAMBLE + HELLO_BYTES;
                    return if is_long { Err(broken("it sends too much before it says who it is")) } else { Ok(()) };
                };
                let seen = said.len().min(PREAMBLE);
                let said = match (said[..seen] == expected[..seen], seen) {
                    (true, PREAMBLE) => std::mem::take(said),
                    (true, _) => return Ok(()),
                    (false, _) => {
                        plain.append(said);
                        self.state = LayerState::Foreign;
                        return Ok(());
                    }
                };
                let handshake = security.handshake(false, &expected, random());
                self.state = LayerState::Handshake { handshake, preamble: expected, answer: None };
                return self.shake(&said[PREAMBLE..], plain);
            }
            LayerState::Handshake { .. } => return self.shake(bytes, plain),
        }
        Ok(())
    }

    /// The handshake goes on.
    fn shake(&mut self, mut bytes: &[u8], plain: &mut Vec<u8>) -> Result<(), LayerEnd> {
        let LayerState::Handshake { handshake, preamble, answer } = &mut self.state else { return Ok(()) };
        if let Some(said) = answer.as_mut().filter(|said| said.len() < PREAMBLE) {
            let (some, rest) = bytes.split_at(bytes.len().min(PREAMBLE - said.len()));
            said.extend_from_slice(some);
            bytes = rest;
            if said[..] != answer_to(*preamble)[..said.len()] {
                // The machine says what it thinks of such an answer.
                plain.append(said);
                plain.extend_from_slice(bytes);
                self.state = LayerState::Foreign;
                return Ok(());
            }
        }
        let met = handshake.receive(&mut bytes);
        let output = handshake.output();
        if answer.is_none() && !output.is_empty() {
            self.output.extend_from_slice(&answer_to(*preamble));
        }
        self.output.extend_from_slice(&output);
        match met {
            Ok(HandshakeProgress::More) => Ok(()),
            Ok(HandshakeProgress::Met(Some(session))) => {
                if answer.is_none() {
                    plain.extend_from_slice(preamble);
                }
                self.state = LayerState::Open(session);
                self.input = bytes.to_vec();
                self.open(plain)
            }
            // Such a connection never stays in plain.
            Ok(HandshakeProgress::Met(None)) => Err(broken(Refused::Stranger.text())),
            Err(refused) if refused.is_mismatch() => Err(LayerEnd::Mismatch(refused)),
            Err(stranger) => {
                self.output.clear();
                Err(broken(stranger.text()))
            }
        }
    }

    /// Opens the records that have come.
    fn open(&mut self, plain: &mut Vec<u8>) -> Result<(), LayerEnd> {
        let LayerState::Open(session) = &mut self.state else { return Ok(()) };
        session.open_all(&mut self.input, plain).map_err(|_| broken("what it sends was changed on its way"))
    }
}

fn broken(why: &str) -> LayerEnd {
    LayerEnd::Broken(why.to_string())
}

/// The preamble of the answer: the service that follows.
fn answer_to(mut preamble: [u8; PREAMBLE]) -> [u8; PREAMBLE] {
    preamble[8] += 1;
    preamble
}

#[cfg(test)]
mod tests;
