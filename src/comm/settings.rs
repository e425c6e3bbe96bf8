//! What a communicator takes from the environment.

use std::time::Duration;

use crate::bootstrap::protocol::roots::Algorithm;
use crate::bootstrap::{self, Advertise, CommId, Family, InterfaceFilter, NetConfig, UniqueId};
use crate::error::Error;
use crate::params::{self, Key, Snapshot};
use crate::secure;
use crate::tuning::{self, Filters};

use super::{Config, peers};

/// Settings on which ranks should agree: a difference is a warning that names rank and variable.
const AGREE: [Key; 8] = [
    params::ALGO,
    params::PROTO,
    params::BUFFSIZE,
    params::P2P_DISABLE,
    params::P2P_LEVEL,
    params::SHM_DISABLE,
    params::MIN_NCHANNELS,
    params::MAX_NCHANNELS,
];

/// The settings that creation uses.
pub(super) struct Settings {
    pub net: NetConfig,
    pub host_id: Option<String>,
    pub registers: bool,
    pub multi_rank_device: bool,
    /// What `NCCL_BUFFSIZE` says.
    slot_bytes: Option<u32>,
    /// What `NCCL_ALGO` and `NCCL_PROTO` leave.
    filters: Filters,
    /// `NCCL_PROTO` says something.
    asks_protocols: bool,
    pub agreement: Vec<(String, String)>,
    /// What `NCCL_NTHREADS` says.
    pub block_threads: i64,
    channels: Range,
    /// What `NCCL_NCHANNELS_PER_PEER` says.
    message_channels: Option<u32>,
    /// What `NCCL_P2P_LL_THRESHOLD` says: the largest message that goes by LL, in bytes.
    pub message_line_bytes: u64,
}

/// Limits from `NCCL_MIN_NCHANNELS` and `NCCL_MAX_NCHANNELS`, or their old names.
struct Range {
    low: u32,
    high: u32,
}

impl Settings {
    /// Reads the settings as they hold now.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an address that cannot be understood, [`Error::InvalidUsage`] for an unknown
    /// word in `NCCL_ALGO` or `NCCL_PROTO`.
    pub(super) fn read() -> Result<Settings, Error> {
        let params = params::snapshot();
        let text = |key: Key| params.text(key).unwrap_or("");
        let told = Some(params.int(params::BUFFSIZE))
            .filter(|bytes| *bytes > 0)
            .map(|bytes| bytes / crate::plan::SLOTS as i64);
        Ok(Settings {
            net: net_config(&params)?,
            host_id: params.text(params::HOSTID).map(str::to_string),
            registers: params.flag(params::LOCAL_REGISTER),
            multi_rank_device: params.flag(params::MULTI_RANK_GPU_ENABLE),
            filters: Filters::parse(text(params::ALGO), text(params::PROTO))?,
            asks_protocols: !text(params::PROTO).trim().is_empty(),
            slot_bytes: told.map(tuning::valid_slot_bytes),
            agreement: AGREE.iter().map(|key| (key.param().name.to_string(), text(*key).to_string())).collect(),
            channels: Range::read(&params),
            block_threads: params.int(params::NTHREADS),
            message_channels: params.set_int(params::NCHANNELS_PER_PEER).and_then(|number| u32::try_from(number).ok()),
            message_line_bytes: u64::try_from(params.int(params::P2P_LL_THRESHOLD)).unwrap_or(0),
        })
    }

    /// What this rank's filters leave that its device can do, for [`crate::tuning::Preferences::candidates`].
    pub(super) fn usable_candidates(&self, capability: i32, software: bool) -> Vec<(u8, u8)> {
        let (filters, simple_instead) = self.filters.usable(self.asks_protocols, capability, software);
        peers::warn_of_simple(simple_instead);
        filters.as_bits()
    }

    /// The size of a ring's slot, in bytes, that this rank would like.
    pub(super) fn slot_bytes(&self, halvings: u32) -> u32 {
        self.slot_bytes.unwrap_or_else(|| tuning::preferred_slot_bytes(halvings))
    }

    /// The number of channels for messages between two ranks that this rank would like, of `nranks`.
    pub(super) fn message_channels(&self, software: bool, nranks: u32) -> u32 {
        self.message_channels.unwrap_or_else(|| tuning::preferred_message_channels(software, nranks))
    }

    /// The number of channels that this rank would like.
    pub(super) fn channels(&self, config: &Config, software: bool) -> u32 {
        let low = self.channels.low.max(u32::try_from(config.min_ctas).unwrap_or(1));
        let high = self.channels.high.min(u32::try_from(config.max_ctas).unwrap_or(tuning::CHANNELS_MAX));
        tuning::preferred_channels(software, low, high)
    }
}

impl Range {
    fn read(params: &Snapshot) -> Range {
        let one = |new: Key, old: Key| {
            params.set_int(new).or(params.set_int(old)).and_then(|number| u32::try_from(number).ok())
        };
        Range {
            low: one(params::MIN_NCHANNELS, params::MIN_NRINGS).unwrap_or(1),
            high: one(params::MAX_NCHANNELS, params::MAX_NRINGS).unwrap_or(tuning::CHANNELS_MAX),
        }
    }
}

fn net_config(params: &Snapshot) -> Result<NetConfig, Error> {
    let (interfaces, warnings) = InterfaceFilter::parse(params.text(params::SOCKET_IFNAME).unwrap_or(""));
    for warning in warnings {
        log::warn!("NCCL_SOCKET_IFNAME: {warning}");
    }
    let family = params.text(params::SOCKET_FAMILY);
    if let Some(text) = family.filter(|text| Family::parse(text).is_none()) {
        log::warn!("NCCL_SOCKET_FAMILY='{text}' is neither AF_INET nor AF_INET6; any is used");
    }
    let seconds =
        |key: Key| u64::try_from(params.int(key)).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let defaults = NetConfig::default();
    Ok(NetConfig {
        interfaces,
        family: family.and_then(Family::parse),
        ports: params.text(params::PORT_RANGE).map(bootstrap::parse_ports).transpose()?,
        advertise: params.text(params::ADVERTISE).map(Advertise::parse).transpose()?,
        comm_id: params.text(params::COMM_ID).map(CommId::parse).transpose()?,
        user_key: secure::user_key(),
        magic: params.set_int(params::SOCKET_MAGIC).map(|magic| magic as u64),
        retry_count: u32::try_from(params.int(params::SOCKET_RETRY_CNT)).unwrap_or(defaults.retry_count),
        retry_sleep: Duration::from_millis(u64::try_from(params.int(params::SOCKET_RETRY_SLEEP_MSEC)).unwrap_or(100)),
        timeout: seconds(params::BOOTSTRAP_TIMEOUT),
        algorithm: algorithm(params)?,
        stagger: stagger(params),
        progress: seconds(params::BOOTSTRAP_PROGRESS).unwrap_or(defaults.progress),
        ..defaults
    })
}

/// How ranks meet.
fn algorithm(params: &Snapshot) -> Result<Algorithm, Error> {
    let text = params.text(params::BOOTSTRAP_ALGO).unwrap_or("");
    if text.trim().is_empty() {
        return Ok(Algorithm::default());
    }
    Algorithm::parse(text)
        .ok_or_else(|| Error::InvalidUsage(format!("OXCCL_BOOTSTRAP_ALGO='{text}': it is 'tree' or 'ring'")))
}

/// Threshold and rate, where one of the two is set.
fn stagger(params: &Snapshot) -> Option<(u32, u32)> {
    let (threshold, rate) = (params::UID_STAGGER_THRESHOLD, params::UID_STAGGER_RATE);
    params.set_int(threshold).or(params.set_int(rate))?;
    let number = |key: Key| u32::try_from(params.int(key)).ok();
    Some((number(threshold)?, number(rate)?))
}

/// Makes an id and starts the root that ranks will meet at (`ncclGetUniqueId`).
pub fn unique_id() -> Result<UniqueId, Error> {
    bootstrap::create_id(&net_config(&params::snapshot())?)
}
