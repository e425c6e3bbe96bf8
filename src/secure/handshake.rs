//! The handshake: a machine for each side.

use ring::hmac;
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::keys::{Protection, Secret};
use super::session::{Session, TAG};

/// Curve25519 for new keys of each connection, AES-256-GCM for what is sent, which processors do by themselves.
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const NONCE: usize = 32;
/// A public key and a tag.
const NOISE: usize = 32 + TAG;
const PROOF: usize = 32;
/// Bytes of the first message: protection, nonce, Noise.
pub const HELLO_BYTES: usize = 1 + NONCE + NOISE;
/// Bytes of the answer: protection, verdict, nonce, Noise, proof.
pub const ANSWER_BYTES: usize = 2 + NONCE + NOISE + PROOF;
/// Bytes of the last message: proof and confirmation.
pub const PROOF_BYTES: usize = PROOF + TAG;
/// Random bytes that a handshake needs: a nonce, and a key.
pub const RANDOM_BYTES: usize = NONCE + 32;

/// What the proof of each side begins with.
const CONNECTS: u8 = 1;
const ACCEPTS: u8 = 2;

/// What who accepts says of what the other wants.
const AGREED: u8 = 0;
const DIFFERS: u8 = 1;
const OTHER_KEY: u8 = 2;

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The other side does not know the secret, or somebody has changed what it said.
    Stranger,
    /// The other side knows the secret, and does not encrypt as this one does.
    PeerIsPlain,
    /// The other side knows the secret, and encrypts as this one does not.
    PeerEncrypts,
    /// The other side knows the secret, and encrypts with another key of the user's.
    OtherKey,
}

impl Refused {
    /// What there is to say of the other side.
    pub fn text(self) -> &'static str {
        match self {
            Refused::Stranger => "it does not know the secret of this ncclUniqueId",
            Refused::PeerIsPlain => {
                "it does not encrypt, and this process does (ncclSetEncryption): set the same key in all processes"
            }
            Refused::PeerEncrypts => {
                "it encrypts (ncclSetEncryption), and this process does not: set the same key in all processes"
            }
            Refused::OtherKey => {
                "it encrypts with another key than this process (ncclSetEncryption): set the same key in all processes"
            }
        }
    }

    /// Whether it is a process of the job that is set otherwise.
    pub fn is_mismatch(self) -> bool {
        self != Refused::Stranger
    }
}

/// What came of some bytes.
pub enum HandshakeProgress {
    /// More are to come.
    More,
    /// The ends have met; none: what follows is in plain.
    Met(Option<Box<Session>>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HandshakeStep {
    /// Who connects waits for the answer.
    Answer,
    /// Who accepts waits for the first message.
    Hello,
    /// Who accepts waits for the proof, to refuse the other side in its turn or not.
    Proof(Option<Refused>),
    Over,
}

/// A handshake that is under way. What it has to send is in [`SecureHandshake::output`], and goes also where it is over
/// or refused: the other side is to know.
pub struct SecureHandshake {
    step: HandshakeStep,
    secret: Secret,
    protection: Protection,
    nonce: [u8; NONCE],
    noise: Option<Box<HandshakeState>>,
    session: Option<Box<Session>>,
    /// The context, and all that has gone over the connection.
    transcript: Vec<u8>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Protection {
    fn number(&self) -> u8 {
        match self {
            Protection::Plain => 1,
            Protection::Sealed => 2,
            Protection::Encrypted(_) => 3,
        }
    }

    /// What goes into Noise as the key that both have; none where nothing is sealed.
    fn noise_key(&self, secret: &Secret) -> Option<Secret> {
        match self {
            Protection::Plain => None,
            Protection::Sealed => Some(secret.derive(b"sealed")),
            Protection::Encrypted(key) => Some(key.with(secret)),
        }
    }

    /// What a peer with another one is.
    fn differs(&self, theirs: u8) -> Refused {
        if self.number() > theirs { Refused::PeerIsPlain } else { Refused::PeerEncrypts }
    }
}

impl SecureHandshake {
    /// The side that connects. `context`: what it has sent in plain; `random`: bytes that are never used again.
    pub fn connect(
        context: &[u8],
        secret: &Secret,
        protection: Protection,
        random: [u8; RANDOM_BYTES],
    ) -> SecureHandshake {
        let mut own = SecureHandshake::new(HandshakeStep::Answer, context, secret, protection, random);
        let mut hello = vec![own.protection.number()];
        hello.extend_from_slice(&own.nonce);
        let noise = own.write_noise();
        hello.extend_from_slice(&noise);
        own.say(&hello);
        own
    }

    /// The side that accepts. `context`: what has come in plain.
    pub fn accept(
        context: &[u8],
        secret: &Secret,
        protection: Protection,
        random: [u8; RANDOM_BYTES],
    ) -> SecureHandshake {
        SecureHandshake::new(HandshakeStep::Hello, context, secret, protection, random)
    }

    fn new(
        step: HandshakeStep,
        context: &[u8],
        secret: &Secret,
        protection: Protection,
        random: [u8; RANDOM_BYTES],
    ) -> SecureHandshake {
        let random = Zeroizing::new(random);
        let (mut nonce, mut ephemeral) = ([0; NONCE], Zeroizing::new([0; 32]));
        nonce.copy_from_slice(&random[..NONCE]);
        ephemeral.copy_from_slice(&random[NONCE..]);
        let key = protection.noise_key(secret);
        let noise = key.and_then(|key| noise(step == HandshakeStep::Answer, context, &key, ephemeral));
        let mut transcript = (context.len() as u64).to_le_bytes().to_vec();
        transcript.extend_from_slice(context);
        let secret = secret.derive(b"proofs");
        let (input, output) = (Vec::new(), Vec::new());
        SecureHandshake { step, secret, protection, nonce, noise, session: None, transcript, input, output }
    }

    /// How many bytes are to come before it goes on. No more may be read of a connection that stays in plain.
    pub fn missing(&self) -> usize {
        let whole = match self.step {
            HandshakeStep::Answer => ANSWER_BYTES,
            HandshakeStep::Hello => HELLO_BYTES,
            HandshakeStep::Proof(_) => PROOF_BYTES,
            HandshakeStep::Over => 0,
        };
        whole.saturating_sub(self.input.len())
    }

    /// What is to be sent now, once.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Takes bytes that have come, as many as are missing; the others are left.
    ///
    /// # Errors
    /// Why there is no connection. What [`SecureHandshake::output`] has is still to be sent, unless the other side is a
    /// stranger.
    pub fn receive(&mut self, bytes: &mut &[u8]) -> Result<HandshakeProgress, Refused> {
        let (some, rest) = bytes.split_at(bytes.len().min(self.missing()));
        self.input.extend_from_slice(some);
        *bytes = rest;
        if self.step == HandshakeStep::Over {
            return Err(Refused::Stranger);
        }
        if self.missing() > 0 {
            return Ok(HandshakeProgress::More);
        }
        let input = std::mem::take(&mut self.input);
        let outcome = match std::mem::replace(&mut self.step, HandshakeStep::Over) {
            HandshakeStep::Hello => self.hello(&input),
            HandshakeStep::Answer => self.answer(&input),
            HandshakeStep::Proof(refused) => self.proof(&input, refused),
            HandshakeStep::Over => Err(Refused::Stranger),
        };
        if outcome == Err(Refused::Stranger) {
            self.output.clear();
        }
        Ok(if outcome? { HandshakeProgress::Met(self.session.take()) } else { HandshakeProgress::More })
    }

    /// The first message, to who accepts.
    fn hello(&mut self, hello: &[u8]) -> Result<bool, Refused> {
        self.transcript.extend_from_slice(hello);
        let (theirs, noise) = (hello[0], &hello[1 + NONCE..]);
        if !(1..=3).contains(&theirs) {
            return Err(Refused::Stranger);
        }
        let own = self.protection.number();
        let is_read = own == theirs && self.read_noise(noise);
        let (verdict, refused) = match &self.protection {
            _ if own != theirs => (DIFFERS, Some(self.protection.differs(theirs))),
            Protection::Encrypted(_) if !is_read => (OTHER_KEY, Some(Refused::OtherKey)),
            Protection::Sealed if !is_read => return Err(Refused::Stranger),
            _ => (AGREED, None),
        };
        let mut answer = vec![self.protection.number(), verdict];
        answer.extend_from_slice(&self.nonce);
        let noise = if refused.is_none() { self.write_noise() } else { [0; NOISE] };
        answer.extend_from_slice(&noise);
        self.transcript.extend_from_slice(&answer);
        answer.extend_from_slice(&self.own_proof(ACCEPTS));
        // The other side's proof covers this one, too.
        self.transcript.extend_from_slice(&answer[ANSWER_BYTES - PROOF..]);
        self.output.extend_from_slice(&answer);
        self.step = HandshakeStep::Proof(refused);
        Ok(false)
    }

    /// The answer, to who has connected.
    fn answer(&mut self, answer: &[u8]) -> Result<bool, Refused> {
        let (said, proof) = answer.split_at(ANSWER_BYTES - PROOF);
        self.transcript.extend_from_slice(said);
        self.check_proof(ACCEPTS, proof)?;
        self.transcript.extend_from_slice(proof);
        let (theirs, verdict) = (said[0], said[1]);
        let refused = match verdict {
            AGREED if theirs == self.protection.number() => None,
            DIFFERS if theirs != self.protection.number() => Some(self.protection.differs(theirs)),
            OTHER_KEY if matches!(self.protection, Protection::Encrypted(_)) => Some(Refused::OtherKey),
            _ => return Err(Refused::Stranger),
        };
        if refused.is_none() && self.noise.is_some() && !self.read_noise(&said[2 + NONCE..]) {
            return Err(Refused::Stranger);
        }
        let mut last = [0; PROOF_BYTES];
        last[..PROOF].copy_from_slice(&self.own_proof(CONNECTS));
        if refused.is_none() {
            self.begin_session()?;
        }
        if let Some(session) = &mut self.session {
            // That it has the keys of this connection, and not only a recorded first message.
            session.0.write_message(&[], &mut last[PROOF..]).map_err(|_| Refused::Stranger)?;
        }
        self.output.extend_from_slice(&last);
        refused.map_or(Ok(true), Err)
    }

    /// The proof, to who accepts.
    fn proof(&mut self, last: &[u8], refused: Option<Refused>) -> Result<bool, Refused> {
        let (proof, confirmation) = last.split_at(PROOF);
        self.check_proof(CONNECTS, proof)?;
        if let Some(refused) = refused {
            return Err(refused);
        }
        self.begin_session()?;
        let confirmed = match &mut self.session {
            Some(session) => session.0.read_message(confirmation, &mut [0; TAG]).is_ok(),
            None => confirmation == [0; TAG],
        };
        if confirmed { Ok(true) } else { Err(Refused::Stranger) }
    }

    /// Both messages of Noise have gone.
    fn begin_session(&mut self) -> Result<(), Refused> {
        if let Some(noise) = self.noise.take() {
            let session = noise.into_transport_mode().map_err(|_| Refused::Stranger)?;
            self.session = Some(Box::new(Session(session)));
        }
        Ok(())
    }

    /// Sends something in plain, which the proofs cover.
    fn say(&mut self, bytes: &[u8]) {
        self.transcript.extend_from_slice(bytes);
        self.output.extend_from_slice(bytes);
    }

    /// The keyed hash of all that has gone over the connection, as a side makes it.
    fn hash(&self, side: u8) -> (hmac::Key, Vec<u8>) {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.secret.bytes());
        (key, [&[side], &self.transcript[..]].concat())
    }

    fn own_proof(&self, side: u8) -> [u8; PROOF] {
        let (key, message) = self.hash(side);
        let mut proof = [0; PROOF];
        proof.copy_from_slice(hmac::sign(&key, &message).as_ref());
        proof
    }

    /// Compares in a time that does not depend on where the two differ.
    fn check_proof(&self, side: u8, proof: &[u8]) -> Result<(), Refused> {
        let (key, message) = self.hash(side);
        hmac::verify(&key, &message, proof).map_err(|_| Refused::Stranger)
    }

    fn write_noise(&mut self) -> [u8; NOISE] {
        let mut message = [0; NOISE];
        if let Some(noise) = &mut self.noise {
            // Nothing of it can fail: the pattern has this message, and it is this long.
            let _ = noise.write_message(&[], &mut message);
        }
        message
    }

    fn read_noise(&mut self, message: &[u8]) -> bool {
        self.noise.as_mut().is_some_and(|noise| noise.read_message(message, &mut []).is_ok())
    }
}

/// The machine of Noise for one side; none: never, the pattern is known.
fn noise(connects: bool, context: &[u8], key: &Secret, ephemeral: Zeroizing<[u8; 32]>) -> Option<Box<HandshakeState>> {
    let params: NoiseParams = PATTERN.parse().ok()?;
    let builder = Builder::with_resolver(params, Box::new(Primitives(ephemeral)));
    let builder = builder.prologue(context).ok()?.psk(0, key.bytes()).ok()?;
    let built = if connects { builder.build_initiator() } else { builder.build_responder() };
    built.ok().map(Box::new)
}

/// ring's primitives where it has them, and the random bytes that were given.
struct Primitives(Zeroizing<[u8; 32]>);

/// 32 random bytes, once.
struct GivenBytes(Option<Zeroizing<[u8; 32]>>);

impl Random for GivenBytes {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), snow::Error> {
        let bytes = self.0.take().ok_or(snow::Error::Rng)?;
        out.copy_from_slice(bytes.get(..out.len()).ok_or(snow::Error::Rng)?);
        Ok(())
    }
}

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(GivenBytes(Some(self.0.clone()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}
