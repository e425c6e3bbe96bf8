//! What NCCL's own cost model expects of its ring, to compare with.

use super::super::call::Func;
use super::super::layout::Proto;
use super::machine::MachineModel;

/// What NCCL's model says of a ring with a protocol.
struct RingConstants {
    /// Microseconds without data.
    base: f64,
    /// Microseconds of a hop over NVLink, and over PCIe.
    hop: (f64, f64),
    /// Microseconds of a hop over a network, besides the latency of this.
    net: f64,
    /// The part of the links' bandwidth that is data.
    share: f64,
}

fn constants(proto: Proto) -> RingConstants {
    match proto {
        Proto::Simple => RingConstants { base: 8.4, hop: (3.4, 5.7), net: 14.0, share: 1.0 },
        Proto::Ll => RingConstants { base: 6.6, hop: (0.6, 1.0), net: 2.7, share: 0.5 },
        Proto::Ll128 => RingConstants { base: 14.0, hop: (1.9, 2.5), net: 4.0, share: 0.92 },
    }
}

/// The bandwidth of LL over all channels is at most this in NCCL's model, in bytes a microsecond: of Hopper, of Ampere.
const LL_MOST: (f64, f64) = (141_000.0, 87_700.0);

/// Microseconds that NCCL's ring takes for a call of `bytes` bytes on a machine, by the constants of NCCL's own model
/// and the quickest of its protocols. Functions that have no ring have none.
pub fn nccl_ring(machine: &MachineModel, func: Func, bytes: u64) -> Option<f64> {
    let (n, hosts) = (f64::from(machine.ranks), f64::from(machine.hosts));
    let steps = match func {
        Func::AllReduce => 2.0 * (n - 1.0),
        Func::AllGather | Func::ReduceScatter => n - 1.0,
        Func::Broadcast | Func::Reduce => n,
        _ => return None,
    };
    let nvlink = machine.whole_lines;
    let time = |proto: Proto| {
        let RingConstants { base, hop, net, share } = constants(proto);
        let hop = if nvlink { hop.0 } else { hop.1 };
        let most = if nvlink { LL_MOST.0 } else { LL_MOST.1 };
        let bus = if hosts > 1.0 { machine.network.bandwidth } else { machine.path.bandwidth } * share;
        let bus = if proto == Proto::Ll { bus.min(most) } else { bus };
        let hops = if matches!(func, Func::Broadcast | Func::Reduce) { 1.0 } else { steps };
        let between = if hosts > 1.0 { hops / n * hosts } else { 0.0 };
        base + (hops - between) * hop + between * (net + machine.network.latency) + bytes as f64 * steps / n / bus
    };
    let open = Proto::ALL.into_iter().filter(|proto| nvlink || *proto != Proto::Ll128);
    open.map(time).min_by(f64::total_cmp)
}
