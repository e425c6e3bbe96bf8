//! Tests of the clock: against what can be computed by hand, and against public figures.

use super::*;

fn call(algorithm: Algo, protocol: Proto, bytes: u64, channels: u32, slot_bytes: u32) -> TimedCall {
    TimedCall { func: Func::AllReduce, algorithm, protocol, bytes, channels, slot_bytes }
}

fn time(machine: &MachineModel, kernel: &KernelModel, call: TimedCall) -> f64 {
    predict(machine, kernel, &call).expect("a time")
}

/// NCCL's ring by a model of NCCL's kernels, against what NCCL's own cost model says and what was measured: large calls
/// by Simple with NCCL's number of channels and half of its slots of 1 MiB at a time, small ones by LL.
#[test]
fn nccls_ring_takes_what_it_takes() {
    for (machine, channels) in [
        (MachineModel::eight_h100(), 24),
        (MachineModel::four_a100_pcie(), 2),
        (MachineModel::two_rtx_without_p2p(), 4),
    ] {
        let simple =
            |bytes| time(&machine, &KernelModel::NCCL, call(Algo::Ring, Proto::Simple, bytes, channels, 512 << 10));
        let lines = |bytes| time(&machine, &KernelModel::NCCL, call(Algo::Ring, Proto::Ll, bytes, 1, 64 << 10));
        for (bytes, simulated) in [(8, lines(8)), (1 << 26, simple(1 << 26)), (1 << 30, simple(1 << 30))] {
            let expected = nccl_ring(&machine, Func::AllReduce, bytes).expect("a ring");
            let ratio = simulated / expected;
            assert!((0.8..1.25).contains(&ratio), "{} {bytes} B: {simulated:.1} us, NCCL {expected:.1}", machine.name);
        }
    }
    // Measured: 370 GB/s of bus bandwidth on eight H100 with NCCL_ALGO=Ring; 25.9 on four boards with PCIe 4.0.
    let busbw = |machine: &MachineModel, us: f64| {
        (1u64 << 30) as f64 / us / 1e3 * 2.0 * f64::from(machine.ranks - 1) / f64::from(machine.ranks)
    };
    for (machine, channels, measured) in
        [(MachineModel::eight_h100(), 24, 370.0), (MachineModel::four_a100_pcie(), 2, 25.9)]
    {
        let us = time(&machine, &KernelModel::NCCL, call(Algo::Ring, Proto::Simple, 1 << 30, channels, 512 << 10));
        let ratio = busbw(&machine, us) / measured;
        assert!((0.8..1.2).contains(&ratio), "{}: {:.1} GB/s, measured {measured}", machine.name, busbw(&machine, us));
    }
}

/// A hop of LL is a store's way and half a poll; own data are loaded before or behind that.
#[test]
fn a_small_call_is_hops() {
    let machine = MachineModel::eight_h100();
    let kernel = KernelModel { early: true, ..KernelModel::CURRENT };
    let MachineModel { launch, block, path, .. } = machine.clone();
    let us = time(&machine, &kernel, call(Algo::Direct, Proto::Ll, 8, 1, 64 << 10));
    // Two turns of its own, or one and the way of what the others send in theirs.
    let turn = block.turn + block.load;
    let by_hand = launch + (2.0 * turn).max(turn + path.latency + block.poll / 2.0);
    assert!((us - by_hand).abs() < 0.01, "{us} {by_hand}");
    let far = MachineModel { path: PathModel { latency: 9.0, ..path }, ..machine };
    let us = time(&far, &kernel, call(Algo::Direct, Proto::Ll, 8, 1, 64 << 10));
    let by_hand = launch + turn + 9.0 + block.poll / 2.0;
    assert!((us - by_hand).abs() < 0.01, "{us} {by_hand}");
}

/// With more bytes than anything else counts for, the links' bandwidth does, once for each time data go over them.
#[test]
fn large_calls_take_what_the_links_carry() {
    let machine = MachineModel::eight_h100();
    let bytes = 1u64 << 34;
    let us = time(&machine, &KernelModel::NCCL, call(Algo::Ring, Proto::Simple, bytes, 32, 512 << 10));
    let wire = 2.0 * 7.0 / 8.0 * bytes as f64 / machine.path.bandwidth;
    assert!(us > wire && us < 1.02 * wire, "{us} {wire}");
    // What all ranks share is shared.
    let shared = MachineModel { path: PathModel { fabric: machine.path.bandwidth, ..machine.path }, ..machine.clone() };
    let us = time(&shared, &KernelModel::NCCL, call(Algo::Ring, Proto::Simple, bytes, 32, 512 << 10));
    assert!(us > 7.9 * wire && us < 8.2 * wire, "{us} {wire}");
}

fn zero_copy_time(machine: &MachineModel, func: Func, bytes: u64) -> f64 {
    predict_zero_copy(machine, &KernelModel::CURRENT, func, bytes, 32).expect("a time")
}

/// Without slots a small call is signals: offers, verdicts, that all have begun, and that all have finished.
#[test]
fn a_small_call_without_slots_is_signals() {
    let machine = MachineModel::eight_h100();
    let MachineModel { launch, block, path, .. } = machine.clone();
    let us = zero_copy_time(&machine, Func::AllReduce, 8);
    // A turn that sends, its way, and the turn that hears it.
    let hop = |sends: f64| sends + path.fence + path.latency + block.poll / 2.0 + block.turn / 2.0;
    // The first two sources at the same time.
    let reads = 6.0 * path.remote_load + block.load;
    let by_hand = launch + 3.0 * hop(block.turn) + hop(reads);
    assert!((us - by_hand).abs() < 0.01, "{us} {by_hand}");
}

/// With many bytes reading takes what the links carry, which all channels share; and all who read from one rank.
#[test]
fn reads_of_peers_memory_share_the_links() {
    let machine = MachineModel::eight_h100();
    let bytes = 1u64 << 30;
    let wire = bytes as f64 / machine.path.bandwidth;
    for (func, times) in [(Func::AllReduce, 14.0 / 8.0), (Func::ReduceScatter, 7.0 / 8.0), (Func::Broadcast, 7.0)] {
        let us = zero_copy_time(&machine, func, bytes);
        assert!(us > times * wire && us < 1.05 * times * wire, "{func:?} {us} {}", times * wire);
    }
    // Loads one after the other are slow where there are few channels.
    let few = predict_zero_copy(&machine, &KernelModel::CURRENT, Func::AllReduce, bytes, 4).expect("a time");
    let kernel = KernelModel { sources: 7, ..KernelModel::CURRENT };
    let together = predict_zero_copy(&machine, &kernel, Func::AllReduce, bytes, 4).expect("a time");
    assert!(few > 1.5 * together, "{few} {together}");
}

#[test]
fn more_slots_in_flight_channels_and_loads_are_quicker() {
    let machine = MachineModel::eight_h100();
    let ring = |kernel: &KernelModel, channels, slot| {
        time(&machine, kernel, call(Algo::Ring, Proto::Simple, 1 << 28, channels, slot))
    };
    let serial = KernelModel::SERIAL;
    assert!(ring(&serial, 2, 256 << 10) > 1.8 * ring(&serial, 4, 256 << 10));
    assert!(ring(&serial, 4, 16 << 10) > 2.0 * ring(&serial, 4, 256 << 10));
    let overlapping = KernelModel { overlaps: true, fences: 1, ..serial };
    assert!(ring(&serial, 4, 64 << 10) > 1.2 * ring(&overlapping, 4, 64 << 10));
}

/// An exchange is a message each way at the same time: a turn of each half, and in the end what a link carries.
#[test]
fn an_exchange_takes_one_message() {
    let machine = MachineModel { ranks: 3, ..MachineModel::eight_h100() };
    let exchange = |bytes, channels| TimedCall {
        func: Func::Send,
        ..call(Algo::Direct, Proto::Simple, bytes, channels, 256 << 10)
    };
    let us = |bytes, channels| time(&machine, &KernelModel::CURRENT, exchange(bytes, channels));
    let MachineModel { launch, block, path, .. } = machine.clone();
    let sent = block.turn + block.load + path.fence + path.latency;
    let by_hand = launch + sent + block.poll / 2.0 + block.turn / 2.0 + path.receive_load;
    assert!((us(8, 1) - by_hand).abs() < 0.01, "{} {by_hand}", us(8, 1));
    let wire = (1u64 << 32) as f64 / machine.path.bandwidth;
    assert!((1.0..1.05).contains(&(us(1 << 32, 32) / wire)), "{} {wire}", us(1 << 32, 32));
}

/// Every schedule comes to an end on the clock, too.
#[test]
fn all_schedules_end() {
    for ranks in [2, 3, 8, 17] {
        let graph = Graph::of_host(ranks);
        let machine = MachineModel { ranks, ..MachineModel::eight_h100() };
        for func in Func::COLLECTIVES {
            if zero_copy::can_agree(func, zero_copy::algo(func), &graph) {
                let us = zero_copy_time(&machine, func, 1 << 22);
                assert!(us > machine.launch && us.is_finite(), "{func:?} without slots: {us}");
            }
            for algorithm in Algo::ALL.into_iter().filter(|algorithm| algorithm::available(func, *algorithm, &graph)) {
                for protocol in Proto::ALL {
                    for bytes in [4, 1 << 14, 1 << 22] {
                        let call = TimedCall { func, ..call(algorithm, protocol, bytes, 2, 8192) };
                        let us = time(&machine, &KernelModel::CURRENT, call);
                        assert!(us > machine.launch && us.is_finite(), "{call:?}: {us}");
                    }
                }
            }
        }
    }
}

/// Processors that blocks share are a limit as well, and so are their launches and that blocks give way to each other.
#[test]
fn blocks_take_turns_at_processors() {
    let us = |processors, switch, bytes| {
        let sharing = SharingModel { processors, spin: 0.5, switch };
        let machine = MachineModel::software(4, sharing, 0.1, 10_000.0);
        time(&machine, &KernelModel::CURRENT, call(Algo::Ring, Proto::Simple, bytes, 1, 256 << 10))
    };
    let large = |processors| us(processors, 1.0, 1 << 22);
    assert!(large(2) > 1.8 * large(4) && large(1) > 1.8 * large(2), "{} {} {}", large(1), large(2), large(4));
    let launch = MachineModel::software(4, SharingModel::NONE, 0.1, 10_000.0).launch;
    assert!(us(2, 0.0, 8) > 2.0 * launch && us(1, 0.0, 8) > 4.0 * launch);
    // Six hops of a ring, and two ranks to a processor.
    assert!(us(2, 2.0, 8) > us(2, 1.0, 8) + 4.0, "{} {}", us(2, 2.0, 8), us(2, 1.0, 8));
}

/// Between hosts a small call is what a mover, the way and kernels take; a large one what interfaces carry, or movers
/// where few ranks send.
#[test]
fn hosts_are_joined_by_a_network() {
    let two = MachineModel::named("2x8xH100-tcp100").expect("a machine");
    let NetworkModel { latency, bandwidth, rank_bandwidth, message, .. } = two.network;
    assert_eq!((two.ranks, two.hosts, two.graph().nhosts()), (16, 2, 2));
    let alone = MachineModel { ranks: 2, ..two.clone() };
    let us = time(&alone, &KernelModel::CURRENT, call(Algo::Direct, Proto::Simple, 8, 1, 64 << 10));
    let MachineModel { launch, block, path, .. } = alone.clone();
    let way = block.turn + block.load + path.fence + message + 8.0 / rank_bandwidth + latency;
    let by_hand = launch + way + block.poll / 2.0 + block.turn / 2.0 + two.network.receive_load;
    assert!((us - by_hand).abs() < 0.02, "{us} {by_hand}");
    let bytes = 1u64 << 30;
    let large = |algorithm, channels| {
        time(&two, &KernelModel::CURRENT, call(algorithm, Proto::Simple, bytes, channels, 64 << 10)) / bytes as f64
    };
    // Of a host: all of it once, by interfaces; by a ring 15/8 of it, which one rank sends where there is one channel.
    assert!((1.0..1.1).contains(&(large(Algo::TwoStep, 16) * bandwidth)), "{}", large(Algo::TwoStep, 16) * bandwidth);
    assert!((1.875..2.0).contains(&(large(Algo::Ring, 16) * bandwidth)), "{}", large(Algo::Ring, 16) * bandwidth);
    let mover = rank_bandwidth / (1.0 + message * rank_bandwidth / 65536.0);
    assert!((1.8..2.1).contains(&(large(Algo::Ring, 1) * mover)), "{}", large(Algo::Ring, 1) * mover);
}

/// Every schedule comes to an end between hosts, too.
#[test]
fn all_schedules_of_hosts_end() {
    for (ranks, hosts) in [(2, 2), (7, 2), (9, 3), (20, 10)] {
        let machine = MachineModel { ranks, hosts, ..MachineModel::eight_h100() };
        for (func, algorithm) in Func::COLLECTIVES.into_iter().flat_map(|func| Algo::ALL.map(|algo| (func, algo))) {
            if algorithm::available(func, algorithm, &machine.graph()) {
                let call = TimedCall { func, ..call(algorithm, Proto::Simple, 1 << 20, 2, 8192) };
                let us = time(&machine, &KernelModel::CURRENT, call);
                assert!(us > machine.launch + machine.network.latency && us.is_finite(), "{call:?}: {us}");
            }
        }
    }
}

#[test]
fn descriptions_are_read_and_what_is_wrong_is_named() {
    let text = "# ours\nbase = 4xA100-pcie\nname = ours # with a comment\nranks=6\n\nbandwidth = 20\nlatency = 1.5\n";
    let machine = MachineModel::parse(text).expect("a machine");
    assert_eq!((machine.name.as_str(), machine.ranks, machine.whole_lines), ("ours", 6, false));
    assert_eq!((machine.path.bandwidth, machine.path.latency, machine.path.fence), (20_000.0, 1.5, 1.8));
    let two = MachineModel::parse("base = 2x4xA100-pcie-tcp25\nnet_latency = 40\n").expect("a machine");
    assert_eq!((two.name.as_str(), two.ranks, two.hosts, two.network.latency), ("2x4xA100-pcie-tcp25", 8, 2, 40.0));
    assert_eq!(two.network.bandwidth, 25.0 * 0.94 * 125.0);
    let names = ["1x8xH100-tcp100", "2x8xH100-tcp", "2xnone-tcp10", "2x8xH100-tcp0", "8xH100-tcp10"];
    assert!(names.iter().all(|name| MachineModel::named(name).is_none()));
    assert_eq!(MachineModel::parse("").expect("the default"), MachineModel::eight_h100());
    for (bad, word) in [
        ("ranks", "key = value"),
        ("ranks = 1", "2 or more"),
        ("speed = 3", "no such key"),
        ("base = mine", "no such machine"),
        ("latency = -1", "microseconds"),
        ("bandwidth = 0", "GB/s"),
    ] {
        let error = MachineModel::parse(&format!("ranks = 2\n{bad}")).expect_err(bad).to_string();
        assert!(error.contains("line 2") && error.contains(word), "{error}");
    }
}
