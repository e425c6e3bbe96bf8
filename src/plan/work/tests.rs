use proptest::prelude::*;

use super::super::call::Op;
use super::super::layout::{KernelOp, Proto, work_flag};
use super::super::operator::Operator;
use super::*;

fn requests() -> impl Strategy<Value = Request> {
    let count = prop_oneof![0..200u64, 0..1u64 << 24, 0..1u64 << 63];
    let kind = (0..72usize, 1..1500u32, 1..64u32, 1..1u64 << 14, 0..1u64 << 24);
    (count, kind).prop_map(|(count, (t, nchunks, max_channels, lines, min_channel_bytes))| {
        let (datatype, proto) = (DataType::ALL[t % 12], Proto::ALL[t / 12 % 3]);
        let blocks = t >= 36;
        let most = i64::MAX as u64 / datatype.size() as u64 / if blocks { u64::from(nchunks) } else { 1 };
        let count = count.min(most);
        Request {
            count,
            datatype,
            nchunks,
            blocks,
            max_channels,
            slot_bytes: 16 * lines * LINE,
            proto,
            min_channel_bytes,
        }
    })
}

/// Elements that a channel moves of a chunk, as (begin, end) in the whole data: the kernel's clipping.
fn moved(g: &Geometry, channel: u32, chunk: u32) -> (u64, u64) {
    let begin = u64::from(chunk) * g.block;
    let (lo, hi) = g.range(channel);
    ((begin + lo).min(g.count), (begin + hi).min(g.count))
}

proptest! {
    #[test]
    fn every_element_is_covered_once(r in requests()) {
        let g = Geometry::new(&r).unwrap();
        prop_assert!(g.nchannels >= 1 && g.nchannels <= r.max_channels);
        let mut next = 0;
        // Chunks after the last full one are all alike: the first, the last and those around the end do.
        let full = g.count.checked_div(g.block).unwrap_or(0).min(u64::from(r.nchunks));
        for chunk in 0..r.nchunks {
            if (3..full.saturating_sub(3)).contains(&u64::from(chunk)) {
                next = u64::from(chunk + 1) * g.block;
                continue;
            }
            for channel in 0..g.nchannels {
                let (begin, end) = moved(&g, channel, chunk);
                prop_assert_eq!(begin, next);
                next = end;
            }
        }
        prop_assert_eq!(next, g.count);
        prop_assert_eq!(g.count, r.count * if r.blocks { u64::from(r.nchunks) } else { 1 });
        prop_assert!(!r.blocks || g.block == r.count.max(1));
    }

    #[test]
    fn nothing_overflows(r in requests()) {
        let g = Geometry::new(&r).unwrap();
        // The kernel's largest product and address: past the last chunk by a whole piece.
        let end = u128::from(r.nchunks) * u128::from(g.block) + u128::from(g.piece);
        prop_assert!(end * u128::from(r.datatype.size() as u64) < 1 << 64, "{g:?}");
        prop_assert!(g.piece * r.datatype.size() as u64 <= r.proto.slot_data(r.slot_bytes) && g.piece > 0);
    }

    #[test]
    fn boundaries_are_aligned_unless_tiny(r in requests()) {
        let g = Geometry::new(&r).unwrap();
        let size = r.datatype.size() as u64;
        if r.blocks {
            prop_assume!(g.block * size >= LINE);
        }
        if r.blocks || r.count.div_ceil(u64::from(r.nchunks)) * size >= LINE {
            prop_assert!(r.blocks || (g.block * size).is_multiple_of(LINE));
            for channel in 0..g.nchannels {
                prop_assert_eq!(g.range(channel).0 * size % LINE, 0);
            }
            prop_assert_eq!(g.piece * size % LINE, 0);
        } else {
            prop_assert_eq!(g.nchannels, 1);
            prop_assert_eq!(g.piece, g.block);
        }
    }

    #[test]
    fn no_channel_is_idle_and_none_is_too_small(r in requests()) {
        let g = Geometry::new(&r).unwrap();
        for channel in 0..g.nchannels {
            let (lo, hi) = g.range(channel);
            prop_assert!(lo < hi);
        }
        let bytes = g.count * r.datatype.size() as u64;
        prop_assert!(g.nchannels == 1 || bytes / u64::from(g.nchannels) >= r.min_channel_bytes);
    }
}

fn request() -> Request {
    Request {
        count: 1,
        datatype: DataType::Float32,
        nchunks: 4,
        blocks: false,
        max_channels: 2,
        slot_bytes: 1 << 18,
        proto: Proto::Simple,
        min_channel_bytes: 1 << 16,
    }
}

#[test]
fn sizes_that_matter() {
    let g = |count| Geometry::new(&Request { count, ..request() }).unwrap();
    // Tiny: spread evenly, unaligned.
    assert_eq!((g(1).block, g(7).block, g(60).block), (1, 2, 15));
    // From a line per chunk on: whole lines.
    assert_eq!((g(61).block, g(64).block, g(65).block), (16, 16, 32));
    // 16 MiB: pieces fill slots, both channels have half of each chunk.
    let big = g(4 << 20);
    assert_eq!((big.nchannels, big.block, big.part, big.piece), (2, 1 << 20, 1 << 19, 1 << 16));
    assert_eq!(g(0).nchannels, 1);
    // LL128 fills a slot of 256 KiB with 240 KiB.
    let wide = Geometry::new(&Request { count: 4 << 20, proto: Proto::Ll128, ..request() }).unwrap();
    assert_eq!((wide.part, wide.piece), (1 << 19, 60 << 10));
}

#[test]
fn impossible_requests_are_refused() {
    let refuse = |r: Request| Geometry::new(&r).unwrap_err();
    let too_many = refuse(Request { count: 1 << 61, ..request() });
    assert!(matches!(too_many, Error::InvalidArgument(_)), "{too_many}");
    assert!(Geometry::new(&Request { count: (1 << 61) - 1, ..request() }).is_ok());
    assert!(matches!(refuse(Request { count: u64::MAX, ..request() }), Error::InvalidArgument(_)));
    assert!(matches!(refuse(Request { nchunks: 0, ..request() }), Error::Internal(_)));
    assert!(matches!(refuse(Request { max_channels: 0, ..request() }), Error::Internal(_)));
    assert!(matches!(refuse(Request { slot_bytes: 100, ..request() }), Error::Internal(_)));
}

#[test]
fn work_items_say_all_but_addresses() {
    let g = Geometry::new(&Request { count: 4 << 20, ..request() }).unwrap();
    let w = g.work(1, DataType::Int32, &Operator::builtin(Op::Avg, DataType::Int32, 4));
    assert_eq!((w.lo, w.hi, w.count), (1 << 19, 1 << 20, 4 << 20));
    assert_eq!((w.nsteps, w.nlinks, w.nchunks), (0, 0, 4));
    assert_eq!((w.datatype, w.op, w.flags, w.post), (2, KernelOp::Sum as u8, work_flag::POST, 4));
    assert_eq!((w.input, w.output, w.steps, w.links), (0, 0, 0, 0));
}
