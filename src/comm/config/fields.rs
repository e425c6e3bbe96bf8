//! The one list of the fields of `ncclConfig_t`: their place in C, what a caller may set them to, what a communicator
//! works with.

use super::{MAGIC, MAX_CHANNELS, UNDEF, VERSION};
use crate::error::Error;

/// A row is a field, in C's order: its type as the caller gives it and as the communicator has it, its default, its
/// name in C, the version from which on it is believed (older structs end in padding where a newer one has a
/// field), and which numbers it can have; `then` checks what concerns earlier fields, too.
macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident: $given:ident => $own:ty = $default:expr,
        $c_name:literal since $since:literal, $valid:expr $(, then $check:expr)?;)*) => {
        /// `ncclConfig_t` as the caller filled it in; a string is a `Text`, a C pointer at the C boundary. Numbers are
        /// [`UNDEF`] where they were not set.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)]
        #[allow(missing_docs)] // the fields have the names and meaning of ncclConfig_t
        pub struct ConfigRequest<Text = Option<String>> {
            pub size: usize,
            pub magic: u32,
            pub version: u32,
            $(pub $field: $given,)*
        }

        impl<Text: Given> Default for ConfigRequest<Text> {
            /// `NCCL_CONFIG_INITIALIZER`.
            fn default() -> ConfigRequest<Text> {
                let size = size_of::<ConfigRequest<Text>>();
                ConfigRequest { size, magic: MAGIC, version: VERSION, $($field: Given::UNSET,)* }
            }
        }

        impl<Text: Copy> ConfigRequest<Text> {
            /// The same with the strings that `read` makes of `Text`; it is told whether the caller's version has the
            /// field, so that the pointer may be followed.
            pub fn with_texts(&self, read: impl Fn(Text, bool) -> Option<String>) -> ConfigRequest {
                ConfigRequest {
                    size: self.size,
                    magic: self.magic,
                    version: self.version,
                    $($field: fields!(@read $given, self.$field, ($since..).contains(&self.version), read),)*
                }
            }
        }

        impl ConfigRequest {
            /// Forgets the numbers that the caller's version did not have.
            pub(super) fn gate(&mut self) {
                $(if !($since..).contains(&self.version) {
                    self.$field.forget();
                })*
            }

            /// # Errors
            /// `InvalidArgument` names the first field that has a value which it cannot have.
            pub(super) fn check(&self) -> Result<(), Error> {
                $(self.$field.check($c_name, $valid)?; $($check(self)?;)?)*
                Ok(())
            }
        }

        /// The configuration that a communicator works with.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Config {
            $($(#[$doc])* pub $field: $own,)*
        }

        impl Default for Config {
            /// What a NULL configuration without any variable gives.
            fn default() -> Config {
                Config { $($field: $default,)* }
            }
        }

        impl Config {
            /// What was set replaces what was there.
            pub(super) fn take(&mut self, request: ConfigRequest) {
                $(request.$field.put(&mut self.$field);)*
            }
        }
    };
    (@read i32, $value:expr, $exists:expr, $read:ident) => { $value };
    (@read Text, $value:expr, $exists:expr, $read:ident) => { $read($value, $exists) };
}

fields! {
    /// Calls return final results; otherwise the result is polled for.
    blocking: i32 => bool = true, "blocking" since 21400, switch;
    /// Thread-block cluster size, 0 to 8. No effect: kernels use no clusters.
    cga_cluster_size: i32 => i32 = 4, "cgaClusterSize" since 21700, not_negative;
    /// Fewest channels, 1 to 64, not above `max_ctas`.
    min_ctas: i32 => i32 = 1, "minCTAs" since 21700, positive;
    /// Most channels, 1 to 64.
    max_ctas: i32 => i32 = MAX_CHANNELS, "maxCTAs" since 21700, positive, then in_order;
    /// Network by name; None = the library chooses.
    net_name: Text => Option<String> = None, "netName" since 21700, any;
    /// Children made by split share resources.
    split_share: i32 => bool = false, "splitShare" since 0, switch;
    /// Traffic class for network plug-ins.
    traffic_class: i32 => Option<i32> = None, "trafficClass" since 22500, any;
    /// The user's name for the communicator.
    comm_name: Text => Option<String> = None, "commName" since 0, any;
    /// CollNet may be used.
    collnet_enable: i32 => bool = false, "collnetEnable" since 22700, switch;
    /// NCCL_CTA_POLICY bits.
    cta_policy: i32 => i32 = 0, "CTAPolicy" since 22700, |v| (0..=3).contains(&v);
    /// Communicators made by shrink share resources.
    shrink_share: i32 => bool = false, "shrinkShare" since 22700, switch;
    /// Channels of NVLS; None = the library chooses.
    nvls_ctas: i32 => Option<i32> = None, "nvlsCTAs" since 22700, positive;
    /// Channels per network peer, 1 to 64; None = the library chooses.
    channels_per_net_peer: i32 => Option<i32> = None,
        "nChannelsPerNetPeer" since 22800, |v| (1..=MAX_CHANNELS).contains(&v);
    /// Scheduling that favours NVLink use.
    nvlink_centric_sched: i32 => bool = false, "nvlinkCentricSched" since 22800, switch;
    /// CUDA graphs: 0 none, 1 one, 2 several and mixed with direct calls.
    graph_usage_mode: i32 => i32 = 2, "graphUsageMode" since 22900, |v| (0..=2).contains(&v);
    /// Contexts of host RMA.
    num_rma_ctx: i32 => i32 = 1, "numRmaCtx" since 22900, not_negative;
    /// Peers that are sent to or received from; None = all.
    max_p2p_peers: i32 => Option<i32> = None, "maxP2pPeers" since 23000, positive;
    /// Captured kernels run on a side stream. No effect: they lie on the captured stream.
    graph_stream_ordering: i32 => bool = true, "graphStreamOrdering" since 23005, switch;
    /// Launches of communicators of a context follow one another, in the program's order.
    launch_order_implicit: i32 => bool = false, "launchOrderImplicit" since 23100, switch;
    /// RMA signals per context.
    num_rma_sig: i32 => i32 = 1, "numRmaSig" since 23100, not_negative;
    /// RMA is set up at creation.
    rma_eager_init: i32 => bool = false, "rmaEagerInit" since 23100, switch;
    /// 1 enable, 2 disable, 3 fall back.
    host_cft_mode: i32 => i32 = 2, "hostCftMode" since 23100, |v| (1..=3).contains(&v);
    /// Bits that turn off parts of NVLS; INT_MAX all of it.
    nvls_host_mode: i32 => i32 = 0, "nvlsHostMode" since 0, |v| (0..=3).contains(&v) || v == i32::MAX;
}

fn any(_: i32) -> bool {
    true
}

fn switch(value: i32) -> bool {
    value == 0 || value == 1
}

fn positive(value: i32) -> bool {
    value > 0
}

fn not_negative(value: i32) -> bool {
    value >= 0
}

/// The order of two fields that were both set.
fn in_order(request: &ConfigRequest) -> Result<(), Error> {
    let (min, max) = (request.min_ctas, request.max_ctas);
    if min != UNDEF && max != UNDEF && min > max {
        return Err(Error::InvalidArgument(format!("Invalid config: minCTAs {min} is above maxCTAs {max}")));
    }
    Ok(())
}

/// What a caller can give a field.
pub trait Given {
    /// What says that the field was not set.
    const UNSET: Self;
}

impl Given for i32 {
    const UNSET: i32 = UNDEF;
}

impl Given for Option<String> {
    const UNSET: Option<String> = None;
}

/// A value that a caller has given, for a field that is an `Own` in a communicator.
trait Value<Own> {
    fn put(self, own: &mut Own);
}

impl Value<i32> for i32 {
    fn put(self, own: &mut i32) {
        *own = if self == UNDEF { *own } else { self };
    }
}

impl Value<bool> for i32 {
    fn put(self, own: &mut bool) {
        *own = if self == UNDEF { *own } else { self != 0 };
    }
}

impl Value<Option<i32>> for i32 {
    fn put(self, own: &mut Option<i32>) {
        *own = Some(self).filter(|v| *v != UNDEF).or(*own);
    }
}

impl Value<Option<String>> for Option<String> {
    fn put(self, own: &mut Option<String>) {
        *own = self.or(own.take());
    }
}

/// Numbers can be forgotten and are checked; a string is neither, and was not read where it does not exist.
trait Checked {
    fn forget(&mut self) {}

    fn check(&self, _name: &str, _valid: impl FnOnce(i32) -> bool) -> Result<(), Error> {
        Ok(())
    }
}

impl Checked for i32 {
    fn forget(&mut self) {
        *self = UNDEF;
    }

    fn check(&self, name: &str, valid: impl FnOnce(i32) -> bool) -> Result<(), Error> {
        super::field(name, *self, valid)
    }
}

impl Checked for Option<String> {}
