//! Secrets, and what is derived from them.

use std::fmt;

use parking_lot::Mutex;
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use zeroize::Zeroizing;

/// What all derivations begin with. Another version of the handshake has another one.
const LABEL: &[u8] = b"oxccl 2 ";

/// The key that the program has set for connections made from now on. It is the process's, as the interface has it.
static USER_KEY: Mutex<Option<UserKey>> = Mutex::new(None);

/// A secret that both ends of a connection have. It is wiped when it goes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<[u8; 32]>);

/// The key that a program has set by `ncclSetEncryption`: what is derived from it alone is kept. Wiped when it goes.
#[derive(Clone, PartialEq, Eq)]
pub struct UserKey(Secret);

/// How what follows a handshake is protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Not at all: the ends alone are known.
    Plain,
    /// Sealed by keys that come from the connection's secret.
    Sealed,
    /// Sealed by keys that come from the connection's secret and from the user's key.
    Encrypted(UserKey),
}

struct Bytes32;

impl KeyType for Bytes32 {
    fn len(&self) -> usize {
        32
    }
}

impl Secret {
    /// A secret of 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> Secret {
        Secret(Zeroizing::new(bytes))
    }

    /// A secret from anything: it is worth what that is worth.
    pub fn of(bytes: &[u8], purpose: &[u8]) -> Secret {
        let key = Salt::new(HKDF_SHA256, LABEL).extract(bytes);
        let mut out = Zeroizing::new([0; 32]);
        // It cannot fail: 32 bytes are few.
        if let Ok(filled) = key.expand(&[purpose], Bytes32) {
            let _ = filled.fill(&mut *out);
        }
        Secret(out)
    }

    /// Another secret for a purpose, which tells nothing of this one.
    pub fn derive(&self, purpose: &[u8]) -> Secret {
        Secret::of(&*self.0, purpose)
    }

    /// The bytes, for who passes it on under protection.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl UserKey {
    /// Of what the user has set.
    pub fn new(text: &[u8]) -> UserKey {
        UserKey(Secret::of(text, b"user key"))
    }

    /// A number by which keys are told apart within a process. It tells nothing of the key.
    pub fn fingerprint(&self) -> u128 {
        let secret = self.0.derive(b"fingerprint");
        u128::from_le_bytes(secret.bytes()[..16].try_into().unwrap_or_default())
    }

    /// A connection's key from its secret and this one.
    pub(super) fn with(&self, secret: &Secret) -> Secret {
        let both = Zeroizing::new([*secret.bytes(), *self.0.bytes()].concat());
        Secret::of(&both, b"encrypted")
    }
}

impl fmt::Debug for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserKey")
    }
}

/// Sets the key for connections of communicators and ids that are made from now on; none: there is no encryption.
pub fn set_user_key(key: Option<UserKey>) {
    *USER_KEY.lock() = key;
}

/// The key that is set.
pub fn user_key() -> Option<UserKey> {
    USER_KEY.lock().clone()
}
