//! The configuration of a communicator and of a single call: what the user's structs say, checked, gated by
//! the version they were compiled with and overruled by the environment.

mod fields;
#[cfg(test)]
mod tests;

pub use fields::{Config, ConfigRequest, Given};

use crate::error::Error;
use crate::params::{self, Key, Snapshot};
use crate::plan::call::Func;
use crate::tuning::selection;

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
    Err(Error::InvalidArgument(format!(
        "{name} argument not initialized via its INITIALIZER macro (got magic {found:#x})"
    )))
}

/// Says of fields that the user has set, in whatever way, and that do nothing.
fn without_effect(request: &ConfigRequest, environment: &Snapshot) {
    let fields = [
        ("cgaClusterSize", request.cga_cluster_size, params::CGA_CLUSTER_SIZE, "kernels use no clusters"),
        (
            "graphStreamOrdering",
            request.graph_stream_ordering,
            params::GRAPH_STREAM_ORDERING,
            "captured kernels always lie on the captured stream",
        ),
    ];
    for (name, set, key, why) in fields {
        if set != UNDEF || environment.set_int(key).is_some() {
            ::log::info!(target: "INIT", "config {name} ({}) has no effect: {why}", key.param().name);
        }
    }
}

impl Config {
    /// Checks a request and fills in the defaults; the environment overrules both.
    ///
    /// # Errors
    /// `InvalidArgument` names the field that has a value which it cannot have.
    pub fn resolve(request: ConfigRequest, environment: &Snapshot) -> Result<Config, Error> {
        Config::resolve_over(&Config::default(), request, environment)
    }

    /// The same over a parent's configuration instead of the defaults (split, shrink).
    ///
    /// # Errors
    /// As [`Config::resolve`].
    pub fn resolve_over(parent: &Config, mut request: ConfigRequest, environment: &Snapshot) -> Result<Config, Error> {
        magic("ncclConfig_t", request.magic)?;
        request.gate();
        request.check()?;
        without_effect(&request, environment);
        let mut config = parent.clone();
        config.take(request);
        config.overrule(environment);
        config.reconcile();
        Ok(config)
    }

    /// Environment over configuration.
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

    /// What does not fit together is made to.
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
#[allow(missing_docs)] // the fields have the names and meaning of ncclCollConfig_t
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
