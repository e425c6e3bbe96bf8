//! What a communicator takes from the environment, and what its ranks must agree on.

use std::sync::{Once, OnceLock};
use std::time::Duration;

use crate::bootstrap::{self, CommId, Family, InterfaceFilter, NetConfig, UniqueId};
use crate::device;
use crate::error::Error;
use crate::params::{self, Key, Snapshot};
use crate::plan::call::Func;
use crate::plan::cost::Candidates;
use crate::plan::layout::Proto;
use crate::sys;
use crate::transport::{self, PeerFacts};

use super::{Config, filter};

/// Channels on a software device: its kernels share the processors with the ranks themselves.
const CHANNELS_SOFTWARE: u32 = 1;
/// Channels on a GPU.
const CHANNELS_GPU: u32 = 8;
/// The most channels: a launch's argument has room for 15 work items.
const CHANNELS_MAX: u32 = 8;
/// Slot bytes by default: 256 KiB measured best on host memory (`NCCL_BUFFSIZE` is 8 slots).
const SLOT_BYTES: u32 = 256 << 10;
/// The smallest and the largest slot in bytes.
const SLOT_RANGE: (i64, i64) = (4 << 10, 64 << 20);
/// Communicators of a device and process that have slots of full size; twice as many have half.
const FULL_SIZE_COMMS: usize = 8;
/// The least size of a slot that the number of communicators leads to, in bytes: of a ring, and of other links.
const SMALL_SLOT: (u32, u32) = (16 << 10, 4 << 10);
/// The least compute capability for LL128, major × 10 + minor.
const LL128_CAPABILITY: i32 = 70;
/// Settings on which ranks should agree: a difference is a warning that names rank and variable.
const AGREE: [Key; 7] = [
    params::ALGO,
    params::PROTO,
    params::BUFFSIZE,
    params::P2P_DISABLE,
    params::SHM_DISABLE,
    params::MIN_NCHANNELS,
    params::MAX_NCHANNELS,
];

/// The settings that creation uses.
pub(super) struct Settings {
    pub net: NetConfig,
    pub host_id: Option<String>,
    pub p2p_disabled: bool,
    pub shm_disabled: bool,
    pub registers: bool,
    pub multi_rank_device: bool,
    /// What `NCCL_BUFFSIZE` says.
    slot_bytes: Option<u32>,
    /// By place in [`filter::FUNCTIONS`].
    pub candidates: [Candidates; filter::FUNCTIONS.len()],
    /// `NCCL_PROTO` says something.
    asks_protos: bool,
    pub agreement: Vec<(String, String)>,
    channels: Range,
}

/// Limits from `NCCL_MIN_NCHANNELS` and `NCCL_MAX_NCHANNELS`, or their old names.
struct Range {
    low: u32,
    high: u32,
}

/// What all ranks do alike, computed by each from the same facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The number of channels.
    pub channels: u32,
    /// The size of a slot of a ring in bytes.
    pub slot_bytes: u32,
    /// How often the size of other slots is halved.
    pub halvings: u32,
    /// What the filters leave, by place in [`filter::FUNCTIONS`].
    pub candidates: [Candidates; filter::FUNCTIONS.len()],
    /// The most ranks for each processor on any host.
    pub oversubscription: u32,
    /// Every rank can map the registered buffers of every other one, and may.
    pub maps_buffers: bool,
}

impl Agreed {
    /// The candidates of a function. Functions without a choice of algorithms use Simple, but
    /// for where only LL is left to all others.
    pub(super) fn candidates(&self, func: Func) -> Candidates {
        let place = filter::FUNCTIONS.iter().position(|known| *known == func);
        let protos = self.protos();
        let simple = 1 << Proto::Simple as u8;
        let other =
            Candidates { algos: Candidates::ALL.algos, protos: if protos & simple != 0 { simple } else { protos } };
        place.map_or(other, |place| self.candidates[place])
    }

    /// The size of a slot that is no ring's, where it would be `bytes`: less in processes with many communicators, and
    /// not more than a ring's.
    pub(super) fn small_slot(&self, bytes: u32) -> u32 {
        halved(bytes, self.halvings, SMALL_SLOT.1).min(self.slot_bytes)
    }

    /// The protocols that any function may use: bits `1 << proto`.
    pub(super) fn protos(&self) -> u8 {
        self.candidates.iter().fold(0, |all, candidates| all | candidates.protos)
    }
}

impl Settings {
    /// Reads the settings as they hold now.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an address that cannot be understood, [`Error::InvalidUsage`] for an unknown
    /// word in `NCCL_ALGO` or `NCCL_PROTO`.
    pub(super) fn read() -> Result<Settings, Error> {
        let params = params::snapshot();
        let told = Some(params.int(params::BUFFSIZE))
            .filter(|bytes| *bytes > 0)
            .map(|bytes| bytes / crate::plan::SLOTS as i64);
        Ok(Settings {
            net: net_config(&params)?,
            host_id: params.text(params::HOSTID).map(str::to_string),
            p2p_disabled: params.flag(params::P2P_DISABLE),
            shm_disabled: params.flag(params::SHM_DISABLE),
            registers: params.flag(params::LOCAL_REGISTER),
            multi_rank_device: params.flag(params::MULTI_RANK_GPU_ENABLE),
            candidates: candidates(&params)?,
            asks_protos: !params.text(params::PROTO).unwrap_or("").trim().is_empty(),
            slot_bytes: told.map(|slot| (slot.clamp(SLOT_RANGE.0, SLOT_RANGE.1) as u32).next_multiple_of(4096)),
            agreement: AGREE
                .iter()
                .map(|key| (key.param().name.to_string(), params.text(*key).unwrap_or("").to_string()))
                .collect(),
            channels: Range::read(&params),
        })
    }

    /// What this rank's filters leave, for [`PeerFacts::candidates`].
    pub(super) fn usable_candidates(&self, capability: i32, software: bool) -> Vec<(u8, u8)> {
        usable(self.candidates, self.asks_protos, capability, software)
            .iter()
            .map(|candidates| (candidates.algos, candidates.protos))
            .collect()
    }

    /// The size of a ring's slot, in bytes, that this rank would like.
    pub(super) fn slot_bytes(&self, halvings: u32) -> u32 {
        self.slot_bytes.unwrap_or_else(|| halved(SLOT_BYTES, halvings, SMALL_SLOT.0))
    }

    /// The number of channels that this rank would like.
    pub(super) fn channels(&self, config: &Config, software: bool) -> u32 {
        let preferred = if software { CHANNELS_SOFTWARE } else { CHANNELS_GPU };
        let low = self.channels.low.max(u32::try_from(config.min_ctas).unwrap_or(1));
        let high = self.channels.high.min(u32::try_from(config.max_ctas).unwrap_or(CHANNELS_MAX));
        preferred.max(low).min(high).clamp(1, CHANNELS_MAX)
    }
}

/// How often slots are halved where a process has so many communicators on a device.
pub(super) fn halvings(comms: usize) -> u32 {
    comms.div_ceil(FULL_SIZE_COMMS).max(1).next_power_of_two().ilog2()
}

/// A slot's size in bytes halved some times, in whole pages, and not below `least` unless it was before.
fn halved(bytes: u32, halvings: u32, least: u32) -> u32 {
    let bytes_halved = bytes.checked_shr(halvings).unwrap_or(0);
    (bytes_halved - bytes_halved % 4096).max(least.min(bytes))
}

impl Range {
    fn read(params: &Snapshot) -> Range {
        let one = |new: Key, old: Key| {
            params.set_int(new).or(params.set_int(old)).and_then(|number| u32::try_from(number).ok())
        };
        Range {
            low: one(params::MIN_NCHANNELS, params::MIN_NRINGS).unwrap_or(1),
            high: one(params::MAX_NCHANNELS, params::MAX_NRINGS).unwrap_or(CHANNELS_MAX),
        }
    }
}

/// What `NCCL_ALGO` and `NCCL_PROTO` leave to each function. No protocol means that the words leave none that is
/// built.
fn candidates(params: &Snapshot) -> Result<[Candidates; filter::FUNCTIONS.len()], Error> {
    let text = |key: Key| params.text(key).unwrap_or("");
    let refuse = |key: Key, why: String| Error::InvalidUsage(format!("{}={}: {why}", key.param().name, text(key)));
    let mut all = [Candidates::ALL; filter::FUNCTIONS.len()];
    for (candidates, func) in all.iter_mut().zip(filter::FUNCTIONS) {
        candidates.algos = filter::algorithms(text(params::ALGO), func).map_err(|why| refuse(params::ALGO, why))?;
        candidates.protos = filter::protocols(text(params::PROTO), func).map_err(|why| refuse(params::PROTO, why))?;
    }
    Ok(all)
}

/// What a device can do of what the words leave. The software device has no LL128: a host's stores to a line of 128
/// bytes are several; and so are those of GPUs before compute capability 7.0. Where nobody asks, LL128 is not used at
/// all, and LL not on the software device, where it gains nothing.
fn usable(
    mut candidates: [Candidates; filter::FUNCTIONS.len()],
    asked: bool,
    capability: i32,
    software: bool,
) -> [Candidates; filter::FUNCTIONS.len()] {
    let (simple, ll, ll128) = (1 << Proto::Simple as u8, 1 << Proto::Ll as u8, 1 << Proto::Ll128 as u8);
    for candidates in &mut candidates {
        match (asked, software) {
            (false, true) => candidates.protos = simple,
            (false, false) => candidates.protos = simple | ll,
            (true, true) if candidates.protos == ll128 => {
                simple_instead(candidates, "only LL128, which the software device does not have")
            }
            (true, false) if candidates.protos == ll128 && capability < LL128_CAPABILITY => {
                simple_instead(candidates, "only LL128, which needs a GPU of compute capability 7.0 or later");
            }
            (true, _) if candidates.protos == 0 => simple_instead(candidates, "no protocol"),
            _ => {}
        }
        if software || capability < LL128_CAPABILITY {
            candidates.protos &= !ll128;
        }
    }
    candidates
}

/// Simple, in place of what `NCCL_PROTO` leaves; told once.
fn simple_instead(candidates: &mut Candidates, left: &str) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| log::warn!("NCCL_PROTO leaves {left}; using Simple"));
    candidates.protos = 1 << Proto::Simple as u8;
}

fn net_config(params: &Snapshot) -> Result<NetConfig, Error> {
    let (interfaces, warnings) = InterfaceFilter::parse(params.text(params::SOCKET_IFNAME).unwrap_or(""));
    for warning in warnings {
        log::warn!("NCCL_SOCKET_IFNAME: {warning}");
    }
    let seconds =
        |key: Key| u64::try_from(params.int(key)).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let defaults = NetConfig::default();
    Ok(NetConfig {
        interfaces,
        family: params.text(params::SOCKET_FAMILY).and_then(Family::parse),
        comm_id: params.text(params::COMM_ID).map(CommId::parse).transpose()?,
        magic: params.set_int(params::SOCKET_MAGIC).map(|magic| magic as u64),
        retry_count: u32::try_from(params.int(params::SOCKET_RETRY_CNT)).unwrap_or(defaults.retry_count),
        retry_sleep: Duration::from_millis(u64::try_from(params.int(params::SOCKET_RETRY_SLEEP_MSEC)).unwrap_or(100)),
        timeout: seconds(params::BOOTSTRAP_TIMEOUT),
        progress: seconds(params::BOOTSTRAP_PROGRESS).unwrap_or(defaults.progress),
        ..defaults
    })
}

/// Makes an id and starts the root that ranks will meet at (`ncclGetUniqueId`).
pub fn unique_id() -> Result<UniqueId, Error> {
    bootstrap::create_id(&net_config(&params::snapshot())?)
}

/// The devices 0 to `count` - 1, which stand for no list in `ncclCommInitAll`.
///
/// # Errors
/// [`Error::InvalidArgument`] for more devices than there are.
pub fn first_devices(count: i32) -> Result<Vec<i32>, Error> {
    let there = device::device_count()?;
    match (0..=there).contains(&count) {
        true => Ok((0..count).collect()),
        false => Err(Error::InvalidArgument(format!("Invalid device count requested : {count} (totalnDev={there})"))),
    }
}

/// Checks the devices of `ncclCommInitAll` (spec §3.2).
///
/// # Errors
/// [`Error::InvalidArgument`] for an ordinal that does not exist or an empty list,
/// [`Error::InvalidUsage`] for one that is named twice.
pub fn check_device_list(devices: &[i32]) -> Result<(), Error> {
    let count = device::device_count()?;
    if devices.is_empty() {
        return Err(Error::InvalidArgument("Invalid device count requested : 0".to_string()));
    }
    let twice_allowed = params::snapshot().flag(params::MULTI_RANK_GPU_ENABLE);
    for (place, device) in devices.iter().enumerate() {
        if !(0..count).contains(device) {
            return Err(Error::InvalidArgument(format!("Invalid device {device} (totalnDev={count})")));
        }
        if !twice_allowed && devices[..place].contains(device) {
            return Err(Error::InvalidUsage(format!(
                "ncclCommInitAll: device {device} is named twice; set NCCL_MULTI_RANK_GPU_ENABLE=1 to allow it"
            )));
        }
    }
    Ok(())
}

/// A random number of this process, by which ranks know that they are threads of one process.
pub(super) fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(sys::random)
}

/// Refuses two ranks on one device, as NCCL does, unless the user allows it.
pub(super) fn check_devices(peers: &[PeerFacts], me: u32, allowed: bool) -> Result<(), Error> {
    if allowed {
        return Ok(());
    }
    let mut seen = std::collections::HashMap::new();
    for peer in peers {
        let device = (&peer.host.name, &peer.host.boot_id, peer.uuid);
        if let Some(first) = seen.insert(device, peer.rank) {
            return Err(Error::InvalidUsage(format!(
                "Duplicate GPU detected : rank {first} and rank {} both on CUDA device {:x} of {} (seen by rank {me}); give each rank its own device, or set NCCL_MULTI_RANK_GPU_ENABLE=1",
                peer.rank, peer.bus_id, peer.host.name
            )));
        }
    }
    Ok(())
}

/// What all ranks will do: nobody gets more channels or larger slots than it asked for, and a way is open where all
/// leave it open (a difference between the variables has been warned of).
pub(super) fn agree(peers: &[PeerFacts]) -> Agreed {
    let mut candidates = [Candidates::ALL; filter::FUNCTIONS.len()];
    for (place, common) in candidates.iter_mut().enumerate() {
        for peer in peers {
            let theirs = peer.candidates.get(place).copied().unwrap_or((0, 0));
            *common = Candidates { algos: common.algos & theirs.0, protos: common.protos & theirs.1 };
        }
        if common.protos == 0 {
            common.protos = 1 << Proto::Simple as u8;
        }
    }
    let mut agreed = Agreed {
        channels: peers.iter().map(|peer| peer.channels).min().unwrap_or(1),
        slot_bytes: peers.iter().map(|peer| peer.slot_bytes).min().unwrap_or(SLOT_BYTES),
        halvings: peers.iter().map(|peer| peer.halvings).max().unwrap_or(0),
        candidates,
        oversubscription: peers.iter().map(|peer| oversubscription(peers, peer)).max().unwrap_or(1),
        maps_buffers: peers.iter().all(|peer| peer.registers) && all_pairs(peers, transport::maps_buffers),
    };
    if agreed.protos() & 1 << Proto::Ll128 as u8 != 0 && !all_pairs(peers, transport::keeps_lines_whole) {
        without_whole_lines(&mut agreed);
    }
    agreed
}

fn all_pairs(peers: &[PeerFacts], hold: fn(&PeerFacts, &PeerFacts) -> bool) -> bool {
    peers.iter().enumerate().all(|(at, a)| peers[..at].iter().all(|b| hold(a, b)))
}

/// Takes away what needs peer memory, which has turned out not to work.
pub(super) fn without_peer_memory(agreed: &mut Agreed) {
    agreed.maps_buffers = false;
    without_whole_lines(agreed);
}

/// Ranks for each processor where a rank is.
fn oversubscription(peers: &[PeerFacts], at: &PeerFacts) -> u32 {
    let here = peers.iter().filter(|peer| peer.host.same_host(&at.host));
    let (ranks, cpus) = here.fold((0u32, u32::MAX), |(ranks, cpus), peer| (ranks + 1, cpus.min(peer.cpus)));
    ranks.div_ceil(cpus.max(1))
}

/// Takes LL128 away: a link may be in other memory than a peer device's that is reached over NVLink.
fn without_whole_lines(agreed: &mut Agreed) {
    let ll128 = 1 << Proto::Ll128 as u8;
    for candidates in &mut agreed.candidates {
        if candidates.protos == ll128 {
            simple_instead(candidates, "only LL128, which needs NVLink between all devices");
        }
        candidates.protos &= !ll128;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::HostFacts;

    const SIMPLE: u8 = 1 << Proto::Simple as u8;
    const LL: u8 = 1 << Proto::Ll as u8;
    const LL128: u8 = 1 << Proto::Ll128 as u8;

    /// Two processes of one host with a device each.
    fn peers(protos: u8) -> Vec<PeerFacts> {
        let one = |rank: u32| PeerFacts {
            rank,
            host: HostFacts {
                name: "a".into(),
                boot_id: "b".into(),
                network_namespace: 1,
                pid_namespace: 2,
                pid: rank,
            },
            process: u64::from(rank),
            device: rank as i32,
            context: 0,
            uuid: [rank as u8; 16],
            bus_id: u64::from(rank),
            capability: 90,
            reachable: vec![[0; 16], [1; 16]],
            linked: vec![[0; 16], [1; 16]],
            location: crate::proxy::Location { mailbox: [rank as u8; 16], tcp: None },
            links: u64::from(rank),
            p2p_disabled: false,
            shm_disabled: false,
            registers: true,
            channels: 2 + rank,
            slot_bytes: 8192 >> rank,
            halvings: rank,
            candidates: vec![(!0, protos); filter::FUNCTIONS.len()],
            cpus: 2 - rank,
        };
        (0..2).map(one).collect()
    }

    #[test]
    fn slots_shrink_with_the_number_of_communicators() {
        assert_eq!([0, 1, 8, 9, 16, 17, 32, 1000].map(halvings), [0, 0, 0, 1, 1, 2, 2, 7]);
        let ring = |comms| halved(SLOT_BYTES, halvings(comms), SMALL_SLOT.0);
        assert_eq!([8, 9, 40, 100, 1 << 30].map(|comms| ring(comms) >> 10), [256, 128, 32, 16, 16]);
        assert_eq!([0, 1, 2, 9].map(|halvings| halved(20 << 10, halvings, 4 << 10) >> 10), [20, 8, 4, 4]);
        let agreed = agree(&peers(SIMPLE));
        assert_eq!((agreed.halvings, agreed.small_slot(16 << 10), agreed.small_slot(4 << 10)), (1, 4096, 4096));
    }

    #[test]
    fn a_way_is_open_where_all_leave_it_open() {
        for protos in [SIMPLE, LL, SIMPLE | LL, LL128, SIMPLE | LL | LL128] {
            let agreed = agree(&peers(protos));
            assert_eq!(
                (agreed.channels, agreed.slot_bytes, agreed.oversubscription, agreed.protos()),
                (2, 4096, 2, protos)
            );
        }
        let mut mixed = peers(LL);
        mixed[1].candidates = vec![(!0, SIMPLE); filter::FUNCTIONS.len()];
        assert_eq!(agree(&mixed).protos(), SIMPLE);
        mixed[1].candidates = Vec::new();
        assert_eq!(agree(&mixed).protos(), SIMPLE);
    }

    #[test]
    fn buffers_are_mapped_where_all_may() {
        let agreed = |change: fn(&mut PeerFacts)| {
            let mut all = peers(SIMPLE);
            change(&mut all[1]);
            agree(&all).maps_buffers
        };
        assert!(agreed(|peer| peer.linked.clear()));
        assert!(!agreed(|peer| peer.registers = false));
        assert!(!agreed(|peer| peer.p2p_disabled = true));
        assert!(!agreed(|peer| peer.host.boot_id = "c".into()));
    }

    #[test]
    fn functions_without_a_choice_use_simple_if_there_is_any() {
        assert_eq!(agree(&peers(SIMPLE | LL)).candidates(Func::AlltoAll).protos, SIMPLE);
        assert_eq!(agree(&peers(LL)).candidates(Func::Gather).protos, LL);
    }

    #[test]
    fn ll128_needs_lines_that_arrive_whole() {
        let agreed = |protos: u8, change: fn(&mut PeerFacts)| {
            let mut all = peers(protos);
            change(&mut all[1]);
            agree(&all).protos()
        };
        assert_eq!(agreed(LL128, |_| {}), LL128);
        // Over PCIe, in shared memory, and on two hosts.
        assert_eq!(agreed(LL128, |peer| peer.linked = vec![peer.uuid]), SIMPLE);
        assert_eq!(agreed(LL128, |peer| peer.p2p_disabled = true), SIMPLE);
        assert_eq!(agreed(LL128 | LL, |peer| peer.host.boot_id = "c".into()), LL);
        // Two ranks on one device.
        assert_eq!(agreed(LL128, |peer| (peer.uuid, peer.linked) = ([0; 16], vec![[0; 16]])), LL128);
    }
}
