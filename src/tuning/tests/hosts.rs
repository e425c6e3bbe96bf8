//! Several hosts: the choice against the simulation.

use super::*;

/// Machines, and what their communicators agree on: Simple alone, since sockets carry no lines.
fn on(name: &str) -> (MachineModel, Tuning) {
    let machine = MachineModel::named(name).expect("a machine");
    let mut agreed = agreed_on_gpus(LinkKind::HostMemory);
    assert_eq!(agreed.without_lines(), None);
    let constants = MachineConstants::Gpus(machine.clone(), KernelModel::CURRENT);
    let tuning = Tuning::new(constants, Arc::new(machine.graph()), agreed);
    (machine, tuning)
}

fn time(machine: &MachineModel, tuning: &Tuning, func: Func, bytes: u64, (algorithm, channels): (Algo, u32)) -> f64 {
    let protocol = Proto::Simple;
    let slot_bytes = tuning.slot_bytes(func, algorithm, protocol);
    let call = TimedCall { func, algorithm, protocol, bytes, channels, slot_bytes };
    timing::predict(machine, &KernelModel::CURRENT, &call).expect("a time")
}

const FUNCS: [Func; 5] = [Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Broadcast, Func::Reduce];

/// What is chosen is not far from the quickest that there is, and takes about what is expected.
#[test]
fn across_hosts_the_choice_is_nearly_the_quickest() {
    let long = std::env::var_os("OXCCL_LONG").is_some();
    let machines = ["2x8xH100-tcp100", "4x4xA100-pcie-tcp25", "3x2xRTX-nop2p-tcp10"];
    let more: &[&str] = if long { &["4x8xH100-tcp400", "12x2xRTX-nop2p-tcp100"] } else { &[] };
    for name in machines.into_iter().chain(more.iter().copied()) {
        let (machine, tuning) = on(name);
        let mut worse = Vec::new();
        for func in FUNCS {
            for bytes in (10..31).step_by(if long { 2 } else { 5 }).map(|bits| 3u64 << bits >> 2) {
                let shape = tuning.shape(func, bytes, None).expect("a way");
                let choice = tuning.choose(&shape).expect("a choice");
                let expected = shape.estimate(&choice);
                let simulated = time(&machine, &tuning, func, bytes, (choice.algorithm, choice.channels));
                let ways = shape.costs();
                let ways = ways.entries().flat_map(|(algorithm, ..)| [1, 4, 8, 16, 32].map(|n| (algorithm, n)));
                let timed = ways.map(|way| (time(&machine, &tuning, func, bytes, way), way));
                let best = timed.min_by(|(a, ..), (b, ..)| a.total_cmp(b)).expect("a way");
                let (regret, error) = (simulated / best.0, simulated / expected);
                assert!(
                    regret < 1.4 && (0.4..1.8).contains(&error),
                    "{name} {func:?} {bytes}: {choice:?} takes {simulated:.0} us, not {expected:.0}; {best:?}"
                );
                worse.push(regret);
            }
        }
        let mean = worse.iter().sum::<f64>() / worse.len() as f64;
        println!("{name}: mean {mean:.3}");
        assert!(mean < 1.05, "{name}: {mean}");
    }
}

/// Small calls take few hops between hosts, and large ones what has to cross; a ring sends more.
#[test]
fn across_hosts_sizes_decide() {
    let (machine, tuning) = on("2x8xH100-tcp100");
    let choice = |bytes| choose(&tuning, Func::AllReduce, bytes, None);
    assert_eq!((choice(1 << 10).algorithm, choice(1 << 10).protocol), (Algo::Direct, Proto::Simple));
    assert!([25, 30].iter().all(|bits| matches!(choice(1 << bits).algorithm, Algo::Direct | Algo::TwoStep)));
    assert!(choice(1 << 30).channels >= 4 && choice(1 << 10).channels == 1);
    let took = |algorithm| time(&machine, &tuning, Func::AllReduce, 1 << 30, (algorithm, 16));
    assert!(took(Algo::Ring) > 1.7 * took(Algo::TwoStep), "{} {}", took(Algo::Ring), took(Algo::TwoStep));
    // Nobody asks for buffers on another host.
    assert!(!Tuning { agreed: Agreed { maps_buffers: true, ..tuning.agreed }, ..tuning }.offers_buffers());
}

/// Software devices on several hosts: hops of a network count more than those in a host, and a ring's bytes.
#[test]
fn software_devices_count_hops_between_hosts() {
    let hosts = |hosts: &[u32]| {
        let agreed = Agreed::with_filters(Filters::parse("", "Simple").expect("filters"));
        Tuning::new(MachineConstants::software(2), Arc::new(Graph::of_hosts(hosts.to_vec())), agreed)
    };
    let tuning = hosts(&[0, 0, 0, 1, 1, 1]);
    assert_eq!(choose(&tuning, Func::AllReduce, 8, None).algorithm, Algo::Direct);
    assert_ne!(choose(&tuning, Func::AllGather, 64 << 20, None).algorithm, Algo::Ring);
    let took = |tuning: &Tuning, algorithm| tuning.model.estimate(Func::AllReduce, algorithm, Proto::Simple, 8, 1);
    assert!(took(&tuning, Algo::Ring) > took(&hosts(&[0; 6]), Algo::Ring) + 100.0);
}
