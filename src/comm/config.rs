//! The configuration of a communicator and of a single call: what the user's structs say, checked, gated by
//! the version they were compiled with and overruled by the environment (spec §2.6, delta §2.2, §2.4).

#[cfg(test)]
mod tests;

use super::selection;
use crate::error::Error;
use crate::params::{self, Key, Snapshot};
use crate::plan::call::Func;

/// `NCCL_CONFIG_UNDEF_INT`: the field is not set.
pub const UNDEF: i32 = i32::MIN;
/// `NCCL_API_MAGIC`: what every versioned struct but ncclSimInfo_t starts with behind its size.
pub const MAGIC: u32 = 0xcafe_beef;
/// The version of the interface, `NCCL_VERSION_CODE`.
pub const VERSION: u32 = 23203;
/// Most channels that a communicator has.
pub const MAX_CHANNELS: i32 = 64;

/// `NCCL_CTA_POLICY_EFFICIENCY` and `_ZERO`.
const EFFICIENCY: i32 = 1;
const ZERO: i32 = 2;

/// The fields of `ncclConfig_t` as the user set them, [`UNDEF`] or None where not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields have the names and meaning of ncclConfig_t (spec §2.6)
pub struct Request {
    pub magic: u32,
    pub version: u32,
    pub blocking: i32,
    pub cga_cluster_size: i32,
    pub min_ctas: i32,
    pub max_ctas: i32,
    pub net_name: Option<String>,
    pub split_share: i32,
    pub traffic_class: i32,
    pub comm_name: Option<String>,
    pub collnet_enable: i32,
    pub cta_policy: i32,
    pub shrink_share: i32,
    pub nvls_ctas: i32,
    pub channels_per_net_peer: i32,
    pub nvlink_centric_sched: i32,
    pub graph_usage_mode: i32,
    pub num_rma_ctx: i32,
    pub max_p2p_peers: i32,
    pub graph_stream_ordering: i32,
    pub launch_order_implicit: i32,
    pub num_rma_sig: i32,
    pub rma_eager_init: i32,
    pub host_cft_mode: i32,
    pub nvls_host_mode: i32,
}

impl Default for Request {
    /// `NCCL_CONFIG_INITIALIZER`.
    fn default() -> Request {
        Request {
            magic: MAGIC,
            version: VERSION,
            blocking: UNDEF,
            cga_cluster_size: UNDEF,
            min_ctas: UNDEF,
            max_ctas: UNDEF,
            net_name: None,
            split_share: UNDEF,
            traffic_class: UNDEF,
            comm_name: None,
            collnet_enable: UNDEF,
            cta_policy: UNDEF,
            shrink_share: UNDEF,
            nvls_ctas: UNDEF,
            channels_per_net_peer: UNDEF,
            nvlink_centric_sched: UNDEF,
            graph_usage_mode: UNDEF,
            num_rma_ctx: UNDEF,
            max_p2p_peers: UNDEF,
            graph_stream_ordering: UNDEF,
            launch_order_implicit: UNDEF,
            num_rma_sig: UNDEF,
            rma_eager_init: UNDEF,
            host_cft_mode: UNDEF,
            nvls_host_mode: UNDEF,
        }
    }
}

/// The configuration that a communicator works with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Calls return final results; otherwise the result is polled for.
    pub blocking: bool,
    /// Thread-block cluster size, 0 to 8.
    pub cga_cluster_size: i32,
    /// Fewest channels, 1 to 64, not above `max_ctas`.
    pub min_ctas: i32,
    /// Most channels, 1 to 64.
    pub max_ctas: i32,
    /// Network by name; None = the library chooses.
    pub net_name: Option<String>,
    /// Children made by split share resources.
    pub split_share: bool,
    /// Traffic class for network plug-ins.
    pub traffic_class: Option<i32>,
    /// The user's name for the communicator.
    pub comm_name: Option<String>,
    /// CollNet may be used.
    pub collnet_enable: bool,
    /// NCCL_CTA_POLICY bits.
    pub cta_policy: i32,
    /// Communicators made by shrink share resources.
    pub shrink_share: bool,
    /// Channels of NVLS; None = the library chooses.
    pub nvls_ctas: Option<i32>,
    /// Channels per network peer, 1 to 64; None = the library chooses.
    pub channels_per_net_peer: Option<i32>,
    /// Scheduling that favours NVLink use.
    pub nvlink_centric_sched: bool,
    /// CUDA graphs: 0 none, 1 one, 2 several and mixed with direct calls.
    pub graph_usage_mode: i32,
    /// Contexts of host RMA.
    pub num_rma_ctx: i32,
    /// Peers that are sent to or received from; None = all.
    pub max_p2p_peers: Option<i32>,
    /// Captured kernels run on a side stream.
    pub graph_stream_ordering: bool,
    /// Launches of communicators follow the program's order.
    pub launch_order_implicit: bool,
    /// RMA signals per context.
    pub num_rma_sig: i32,
    /// RMA is set up at creation.
    pub rma_eager_init: bool,
    /// 1 enable, 2 disable, 3 fall back.
    pub host_cft_mode: i32,
    /// Bits that turn off parts of NVLS; INT_MAX all of it.
    pub nvls_host_mode: i32,
}

impl Default for Config {
    /// What a NULL configuration without any variable gives.
    fn default() -> Config {
        Config {
            blocking: true,
            cga_cluster_size: 4,
            min_ctas: 1,
            max_ctas: MAX_CHANNELS,
            net_name: None,
            split_share: false,
            traffic_class: None,
            comm_name: None,
            collnet_enable: false,
            cta_policy: 0,
            shrink_share: false,
            nvls_ctas: None,
            channels_per_net_peer: None,
            nvlink_centric_sched: false,
            graph_usage_mode: 2,
            num_rma_ctx: 1,
            max_p2p_peers: None,
            graph_stream_ordering: true,
            launch_order_implicit: false,
            num_rma_sig: 1,
            rma_eager_init: false,
            host_cft_mode: 2,
            nvls_host_mode: 0,
        }
    }
}

impl Request {
    /// Forgets the fields that the caller's version did not have: older structs end in padding where a newer
    /// one has a field (spec §2.6.1, delta §2.2). `nvls_host_mode` has no gate.
    fn gate(&mut self) {
        let version = self.version;
        let forget = |first_with: u32, fields: &mut [&mut i32]| {
            if version < first_with {
                fields.iter_mut().for_each(|field| **field = UNDEF);
            }
        };
        forget(21400, &mut [&mut self.blocking]);
        forget(21700, &mut [&mut self.cga_cluster_size, &mut self.min_ctas, &mut self.max_ctas]);
        forget(22500, &mut [&mut self.traffic_class]);
        forget(22700, &mut [&mut self.collnet_enable, &mut self.cta_policy, &mut self.shrink_share, &mut self.nvls_ctas]);
        forget(22800, &mut [&mut self.channels_per_net_peer, &mut self.nvlink_centric_sched]);
        forget(22900, &mut [&mut self.graph_usage_mode, &mut self.num_rma_ctx]);
        forget(23000, &mut [&mut self.max_p2p_peers]);
        forget(23005, &mut [&mut self.graph_stream_ordering]);
        forget(23100, &mut [&mut self.launch_order_implicit, &mut self.num_rma_sig]);
        forget(23100, &mut [&mut self.rma_eager_init, &mut self.host_cft_mode]);
    }

    /// Whether a `net_name` of this version is to be believed; its pointer must not be followed otherwise.
    pub fn has_net_name(version: u32) -> bool {
        version >= 21700
    }

    fn check(&self) -> Result<(), Error> {
        let switch = |v| v == 0 || v == 1;
        let positive = |v| v > 0;
        let not_negative = |v| v >= 0;
        field("blocking", self.blocking, switch)?;
        field("cgaClusterSize", self.cga_cluster_size, not_negative)?;
        field("minCTAs", self.min_ctas, positive)?;
        field("maxCTAs", self.max_ctas, positive)?;
        if self.min_ctas != UNDEF && self.max_ctas != UNDEF && self.min_ctas > self.max_ctas {
            let (min, max) = (self.min_ctas, self.max_ctas);
            return Err(Error::InvalidArgument(format!("Invalid config: minCTAs {min} is above maxCTAs {max}")));
        }
        field("splitShare", self.split_share, switch)?;
        field("collnetEnable", self.collnet_enable, switch)?;
        field("CTAPolicy", self.cta_policy, |v| (0..=3).contains(&v))?;
        field("shrinkShare", self.shrink_share, switch)?;
        field("nvlsCTAs", self.nvls_ctas, positive)?;
        field("nChannelsPerNetPeer", self.channels_per_net_peer, |v| (1..=MAX_CHANNELS).contains(&v))?;
        field("nvlinkCentricSched", self.nvlink_centric_sched, switch)?;
        field("graphUsageMode", self.graph_usage_mode, |v| (0..=2).contains(&v))?;
        field("numRmaCtx", self.num_rma_ctx, not_negative)?;
        field("maxP2pPeers", self.max_p2p_peers, positive)?;
        field("graphStreamOrdering", self.graph_stream_ordering, switch)?;
        field("launchOrderImplicit", self.launch_order_implicit, switch)?;
        field("numRmaSig", self.num_rma_sig, not_negative)?;
        field("rmaEagerInit", self.rma_eager_init, switch)?;
        field("hostCftMode", self.host_cft_mode, |v| (1..=3).contains(&v))?;
        field("nvlsHostMode", self.nvls_host_mode, |v| (0..=3).contains(&v) || v == i32::MAX)
    }
}

fn field(name: &str, value: i32, valid: impl FnOnce(i32) -> bool) -> Result<(), Error> {
    if value == UNDEF || valid(value) {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("Invalid config {name} attribute value {value}")))
}

fn magic(name: &str, found: u32) -> Result<(), Error> {
    if found == MAGIC {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("{name} argument not initialized via its INITIALIZER macro (got magic {found:#x})")))
}

impl Config {
    /// Checks a request and fills in the defaults; the environment overrules both.
    ///
    /// # Errors
    /// `InvalidArgument` names the field that has a value which it cannot have.
    pub fn resolve(request: Request, environment: &Snapshot) -> Result<Config, Error> {
        Config::resolve_over(&Config::default(), request, environment)
    }

    /// The same over a parent's configuration instead of the defaults (split, shrink).
    ///
    /// # Errors
    /// As [`Config::resolve`].
    pub fn resolve_over(parent: &Config, mut request: Request, environment: &Snapshot) -> Result<Config, Error> {
        magic("ncclConfig_t", request.magic)?;
        request.gate();
        request.check()?;
        let mut config = parent.clone();
        config.take(request);
        config.overrule(environment);
        config.reconcile();
        Ok(config)
    }

    fn take(&mut self, r: Request) {
        let int = |to: &mut i32, v: i32| {
            if v != UNDEF {
                *to = v
            }
        };
        let switch = |to: &mut bool, v: i32| {
            if v != UNDEF {
                *to = v != 0
            }
        };
        let maybe = |to: &mut Option<i32>, v: i32| {
            if v != UNDEF {
                *to = Some(v)
            }
        };
        switch(&mut self.blocking, r.blocking);
        int(&mut self.cga_cluster_size, r.cga_cluster_size);
        int(&mut self.min_ctas, r.min_ctas);
        int(&mut self.max_ctas, r.max_ctas);
        self.net_name = r.net_name.or(self.net_name.take());
        switch(&mut self.split_share, r.split_share);
        maybe(&mut self.traffic_class, r.traffic_class);
        self.comm_name = r.comm_name.or(self.comm_name.take());
        switch(&mut self.collnet_enable, r.collnet_enable);
        int(&mut self.cta_policy, r.cta_policy);
        switch(&mut self.shrink_share, r.shrink_share);
        maybe(&mut self.nvls_ctas, r.nvls_ctas);
        maybe(&mut self.channels_per_net_peer, r.channels_per_net_peer);
        switch(&mut self.nvlink_centric_sched, r.nvlink_centric_sched);
        int(&mut self.graph_usage_mode, r.graph_usage_mode);
        int(&mut self.num_rma_ctx, r.num_rma_ctx);
        maybe(&mut self.max_p2p_peers, r.max_p2p_peers);
        switch(&mut self.graph_stream_ordering, r.graph_stream_ordering);
        switch(&mut self.launch_order_implicit, r.launch_order_implicit);
        int(&mut self.num_rma_sig, r.num_rma_sig);
        switch(&mut self.rma_eager_init, r.rma_eager_init);
        int(&mut self.host_cft_mode, r.host_cft_mode);
        int(&mut self.nvls_host_mode, r.nvls_host_mode);
    }

    /// Environment over configuration (spec §2.6, §8.5).
    fn overrule(&mut self, environment: &Snapshot) {
        let number = |key: Key| environment.set_int(key).and_then(|n| i32::try_from(n).ok());
        let int = |to: &mut i32, key: Key| *to = number(key).unwrap_or(*to);
        let switch = |to: &mut bool, key: Key| *to = number(key).map_or(*to, |n| n != 0);
        let maybe = |to: &mut Option<i32>, key: Key| *to = number(key).or(*to);
        switch(&mut self.blocking, params::COMM_BLOCKING);
        int(&mut self.cga_cluster_size, params::CGA_CLUSTER_SIZE);
        int(&mut self.min_ctas, params::MIN_CTAS);
        int(&mut self.max_ctas, params::MAX_CTAS);
        if let Some(name) = environment.text(params::NET) {
            self.net_name = Some(name.to_string());
        }
        switch(&mut self.split_share, params::COMM_SPLIT_SHARE_RESOURCES);
        switch(&mut self.shrink_share, params::COMM_SHRINK_SHARE_RESOURCES);
        switch(&mut self.collnet_enable, params::COLLNET_ENABLE);
        if let Some(policy) = environment.text(params::CTA_POLICY).and_then(params::cta_policy) {
            self.cta_policy = policy as i32;
        }
        maybe(&mut self.nvls_ctas, params::NVLS_NCHANNELS);
        maybe(&mut self.channels_per_net_peer, params::NCHANNELS_PER_NET_PEER);
        switch(&mut self.nvlink_centric_sched, params::NVLINK_UTIL_CENTRIC_SCHED_ENABLE);
        if let Some(mixing) = number(params::GRAPH_MIXING_SUPPORT) {
            self.graph_usage_mode = if mixing != 0 { 2 } else { 0 };
        }
        switch(&mut self.graph_stream_ordering, params::GRAPH_STREAM_ORDERING);
        int(&mut self.num_rma_ctx, params::NUM_RMA_CTX);
        maybe(&mut self.max_p2p_peers, params::P2P_MAX_PEERS);
        switch(&mut self.launch_order_implicit, params::LAUNCH_ORDER_IMPLICIT);
        switch(&mut self.rma_eager_init, params::RMA_EAGER_INIT);
    }

    /// What does not fit together is made to (spec §2.6, traps).
    fn reconcile(&mut self) {
        self.max_ctas = self.max_ctas.min(MAX_CHANNELS);
        self.min_ctas = self.min_ctas.min(MAX_CHANNELS);
        if self.min_ctas > self.max_ctas {
            ::log::info!(target: "INIT", "minCTAs {} is lowered to maxCTAs {}", self.min_ctas, self.max_ctas);
            self.min_ctas = self.max_ctas;
        }
        if self.cta_policy & (EFFICIENCY | ZERO) == EFFICIENCY | ZERO {
            ::log::warn!(target: "ATTN", "CTAPolicy has both ZERO and EFFICIENCY: EFFICIENCY is dropped");
            self.cta_policy &= !EFFICIENCY;
        }
        if !self.graph_stream_ordering && self.graph_usage_mode == 2 {
            ::log::warn!(target: "ATTN", "graphStreamOrdering 0 needs a graphUsageMode below 2: it is set to 1");
            self.graph_stream_ordering = true;
        }
    }
}

/// The fields of `ncclCollConfig_t` as the user set them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields have the names and meaning of ncclCollConfig_t (delta §2.4)
pub struct CollRequest {
    pub magic: u32,
    pub min_ctas: i32,
    pub max_ctas: i32,
    pub nvls_ctas: i32,
    pub cga_cluster_size: i32,
    pub selection: Option<String>,
    pub force_selection: i32,
    pub cta_policy: i32,
    pub profiler_tag: u64,
    pub launch_completion_event: usize,
}

/// The configuration of one call, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollConfig {
    /// Fewest channels, if in 1 to 64.
    pub min_ctas: Option<i32>,
    /// Most channels, if in 1 to 64.
    pub max_ctas: Option<i32>,
    /// Channels of NVLS, if in 1 to 64.
    pub nvls_ctas: Option<i32>,
    /// Thread-block cluster size, if in 0 to 8.
    pub cga_cluster_size: Option<i32>,
    /// The user's words for the algorithms.
    selection: Option<String>,
    /// A selection that cannot be honoured is an error.
    force_selection: bool,
    /// NCCL_CTA_POLICY bits, if set.
    pub cta_policy: Option<i32>,
    /// For profilers; no effect.
    pub profiler_tag: u64,
    /// A CUDA event to record when the kernel is done, 0 = none.
    pub launch_completion_event: usize,
}

impl CollConfig {
    /// Checks a request: magic, forceAlgSelection, CTAPolicy, in this order. Numbers out of range are ignored.
    ///
    /// # Errors
    /// `InvalidArgument` names the field.
    pub fn resolve(r: CollRequest) -> Result<CollConfig, Error> {
        magic("ncclCollConfig_t", r.magic)?;
        if r.force_selection != 0 && r.force_selection != 1 {
            let value = r.force_selection;
            return Err(Error::InvalidArgument(format!("Invalid collective config forceAlgSelection value {value}")));
        }
        field("CTAPolicy", r.cta_policy, |v| (0..=3).contains(&v))?;
        let ctas = |v: i32| Some(v).filter(|v| (1..=MAX_CHANNELS).contains(v));
        Ok(CollConfig {
            min_ctas: ctas(r.min_ctas),
            max_ctas: ctas(r.max_ctas),
            nvls_ctas: ctas(r.nvls_ctas),
            cga_cluster_size: Some(r.cga_cluster_size).filter(|v| (0..=8).contains(v)),
            selection: r.selection.filter(|s| !s.is_empty()),
            force_selection: r.force_selection == 1,
            cta_policy: Some(r.cta_policy).filter(|v| *v != UNDEF),
            profiler_tag: r.profiler_tag,
            launch_completion_event: r.launch_completion_event,
        })
    }

    /// The algorithms that this call may use (a mask of [`selection`]'s bits); None = the library chooses.
    ///
    /// # Errors
    /// `InvalidArgument` where the selection is forced and cannot be honoured for `func`.
    pub fn algorithms(&self, func: Func) -> Result<Option<u64>, Error> {
        let Some(words) = &self.selection else {
            return Ok(None);
        };
        match selection::parse(words, func) {
            Ok(mask) => Ok(mask),
            Err(_) if !self.force_selection => Ok(None),
            Err(why) => Err(Error::InvalidArgument(format!(
                "config->algSelection \"{words}\" cannot be honored for {}: {why}",
                func.name()
            ))),
        }
    }
}
