//! The unique id: 128 bytes that one process makes and the application hands to every rank.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | the run's magic, native byte order |
//! | 8..36 | the root's address, laid out like the union of `sockaddr_in` and `sockaddr_in6` |
//! | 36..40 | zero |
//! | 40..45 | `oxccl` |
//! | 45 | version of this layout |
//! | 46 | flags: bit 0 = the address is fixed by `NCCL_COMM_ID`, bit 1 = it is for one grow of a communicator |
//! | 47 | zero |
//! | 48..56 | token: what the members' connections among themselves begin with |
//! | 56..64 | for a grow: the hash of the communicator that grows, else zero |
//! | 64..68 | for a grow: how many communicators it had derived before, else zero |
//! | 68..100 | the secret that shows that somebody has this id ([`crate::secure`]) |
//! | 100..128 | zero |
//!
//! Magic and address stand where NVIDIA's library has them, so that a rank that runs
//! NVIDIA's library by mistake connects to our root and is recognised there, instead of hanging
//! somewhere else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::error::Error;
use crate::secure::Secret;

const MARKER: &[u8; 5] = b"oxccl";
const VERSION: u8 = 2;
const FLAG_FIXED: u8 = 1;
const FLAG_GROW: u8 = 2;
const FAMILY_INET: u16 = 2;
const FAMILY_INET6: u16 = 10;
/// Where the secret is.
const SECRET: std::ops::Range<usize> = 68..100;
/// Bytes of the address union.
const ADDRESS_BYTES: usize = 28;

/// What `ncclGetUniqueId` returns: opaque for the application, made by [`crate::bootstrap::create_id`]. It has the
/// layout of `ncclUniqueId`, which C passes by value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UniqueId(0x{:016x})", self.hash64())
    }
}

impl UniqueId {
    /// A 64-bit hash of the id without its secret (FNV-1a): the `commId` of log lines.
    pub fn hash64(&self) -> u64 {
        let mut shown = self.0;
        shown[SECRET].fill(0);
        fnv1a(&shown)
    }
}

/// Where several ids may stand, one can.
impl AsRef<[UniqueId]> for UniqueId {
    fn as_ref(&self) -> &[UniqueId] {
        std::slice::from_ref(self)
    }
}

/// What an id says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdParts {
    /// The first eight bytes of every connection to the root.
    pub magic: u64,
    /// Where the root listens.
    pub root: SocketAddr,
    /// The address comes from `NCCL_COMM_ID`: rank 0 starts the root, and it may come late.
    pub fixed: bool,
    /// A second random number, which NVIDIA's library would not know.
    pub token: u64,
    /// The grow that it is for, if it is for one.
    pub grow: Option<Growth>,
    /// What every process of the run knows, and nobody else.
    pub secret: Secret,
}

/// Which grow an id is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The hash of the communicator that grows.
    pub parent: u64,
    /// How many communicators it had derived before.
    pub count: u32,
}

impl IdParts {
    /// Writes the id.
    pub fn encode(&self) -> UniqueId {
        let mut id = [0u8; 128];
        id[0..8].copy_from_slice(&self.magic.to_ne_bytes());
        id[8..8 + ADDRESS_BYTES].copy_from_slice(&encode_address(self.root));
        id[40..45].copy_from_slice(MARKER);
        id[45] = VERSION;
        id[46] = if self.fixed { FLAG_FIXED } else { 0 } | if self.grow.is_some() { FLAG_GROW } else { 0 };
        id[48..56].copy_from_slice(&self.token.to_ne_bytes());
        if let Some(Growth { parent, count }) = self.grow {
            id[56..64].copy_from_slice(&parent.to_ne_bytes());
            id[64..68].copy_from_slice(&count.to_ne_bytes());
        }
        id[SECRET].copy_from_slice(self.secret.bytes());
        UniqueId(id)
    }

    /// Reads an id.
    ///
    /// # Errors
    /// `InvalidUsage` for an id that another library (or another release of this one) made,
    /// `InvalidArgument` for bytes that no library made.
    pub fn decode(id: &UniqueId) -> Result<IdParts, Error> {
        let bytes = &id.0;
        let address = decode_address(&bytes[8..8 + ADDRESS_BYTES]);
        if &bytes[40..45] != MARKER {
            return Err(foreign(address));
        }
        if bytes[45] != VERSION {
            return Err(Error::InvalidUsage(format!(
                "this ncclUniqueId has layout {} and this oxccl reads layout {VERSION}: the process that made it runs another release of oxccl",
                bytes[45]
            )));
        }
        let Some(root) = address else {
            return Err(garbage("it has oxccl's marker but no address"));
        };
        let flags = bytes[46];
        let grows = flags & FLAG_GROW != 0;
        let unused = bytes[36..40].iter().chain(&bytes[if grows { 68 } else { 56 }..68]).chain(&bytes[SECRET.end..]);
        let zero = unused.copied().all(|byte| byte == 0);
        if !zero || flags & !(FLAG_FIXED | FLAG_GROW) != 0 || bytes[47] != 0 {
            return Err(garbage("bytes that must be zero are not"));
        }
        let count = u32::from_ne_bytes([bytes[64], bytes[65], bytes[66], bytes[67]]);
        let grow = grows.then(|| Growth { parent: word(&bytes[56..64]), count });
        Ok(IdParts {
            magic: word(&bytes[0..8]),
            root,
            fixed: flags & FLAG_FIXED != 0,
            token: word(&bytes[48..56]),
            grow,
            secret: Secret::new(bytes[SECRET].try_into().unwrap_or_default()),
        })
    }
}

/// The error for an id without our marker.
fn foreign(address: Option<SocketAddr>) -> Error {
    match address {
        Some(address) => Error::InvalidUsage(format!(
            "this ncclUniqueId was not made by oxccl (it points to {}): does the rank that made it run another library, because LD_PRELOAD or \
             LD_LIBRARY_PATH is missing there?",
            show(address)
        )),
        None => garbage("it was not made by ncclGetUniqueId, or was damaged on its way to this rank"),
    }
}

fn garbage(why: &str) -> Error {
    Error::InvalidArgument(format!("invalid ncclUniqueId: {why}"))
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0u8; 8];
    word.copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

/// The layout of Linux's `sockaddr_in` and `sockaddr_in6`: family in host order, port in network order.
fn encode_address(address: SocketAddr) -> [u8; ADDRESS_BYTES] {
    let mut out = [0u8; ADDRESS_BYTES];
    out[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            out[0..2].copy_from_slice(&FAMILY_INET.to_ne_bytes());
            out[4..8].copy_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            out[0..2].copy_from_slice(&FAMILY_INET6.to_ne_bytes());
            out[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            out[8..24].copy_from_slice(&v6.ip().octets());
            out[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    out
}

/// The reverse of [`encode_address`]; `None` where there is no usable address.
fn decode_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let address = match family {
        FAMILY_INET if bytes[8..16].iter().all(|b| *b == 0) => {
            SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]), port))
        }
        FAMILY_INET6 => {
            let mut octets = [0u8; 16];
            octets.copy_from_slice(&bytes[8..24]);
            let flow = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let scope = u32::from_ne_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
            SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(octets), port, flow, scope))
        }
        _ => return None,
    };
    (port != 0 && !address.ip().is_unspecified()).then_some(address)
}

/// FNV-1a over 64 bits.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// An address as NCCL prints it: `10.0.0.1<4000>`.
pub fn show(address: SocketAddr) -> String {
    format!("{}<{}>", show_ip(address.ip()), address.port())
}

/// The address part alone; an IPv4 address that IPv6 carries is printed as IPv4.
pub fn show_ip(ip: IpAddr) -> String {
    ip.to_canonical().to_string()
}
