use super::*;

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
    let agreed =
        Agreed { channels: 2, slot_bytes: 4096, halvings: 0, filters, oversubscription: 1, maps_buffers: true };
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
    let filters = Filters::parse("ring", "Simple,LL").expect("filters");
    let agreed =
        Agreed { channels: 1, slot_bytes: 4096, halvings: 0, filters, oversubscription: 1, maps_buffers: false };
    let tuning = Tuning::new(MachineConstants::assumed(false, 1), Arc::new(Graph::of_host(2)), agreed);
    let protocol = |selected| choose(&tuning, Func::Broadcast, 1 << 16, selected).protocol;
    assert_eq!([None, bit(Algo::Ring)].map(protocol), [Proto::Simple, Proto::Ll]);
}
