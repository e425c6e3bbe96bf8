mod hosts;

use super::*;
use crate::plan::timing::{self, KernelModel, MachineModel, TimedCall};

/// A tuner with one answer.
struct Fixed(Option<Choice>);

impl Tuner for Fixed {
    fn choose(&self, _shape: &CallShape<'_>) -> Option<Choice> {
        self.0
    }
}

/// A tuner that takes what the cost model expects to be slowest.
struct Slowest;

impl Tuner for Slowest {
    fn choose(&self, shape: &CallShape<'_>) -> Option<Choice> {
        let slowest = shape.costs().entries().max_by(|(.., a), (.., b)| a.total_cmp(b));
        slowest.map(|(algorithm, protocol, _)| Choice { algorithm, protocol, channels: shape.max_channels })
    }
}

/// Four ranks with two channels.
fn tuning(algorithms: &str, protocols: &str) -> Tuning {
    let filters = Filters::parse(algorithms, protocols).expect("filters");
    let agreed = Agreed { maps_buffers: true, ..Agreed::with_filters(filters) };
    Tuning::new(MachineConstants::software(2), Arc::new(Graph::of_host(4)), agreed)
}

fn choose(tuning: &Tuning, func: Func, bytes: u64, selected: Option<u8>) -> Choice {
    tuning.choose(&tuning.shape(func, bytes, selected).expect("a way")).expect("a choice")
}

fn bit(algorithm: Algo) -> Option<u8> {
    Some(1 << algorithm as u8)
}

#[test]
fn a_tuner_is_obeyed() {
    let choice = Choice { algorithm: Algo::Tree, protocol: Proto::Ll, channels: 2 };
    let tuning = tuning("", "").with_tuner(Box::new(Fixed(Some(choice))));
    for bytes in [0, 8, 1 << 30] {
        assert_eq!(choose(&tuning, Func::AllReduce, bytes, None), choice);
    }
    // Within the channels that there are.
    let many = tuning.with_tuner(Box::new(Fixed(Some(Choice { channels: 99, ..choice }))));
    assert_eq!(choose(&many, Func::AllReduce, 8, None), choice);
    let none = many.with_tuner(Box::new(Fixed(Some(Choice { channels: 0, ..choice }))));
    assert_eq!(choose(&none, Func::AllReduce, 8, None), Choice { channels: 1, ..choice });
}

#[test]
fn a_tuner_sees_what_ways_are_open_and_what_they_cost() {
    let slowest = tuning("ring,tree", "Simple").with_tuner(Box::new(Slowest));
    let choice = choose(&slowest, Func::AllReduce, 1 << 20, None);
    let quickest = choose(&tuning("ring,tree", "Simple"), Func::AllReduce, 1 << 20, None);
    assert_ne!(choice.algorithm, quickest.algorithm);
    assert_eq!((choice.protocol, choice.channels), (Proto::Simple, 2));
    // A call's own selection counts, too.
    assert_eq!(choose(&slowest, Func::AllReduce, 1 << 20, bit(Algo::Ring)).algorithm, Algo::Ring);
}

#[test]
fn a_choice_that_is_not_available_falls_back_and_is_told_once() {
    let told = |tuning: &Tuning, func: Func| {
        tuning.open[func as usize].as_ref().is_some_and(|open| open.told_of_tuner.load(Ordering::Relaxed))
    };
    // No such algorithm for the function, one that is filtered away, a protocol that there are no links for.
    for (algorithm, protocol) in [(Algo::Pat, Proto::Simple), (Algo::Tree, Proto::Simple), (Algo::Ring, Proto::Ll)] {
        let choice = Choice { algorithm, protocol, channels: 1 };
        let tuning = tuning("^tree", "Simple").with_tuner(Box::new(Fixed(Some(choice))));
        let built_in = Tuning { tuner: None, ..self::tuning("^tree", "Simple") };
        assert!(!told(&tuning, Func::AllReduce));
        for bytes in [8, 1 << 20] {
            let expected = choose(&built_in, Func::AllReduce, bytes, None);
            assert_eq!(choose(&tuning, Func::AllReduce, bytes, None), expected);
            assert!(told(&tuning, Func::AllReduce) && !told(&tuning, Func::Reduce));
        }
    }
}

#[test]
fn a_tuner_can_leave_the_choice_to_the_cost_model() {
    let silent = tuning("", "").with_tuner(Box::new(Fixed(None)));
    let expected = choose(&tuning("", ""), Func::Broadcast, 1024, None);
    assert_eq!(choose(&silent, Func::Broadcast, 1024, None), expected);
}

#[test]
fn a_filter_that_leaves_nothing_opens_everything_and_is_told_once() {
    let tuning = tuning("nvls", "Simple");
    let untold = || tuning.open[Func::AllReduce as usize].as_ref().expect("open").untold.load(Ordering::Relaxed);
    assert!(untold());
    let all = choose(&self::tuning("", "Simple"), Func::AllReduce, 1 << 20, None);
    assert_eq!(choose(&tuning, Func::AllReduce, 1 << 20, None), all);
    assert!(!untold());
}

#[test]
fn a_selection_goes_before_the_filter_and_is_a_hint() {
    let tuning = tuning("ring", "LL");
    let of = |selected| choose(&tuning, Func::AllReduce, 1 << 20, selected);
    let expect = |algorithm| Choice { algorithm, protocol: Proto::Ll, channels: 2 };
    assert_eq!(of(None), expect(Algo::Ring));
    assert_eq!(of(bit(Algo::Tree)), expect(Algo::Tree));
    assert_eq!(of(bit(Algo::Pat)), expect(Algo::Ring));
}

#[test]
fn one_rank_has_no_way_and_asks_nobody_for_buffers() {
    let agreed = tuning("", "").agreed;
    let alone = Tuning::new(MachineConstants::software(1), Arc::new(Graph::of_host(1)), agreed);
    assert!(alone.shape(Func::AllReduce, 8, None).is_err());
    assert!(!alone.offers_buffers() && tuning("", "").offers_buffers());
}

#[test]
fn ranks_ask_for_buffers_where_it_is_worth_it_and_open() {
    let asks = |algorithms: &str, protocols: &str, bytes, selected| {
        let tuning = tuning(algorithms, protocols);
        let shape = tuning.shape(Func::AllReduce, bytes, selected).expect("a way");
        tuning.offers_buffers_for(&shape, &tuning.choose(&shape).expect("a choice"))
    };
    assert!(asks("", "Simple", OFFER_BYTES, None));
    assert!(!asks("", "Simple", OFFER_BYTES - 1, None));
    assert!(!asks("", "LL", OFFER_BYTES, None));
    assert!(!asks("ring", "Simple", OFFER_BYTES, None) && asks("ring,direct2", "Simple", OFFER_BYTES, None));
    assert!(!asks("", "Simple", OFFER_BYTES, bit(Algo::Ring)) && asks("", "Simple", OFFER_BYTES, bit(Algo::TwoStep)));
    // Where the filter leaves nothing, no slots are no way that it has left.
    assert!(!asks("nvls", "Simple", OFFER_BYTES, None));
}

/// The table has one choice for all sizes of as many bits; a selection is weighed for the call's own size.
#[test]
fn a_selection_is_weighed_at_the_calls_own_size() {
    let tuning = |algorithms: &str| {
        let filters = Filters::parse(algorithms, "Simple,LL").expect("filters");
        let agreed = Agreed { filters, ..agreed_on_gpus(LinkKind::NvLink) };
        Tuning::new(MachineConstants::gpus(LinkKind::NvLink), Arc::new(Graph::of_host(8)), agreed)
    };
    let tuning = tuning("ring");
    let of = |bytes, selected| choose(&tuning, Func::AllGather, bytes, selected).protocol;
    let differ = |bytes: &u64| of(*bytes, None) != of(*bytes, bit(Algo::Ring));
    let first = (1 << 12..1 << 24).step_by(1 << 14).find(differ).expect("a size at which the class is not the size");
    assert_eq!(of(first.next_power_of_two() * 3 / 4, bit(Algo::Ring)), of(first, None));
}

/// What a communicator of GPUs on one host agrees on if nobody asks for anything.
fn agreed_on_gpus(links: LinkKind) -> Agreed {
    let (filters, _) = Filters::ALL.usable(false, 90, false);
    let mut agreed = Agreed {
        channels: 32,
        slot_bytes: preferred_slot_bytes(0),
        message_channels: preferred_message_channels(false, 8),
        ..Agreed::with_filters(filters)
    };
    if links != LinkKind::NvLink {
        assert_eq!(agreed.without_whole_lines(), None);
    }
    agreed
}

/// A call on GPUs: what is chosen, and what ways there are, as the simulation times them.
struct Timed {
    choice: Choice,
    expected: f64,
    simulated: f64,
    /// The quickest of all.
    best: (f64, Algo, Proto, u32),
}

fn timed(tuning: &Tuning, links: LinkKind, func: Func, bytes: u64) -> Timed {
    let MachineConstants::Gpus(machine, kernel) = MachineConstants::gpus(links) else { panic!("no GPUs") };
    let shape = tuning.shape(func, bytes, None).expect("a way");
    let choice = tuning.choose(&shape).expect("a choice");
    let time = |algorithm: Algo, protocol, channels| {
        let slot_bytes = tuning.slot_bytes(func, algorithm, protocol);
        let call = TimedCall { func, algorithm, protocol, bytes, channels, slot_bytes };
        timing::predict(&machine, &kernel, &call).expect("a time")
    };
    let ways = shape.costs();
    let ways = ways.entries().flat_map(|(algorithm, protocol, _)| [1, 4, 16, 32].map(|n| (algorithm, protocol, n)));
    let best = ways.map(|(algorithm, protocol, n)| (time(algorithm, protocol, n), algorithm, protocol, n));
    Timed {
        choice,
        expected: shape.estimate(&choice),
        simulated: time(choice.algorithm, choice.protocol, choice.channels),
        best: best.min_by(|(a, ..), (b, ..)| a.total_cmp(b)).expect("a way"),
    }
}

/// The closed form against the simulation: what it chooses is not far from the quickest that there is, and what it
/// expects of that is not far from what comes out.
#[test]
fn on_gpus_the_choice_is_nearly_the_quickest() {
    for links in [LinkKind::NvLink, LinkKind::Pcie, LinkKind::HostMemory] {
        let MachineConstants::Gpus(machine, _) = MachineConstants::gpus(links) else { panic!("no GPUs") };
        let graph = Arc::new(Graph::of_host(machine.ranks));
        let tuning = Tuning::new(MachineConstants::gpus(links), graph, agreed_on_gpus(links));
        let (mut worse, long) = (Vec::new(), std::env::var_os("OXCCL_LONG").is_some());
        for func in [Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Broadcast, Func::Reduce] {
            // In the middle of the classes of size.
            for bytes in (10..31).step_by(if long { 1 } else { 4 }).map(|bits| 3u64 << bits >> 2) {
                let Timed { choice, expected, simulated, best } = timed(&tuning, links, func, bytes);
                let (regret, error) = (simulated / best.0, simulated / expected);
                assert!(
                    regret < 1.7 && (0.6..2.0).contains(&error),
                    "{links:?} {func:?} {bytes}: {choice:?} takes {simulated:.1} us, not {expected:.1}; {best:?}"
                );
                worse.push(regret);
            }
        }
        let mean = worse.iter().sum::<f64>() / worse.len() as f64;
        println!("{links:?}: mean {mean:.3}");
        assert!(mean < 1.07, "{links:?}: {mean}");
    }
}

/// Three kinds of machines, and what their communicators have agreed on: also to map each other's buffers.
fn gpus_that_map(links: LinkKind) -> (MachineModel, Tuning) {
    let MachineConstants::Gpus(machine, _) = MachineConstants::gpus(links) else { panic!("no GPUs") };
    let graph = Arc::new(Graph::of_host(machine.ranks));
    let agreed = Agreed { maps_buffers: true, ..agreed_on_gpus(links) };
    (machine, Tuning::new(MachineConstants::gpus(links), graph, agreed))
}

/// The closed form of calls without slots against the simulation.
#[test]
fn zero_copy_takes_what_is_expected_of_it() {
    for links in [LinkKind::NvLink, LinkKind::Pcie] {
        let (machine, tuning) = gpus_that_map(links);
        for func in Func::COLLECTIVES {
            for (bytes, channels) in (8..31).step_by(2).flat_map(|bits| [1, 4, 32].map(|n| (3u64 << bits >> 2, n))) {
                let expected = tuning.model.estimate_zero_copy(func, bytes, channels).expect("an estimate");
                let simulated = timing::predict_zero_copy(&machine, &KernelModel::CURRENT, func, bytes, channels);
                let error = simulated.expect("a time") / expected;
                assert!((0.9..1.15).contains(&error), "{links:?} {func:?} {bytes} {channels}: {expected} us, {error}");
            }
        }
    }
}

/// Ranks of GPUs ask each other for buffers where the cost model expects less of that: not where all read from one
/// rank, nor where signals take longer than lines of data.
#[test]
fn on_gpus_ranks_ask_for_buffers_where_that_is_quicker() {
    let (machine, tuning) = gpus_that_map(LinkKind::NvLink);
    let asks = |func, bytes| {
        let shape = tuning.shape(func, bytes, None).expect("a way");
        let choice = tuning.choose(&shape).expect("a choice");
        let asks = tuning.offers_buffers_for(&shape, &choice);
        let direct = timing::predict_zero_copy(&machine, &KernelModel::CURRENT, func, bytes, choice.channels);
        let ratio = direct.expect("a time") / shape.estimate(&choice);
        assert!(if asks { ratio < 1.05 } else { choice.protocol != Proto::Simple || ratio > 0.95 }, "{func:?} {bytes}");
        asks
    };
    let some: Vec<(Func, u64)> =
        Func::COLLECTIVES.into_iter().flat_map(|f| (8..31).map(move |b| (f, 3 << b))).collect();
    assert!(some.iter().any(|(func, bytes)| asks(*func, *bytes)));
    assert!(asks(Func::AllReduce, 3 << 28) && !asks(Func::AllReduce, 3 << 18) && !asks(Func::AllReduce, 3 << 10));
    assert!(asks(Func::Scatter, 3 << 18) && !asks(Func::Broadcast, 3 << 28) && !asks(Func::Reduce, 3 << 28));
    // What the table does not know is weighed at the call.
    let shape = tuning.shape(Func::Scatter, 1 << 20, bit(Algo::Direct)).expect("a way");
    assert!(tuning.offers_buffers_for(&shape, &tuning.choose(&shape).expect("a choice")));
    // A tuner's choice is weighed, not the built-in one.
    let slow = Choice { algorithm: Algo::Ring, protocol: Proto::Simple, channels: 1 };
    let fixed = tuning.with_tuner(Box::new(Fixed(Some(slow))));
    let shape = fixed.shape(Func::AllReduce, 3 << 18, None).expect("a way");
    assert!(fixed.offers_buffers_for(&shape, &fixed.choose(&shape).expect("a choice")));
}
