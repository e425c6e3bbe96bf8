//! Which launches with which work items come out of which calls of one communicator.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::fake::{Events, FakeComm, LENT_AT, OFFERED, call};
use crate::error::Error;
use crate::launch::Call;
use crate::launch::peers;
use crate::launch::plan::{Launches, Plan};
use crate::plan::LinkClass;
use crate::plan::call::{DataType, Func, Op};
use crate::plan::layout::{LinkEnd, MAX_WORK, Proto, Work, launch_flag, work_flag};
use crate::plan::offer::{MISSING, UNUSED};
use crate::plan::operator::{Reduction, Scalar};
use crate::plan::wiring::{LinkSet, Wiring};
use crate::schedules::{MESSAGES_KERNEL, ScheduleIndex, kernel_number};
use crate::topology::Graph;
use crate::transport::ConnectionGroup;
use crate::tuning::{Agreed, Filters, MachineConstants, Tuning};

/// The kernel for data that only move.
fn bytes() -> usize {
    kernel_number(Proto::Simple, DataType::Int8)
}

/// The launches of some calls, which have the numbers from 40 on.
fn launches(comm: &FakeComm, calls: &[Call]) -> Launches<Vec<Work>> {
    let numbered: Vec<(&Call, u32)> = calls.iter().zip(40..).collect();
    Plan::of(&comm, &numbered).and_then(Plan::launches).expect("launches")
}

/// The work items of the only launch that some calls come to, by block.
fn columns(comm: &FakeComm, calls: &[Call]) -> Vec<Vec<Work>> {
    let (launches, _) = launches(comm, calls);
    assert_eq!(launches.len(), 1);
    let arguments = &launches[0].arguments;
    let items = launches[0].lent.as_deref().unwrap_or(&arguments.work);
    let (total, blocks) = (arguments.nwork as usize, arguments.nchannels as usize);
    if arguments.flags & launch_flag::ROWS != 0 {
        let of = |block: usize| items[..total].iter().filter_map(move |row| part_of(row, block as u64, blocks as u64));
        return (0..blocks).map(|block| of(block).collect()).collect();
    }
    (0..blocks).map(|block| items[..total].iter().skip(block).step_by(blocks).copied().collect()).collect()
}

/// A block's part of a row, as kernels take it; none where it has none.
fn part_of(row: &Work, block: u64, blocks: u64) -> Option<Work> {
    let (channel, part) = ((block + blocks - u64::from(row.first)) % blocks, row.hi - row.lo);
    let lo = channel.checked_mul(part).filter(|lo| *lo < row.block)?;
    let links = row.links + block * u64::from(row.nlinks) * size_of::<LinkEnd>() as u64;
    Some(Work { lo, hi: (lo + part).min(row.block), links, first: 0, ..*row })
}

fn message(func: Func, peer: i32, count: usize) -> Call {
    Call { root: peer, ..call(func, count) }
}

/// The numbers of the calls that a block works for.
fn serials(column: &[Work]) -> Vec<u32> {
    column.iter().filter(|work| **work != Work::default()).map(|work| work.serial).collect()
}

#[test]
fn collectives_come_before_messages_and_each_kernel_is_launched_once() {
    let comm = FakeComm::of(4, &Events::default());
    let float = Call { datatype: DataType::Float32, ..call(Func::AllReduce, 100) };
    let calls = [
        message(Func::Send, 2, 100),
        float.clone(),
        call(Func::Broadcast, 100),
        float,
        Call { datatype: DataType::Float64, ..call(Func::AllGather, 100) },
        message(Func::Recv, 0, 100),
    ];
    let (launches, _) = launches(&comm, &calls);
    let floats = kernel_number(Proto::Simple, DataType::Float32);
    assert_eq!(launches.iter().map(|launch| launch.kernel).collect::<Vec<_>>(), [floats, bytes(), bytes()]);
    let serials = |at: usize| serials(&launches[at].arguments.work);
    assert_eq!((serials(0), serials(1)), (vec![41, 43], vec![42, 44]));
    assert_eq!(serials(2), [40, 45]);
}

#[test]
fn a_work_item_says_what_its_call_says() {
    let comm = FakeComm::of(4, &Events::default());
    let call = Call { datatype: DataType::Float32, ..call(Func::AllReduce, 100) };
    let columns = columns(&comm, std::slice::from_ref(&call));
    assert_eq!(columns.len(), 1);
    let work = columns[0][0];
    assert_eq!((work.input, work.output, work.serial, work.count), (call.send, call.recv, 40, 100));
    assert_eq!((work.signature, work.offers), (call.signature(), [0; 2]));
    assert_eq!(work.datatype, DataType::Float32 as u8);
    // Data that only move are bytes.
    let moved = Call { func: Func::AllGather, ..call };
    let work = self::columns(&comm, std::slice::from_ref(&moved))[0][0];
    assert_eq!((work.datatype, work.count, work.block), (DataType::Int8 as u8, 1600, 400));
    let (launches, _) = launches(&comm, &[moved]);
    assert_eq!((launches[0].arguments.spin, launches[0].arguments.items), (5, 0));
}

#[test]
fn nothing_comes_of_calls_without_data() {
    let comm = FakeComm::of(4, &Events::default());
    let calls = [call(Func::AllReduce, 0), message(Func::Send, 2, 0), message(Func::Recv, 1, 0)];
    let (launches, missing) = launches(&comm, &calls);
    assert_eq!((launches.len(), missing), (0, vec![]));
}

#[test]
fn calls_of_a_group_run_side_by_side() {
    let comm = FakeComm::tuned(4, "ring", &Events::default());
    let calls = [call(Func::AllReduce, 8), call(Func::AllReduce, 1 << 20), call(Func::AllReduce, 8)];
    let columns = columns(&comm, &calls);
    // The first on channel 0, the second from channel 1 on, the third where that one has begun.
    assert_eq!(columns.iter().map(|column| serials(column)).collect::<Vec<_>>(), [vec![40, 41], vec![41, 42]]);
    let [first, second] = [columns[0][1], columns[1][0]];
    assert_eq!((second.lo, second.hi), (0, first.lo));
    assert_ne!(columns[0][0].links, columns[1][1].links);
    // One item for each call, whatever its channels.
    let (launches, _) = launches(&comm, &calls);
    assert_eq!((launches[0].arguments.nwork, launches[0].arguments.nchannels), (3, 2));
}

#[test]
fn channels_with_orders_of_their_own_have_items_of_their_own() {
    let graph = Graph::shuffled(4, 1, 2, 7);
    let set = |class| LinkSet { class, proto: Proto::Simple, channels: 2, slot_bytes: 4096 };
    let peers = LinkSet { channels: 1, ..set(LinkClass::Peer) };
    let sets = LinkClass::COLLECTIVE.map(set).into_iter().chain([peers]).collect();
    let wiring = Wiring::new(graph, sets).expect("a wiring");
    let schedules = ScheduleIndex::without_device(1, 2, Some(&wiring));
    let comm = FakeComm { schedules, ..FakeComm::tuned(4, "ring", &Events::default()) };
    let calls = [call(Func::AllReduce, 8), call(Func::AllReduce, 1 << 20)];
    let (launches, _) = launches(&comm, &calls);
    assert_eq!(launches[0].arguments.flags & launch_flag::ROWS, 0);
    let columns = columns(&comm, &calls);
    assert_eq!((serials(&columns[0]), serials(&columns[1])), (vec![40, 41], vec![41]));
    assert_ne!((columns[0][1].steps, columns[0][1].links), (columns[1][0].steps, columns[1][0].links));
}

#[test]
fn items_that_do_not_fit_the_argument_are_lent() {
    let comm = FakeComm::tuned(4, "ring", &Events::default());
    let few = launches(&comm, &vec![call(Func::AllReduce, 8); MAX_WORK]).0;
    assert_eq!((few.len(), few[0].arguments.nwork, few[0].arguments.items), (1, MAX_WORK as u32, 0));
    assert!(few[0].lent.is_none());
    let many = launches(&comm, &vec![call(Func::AllReduce, 8); MAX_WORK + 1]).0;
    assert_eq!((many.len(), many[0].arguments.nwork, many[0].arguments.items), (1, MAX_WORK as u32 + 1, LENT_AT));
    let serials = serials(many[0].lent.as_ref().expect("memory"));
    assert_eq!(serials, (40..40 + MAX_WORK as u32 + 1).collect::<Vec<_>>());
    assert_eq!(many[0].arguments.work, [Work::default(); MAX_WORK]);
}

#[test]
fn links_are_missing_once_and_until_they_are_connected() {
    let comm = FakeComm::tuned(4, "ring", &Events::default());
    let channel = |channel| ConnectionGroup::Channel { class: LinkClass::Ring, proto: Proto::Simple, channel };
    let calls = [call(Func::AllReduce, 1 << 20), call(Func::AllReduce, 1 << 20), message(Func::Recv, 3, 8)];
    let both = [message(Func::Send, 3, 8), message(Func::Send, 0, 8)];
    let all = [channel(0), channel(1), ConnectionGroup::pair(1, 0), ConnectionGroup::pair(1, 3)];
    let missing = |comm: &FakeComm| {
        let mut missing = launches(comm, &[calls.as_slice(), &both].concat()).1;
        missing.sort_by_key(|group| all.iter().position(|other| other == group));
        missing
    };
    assert_eq!(missing(&comm), all);
    comm.schedules.note_connected(all[1]);
    comm.schedules.note_connected(all[2]);
    assert_eq!(missing(&comm), [all[0], all[3]]);
}

#[test]
fn ranks_that_ask_each_other_for_buffers_have_two_items_in_each_block() {
    let large = call(Func::AllReduce, 1 << 20);
    let comm = FakeComm::of(4, &Events::default()).with_zero_copy(large.recv);
    let columns = columns(&comm, std::slice::from_ref(&large));
    assert_eq!(columns.len(), 2);
    for column in columns {
        let (direct, slots) = (column[0], column[1]);
        assert_eq!((direct.flags & work_flag::OFFER, slots.flags & work_flag::OFFER), (work_flag::OFFER, 0));
        assert_eq!(direct.offers, [MISSING, OFFERED | large.recv]);
        assert_eq!((slots.offers, slots.serial, slots.signature), ([0; 2], direct.serial, direct.signature));
    }
    // The root's data are read; the others have none that anybody needs.
    let broadcast = self::columns(&comm, &[call(Func::Broadcast, 1 << 20)]);
    assert_eq!(broadcast[0][0].offers[0], UNUSED);
}

#[test]
fn little_data_and_scaled_data_need_slots() {
    let comm = FakeComm::of(4, &Events::default()).with_zero_copy(0);
    let scaled = Reduction::Scaled(Scalar::Bits(3));
    for call in [call(Func::AllReduce, 1000), Call { reduction: scaled, ..call(Func::AllReduce, 1 << 20) }] {
        assert!(columns(&comm, &[call]).iter().all(|column| column.len() == 1));
    }
    let mean = Call { reduction: Reduction::Builtin(Op::Avg), ..call(Func::AllReduce, 1 << 20) };
    assert!(columns(&comm, &[mean]).iter().all(|column| column.len() == 2));
}

#[test]
fn messages_visit_the_next_rank_first() {
    let comm = FakeComm::of(4, &Events::default());
    let sends = [0, 3, 2].map(|peer| message(Func::Send, peer, 100));
    let receives = [2, 3, 0].map(|peer| message(Func::Recv, peer, 100));
    // Three lanes for each direction: a peer's distance, less one.
    let columns = columns(&comm, &[sends.as_slice(), &receives].concat());
    let serials: Vec<_> = columns.iter().map(|column| serials(column)).collect();
    assert_eq!(serials, [[42], [45], [41], [44], [40], [43]]);
}

/// Blocks that send and blocks that receive take turns; both ranks of a part have it in the same pair of them.
#[test]
fn large_messages_go_on_several_channels() {
    let set = |class| LinkSet { class, proto: Proto::Simple, channels: 2, slot_bytes: 4096 };
    let wiring = |n| Wiring::new(Graph::of_host(n), LinkClass::ALL.map(set).to_vec()).expect("a wiring");
    let comm = |rank: u32, n: u32| FakeComm {
        rank: rank as i32,
        schedules: ScheduleIndex::without_device(rank, 2, Some(&wiring(n))),
        ..FakeComm::of(n, &Events::default())
    };
    let (large, small) = (1 << 20, 100);
    let group = [
        message(Func::Send, 2, large),
        message(Func::Recv, 0, large),
        message(Func::Send, 3, small),
        message(Func::Recv, 3, small),
    ];
    // The next rank is sent to on two channels, and the one before received from; first channels come first.
    let columns = columns(&comm(1, 4), &group);
    let serials: Vec<_> = columns.iter().map(|column| serials(column)).collect();
    assert_eq!(serials, [[40], [41], [42], [43], [40], [41]]);
    let parts = [0, 4].map(|block: usize| (columns[block][0].lo, columns[block][0].hi));
    assert_eq!(parts, [(0, large as u64 / 2), (large as u64 / 2, large as u64)]);
    let links: BTreeSet<u64> = columns.iter().map(|column| column[0].links).collect();
    assert_eq!(links.len(), 6);
    // More parts than blocks: those of one channel stay in one block.
    let many = 20;
    let all: Vec<Call> = (0..many).filter(|peer| *peer != 1).map(|peer| message(Func::Send, peer, large)).collect();
    let columns = self::columns(&comm(1, many as u32), &all);
    let parts: usize = columns.iter().map(|column| self::serials(column).len()).sum();
    assert_eq!((columns.len(), parts), (16, 38));
}

#[test]
fn one_block_of_a_software_device_does_what_fits_the_slots() {
    let comm = FakeComm { software: true, ..FakeComm::of(4, &Events::default()) };
    let group = |count| [message(Func::Recv, 0, 8), message(Func::Send, 3, count), message(Func::Send, 2, 8)];
    let serials = |count| columns(&comm, &group(count)).iter().map(|column| serials(column)).collect::<Vec<_>>();
    assert_eq!(serials(8), [vec![42, 41, 40]]);
    assert_eq!(serials(64 << 20), [vec![42, 41], vec![40]]);
}

/// Rank 1 of four, whose messages up to 100 bytes go by LL.
fn with_lines(software: bool) -> FakeComm {
    let agreed = Agreed { message_line_bytes: 100, ..Agreed::with_filters(Filters::ALL) };
    let wiring = agreed.wiring(vec![0; 4], software).expect("a wiring");
    let graph = Arc::new(Graph::of_host(4));
    FakeComm {
        software,
        tuning: Tuning::new(MachineConstants::software(2), graph, agreed),
        schedules: ScheduleIndex::without_device(1, 2, Some(&wiring)),
        ..FakeComm::of(4, &Events::default())
    }
}

#[test]
fn small_messages_go_by_lines() {
    let (lines, simple) = (Proto::Ll as u8, Proto::Simple as u8);
    let comm = with_lines(false);
    let group = [message(Func::Send, 2, 100), message(Func::Send, 3, 101), message(Func::Send, 2, 7)];
    let columns = columns(&comm, &group);
    let protocols =
        |column: &Vec<Work>| column.iter().filter(|work| work.count > 0).map(|work| work.proto).collect::<Vec<_>>();
    assert_eq!(columns.iter().map(protocols).collect::<Vec<_>>(), [vec![lines, lines], vec![simple]]);
    assert_eq!(columns[0][0].links, columns[0][1].links);
    let kernel = |calls: &[Call]| launches(&comm, calls).0[0].kernel;
    let of = |proto| kernel_number(proto, DataType::Int8);
    assert_eq!(
        [kernel(&group), kernel(&group[..1]), kernel(&group[1..2])],
        [MESSAGES_KERNEL, of(Proto::Ll), of(Proto::Simple)]
    );
    // Slots of both kinds are counted, each by itself.
    let comm = with_lines(true);
    let blocks = |count: usize, bytes| {
        let sends = (0..count).map(|_| message(Func::Send, 2, bytes)).chain([message(Func::Recv, 2, 8)]);
        self::columns(&comm, &sends.collect::<Vec<_>>()).len()
    };
    assert_eq!([blocks(8, 100), blocks(9, 100), blocks(8, 200), blocks(9, 200)], [1, 2, 1, 2]);
}

#[test]
fn a_registered_buffer_is_offered_to_the_receiver() {
    let comm = FakeComm::of(4, &Events::default()).with_zero_copy(0x40_0000);
    let (large, flags) = (128 << 10, work_flag::OFFER | work_flag::PULL);
    let unregistered = message(Func::Send, 2, large);
    let registered = Call { send: 0x50_0000, ..unregistered.clone() };
    let ways = |call: &Call| {
        let column = &columns(&comm, std::slice::from_ref(call))[0];
        assert!(column.iter().all(|work| work.links == column[0].links && work.input == call.send));
        assert!(column.iter().all(|work| work.flags == 0 || work.piece == work.hi - work.lo));
        column.iter().map(|work| (work.flags, work.offers[0])).collect::<Vec<_>>()
    };
    assert_eq!(ways(&registered), [(flags, OFFERED | 0x50_0000), (0, 0)]);
    assert_eq!(ways(&unregistered), [(0, 0)]);
    assert_eq!(ways(&Call { count: large - 1, ..registered.clone() }), [(0, 0)]);
    // The receiver looks whatever its own buffer is.
    assert_eq!(ways(&message(Func::Recv, 2, large)), [(flags, UNUSED), (0, 0)]);
    // A sender that waits for its receiver has a block of its own.
    let comm = FakeComm { software: true, ..comm };
    let both = |count| columns(&comm, &[message(Func::Send, 2, count), message(Func::Recv, 2, count)]).len();
    assert_eq!([both(8), both(large)], [1, 2]);
}

#[test]
fn messages_to_oneself_are_copies() {
    let comm = FakeComm::of(4, &Events::default());
    let calls = [message(Func::Send, 1, 100), message(Func::Recv, 1, 60)];
    let columns = columns(&comm, &calls);
    let work = columns[0][0];
    assert_eq!((work.input, work.output, work.count, work.nlinks), (calls[0].send, calls[1].recv, 60, 0));
    assert_eq!((columns.len(), columns[0].len(), launches(&comm, &calls).1), (1, 1, vec![]));
    assert_eq!(peers::check(1, calls.iter()), Ok(()));
    assert!(matches!(peers::check(1, calls[..1].iter()), Err(Error::InvalidUsage(text)) if text.contains("send to")));
    assert!(matches!(peers::check(1, calls[1..].iter()), Err(Error::InvalidUsage(text)) if text.contains("recv to")));
    assert_eq!(peers::check(0, calls[1..].iter()), Ok(()));
}

#[test]
fn what_has_no_schedule_consists_of_messages() {
    const NRANKS: u32 = 65;
    let comm = FakeComm::of(NRANKS, &Events::default());
    let (launches, missing) = launches(&comm, &[call(Func::AlltoAll, 16)]);
    assert_eq!(launches.len(), 1);
    let items = launches[0].lent.as_ref().expect("memory");
    let work: Vec<&Work> = items.iter().filter(|work| **work != Work::default()).collect();
    // To and from everybody else, and a copy.
    assert_eq!((work.len(), missing.len()), (2 * (NRANKS as usize - 1) + 1, NRANKS as usize - 1));
    let inputs: Vec<u64> = work.iter().filter(|work| work.output == 0).map(|work| work.input).collect();
    assert_eq!(inputs.len(), NRANKS as usize - 1);
    assert!(inputs.iter().all(|input| (input - 0x10_0000).is_multiple_of(16)));
}

#[test]
fn a_goodbye_names_all_links_in_as_many_launches_as_it_takes() {
    let comm = FakeComm::of(20, &Events::default());
    let peers: Vec<i32> = (0..20).filter(|peer| *peer != 1).collect();
    peers.iter().for_each(|peer| comm.schedules.note_connected(ConnectionGroup::pair(1, *peer as u32)));
    let launches = Plan::goodbye(&&comm).expect("launches");
    let items: Vec<u32> = launches.iter().map(|launch| launch.arguments.nwork).collect();
    assert_eq!(items, [15, 15, 8]);
    assert!(launches.iter().all(|launch| launch.lent.is_none() && launch.kernel == bytes()));
}
