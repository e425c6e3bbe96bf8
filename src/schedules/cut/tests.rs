use super::*;
use crate::plan::wiring::Wiring;

const SLOT_BYTES: u32 = 4096;

/// What rank 1 of four cuts from, on four channels.
fn source() -> CutSource {
    let wiring = Wiring::of_host(4, Proto::Simple, 4, SLOT_BYTES).expect("a wiring");
    let links = wiring.links(1);
    let image = DeviceSchedules::compile(1, wiring.graph(), 4, &links).expect("schedules");
    let (tables, _) = LinkTables::lay_out((1, 4), wiring.sets(), &links, SLOT_BYTES);
    CutSource { schedules: image.at(0), tables }
}

fn collective(func: Func, count: u64) -> Collective {
    Collective { func, count, datatype: DataType::Int8, root: 0 }
}

fn choice(algorithm: Algo, channels: u32) -> Choice {
    Choice { algorithm, protocol: Proto::Simple, channels }
}

/// The elements of each channel.
fn ranges(cut: &Cut) -> Vec<(u64, u64)> {
    let work = |channel| cut.work(channel, channel, DataType::Int8, &Operator::COPY);
    (0..cut.channels()).map(work).map(|work| (work.lo, work.hi)).collect()
}

#[test]
fn a_call_has_the_channels_that_are_chosen() {
    let source = source();
    for channels in 1..=4 {
        // Less than the cost model would give several channels.
        let cut = source.cut(choice(Algo::Ring, channels), &collective(Func::AllReduce, 16 << 10)).expect("a cut");
        assert_eq!(cut.needs(), (LinkClass::Ring, Proto::Simple, channels));
        assert_eq!(ranges(&cut).len(), channels as usize);
    }
    let more = source.cut(choice(Algo::Ring, 9), &collective(Func::AllReduce, 1 << 20)).expect("a cut");
    assert_eq!(more.channels(), 4);
    let tiny = source.cut(choice(Algo::Ring, 4), &collective(Func::AllReduce, 8)).expect("a cut");
    assert_eq!(tiny.channels(), 1);
}

#[test]
fn what_there_is_no_schedule_for_is_an_error() {
    let cut = source().cut(choice(Algo::Pat, 1), &collective(Func::AllReduce, 8)).map(|_| ());
    assert!(matches!(cut, Err(Error::Internal(_))));
}

#[test]
fn both_ways_of_a_zero_copy_call_move_the_same_elements() {
    let source = source();
    for (func, algorithm) in [
        (Func::AllReduce, Algo::Ring),
        (Func::AllReduce, Algo::Tree),
        (Func::AllReduce, Algo::Direct),
        (Func::Broadcast, Algo::Tree),
        (Func::AllGather, Algo::Pat),
    ] {
        for channels in [1, 4] {
            let call = collective(func, 1 << 20);
            let cut = source.cut(choice(algorithm, channels), &call).expect("a cut");
            let ZeroCopyCuts { direct, slots } = source.zero_copy(&call, &cut).expect("cuts").expect("a variant");
            assert_eq!((direct.channels(), slots.channels()), (channels, channels));
            // One channel has all elements, however they are divided into chunks.
            if channels > 1 {
                assert_eq!(ranges(&direct), ranges(&slots), "{func:?} by {algorithm:?}");
            }
            assert_ne!(direct.work(0, 0, DataType::Int8, &Operator::COPY).flags & work_flag::OFFER, 0);
            assert_eq!(slots.work(0, 0, DataType::Int8, &Operator::COPY).flags & work_flag::OFFER, 0);
        }
    }
}

#[test]
fn a_half_has_one_link_and_a_copy_none() {
    let source = source();
    let links =
        |half| source.cut_half(half, Proto::Simple, 100, DataType::Int8).map(|cut| cut.needs().2).expect("a cut");
    assert_eq!([Half::Send(2), Half::Receive(0), Half::Copy].map(links), [1, 1, 0]);
    let (tables, _) = LinkTables::lay_out((0, 1), &[], &[], SLOT_BYTES);
    let graph = crate::topology::Graph::of_host(1);
    let image = DeviceSchedules::compile(0, &graph, 1, &[]).expect("schedules");
    let alone = CutSource { schedules: image.at(0), tables };
    let copy = alone.cut_half(Half::Copy, Proto::Simple, 10_000, DataType::Int8).expect("a cut");
    assert_eq!(copy.work(0, 0, DataType::Int8, &Operator::COPY).piece, u64::from(SLOT_BYTES));
}
