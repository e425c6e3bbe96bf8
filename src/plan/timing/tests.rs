//! Tests of the clock.

use super::*;

#[test]
fn table() {
    let after = KernelModel {
        copy: &[8, 4, 2, 1],
        reduce: &[4, 2, 1],
        together: false,
        overlaps: true,
        fences: 1,
        slots: 8,
        lines: 4,
        early: false,
    };
    for machine in MachineModel::known() {
        for (ring, mesh, channels) in
            [(256u32 << 10, 64u32 << 10, 32u64), (256 << 10, 128 << 10, 16), (512 << 10, 256 << 10, 16)]
        {
            println!("{} ring {ring} mesh {mesh} channels {channels}", machine.name);
            for bits in (12..31).step_by(2) {
                let bytes = 1u64 << bits;
                print!("{bytes:>12} ");
                for algorithm in [Algo::Ring, Algo::Tree, Algo::Direct, Algo::TwoStep] {
                    for protocol in Proto::ALL {
                        let slot_bytes = if protocol != Proto::Simple {
                            64 << 10
                        } else if algorithm == Algo::Ring {
                            ring
                        } else {
                            mesh
                        };
                        let call = |channels: u64| TimedCall {
                            func: Func::AllReduce,
                            algorithm,
                            protocol,
                            bytes,
                            channels: channels as u32,
                            slot_bytes,
                        };
                        let us = [1, 2, 4, 8, 16, 32]
                            .into_iter()
                            .filter(|c| *c <= channels)
                            .map(|c| predict(&machine, &after, &call(c)).unwrap())
                            .fold(1e99, f64::min);
                        print!("{us:>10.1}");
                    }
                    print!(" |");
                }
                println!(" nccl {:.1}", nccl_ring(&machine, Func::AllReduce, bytes).unwrap());
            }
        }
    }
}
