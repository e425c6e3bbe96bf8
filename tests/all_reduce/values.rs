//! Values at the edges, written down by hand: overflow, NaN, infinities, what an average of
//! integers is. And the sizes at which calls are cut.

use crate::bind::Api;
use crate::common::launch::{self, Job};
use crate::common::oracle::DataType::{self, *};
use crate::common::oracle::RedOp::{self, *};
use crate::data::{Case, Member, SLOT, long, seeded_rng};

use rand::RngExt;

/// What two ranks hold, and what both must get; NAN stands for any NaN of the type.
type Row = (DataType, RedOp, u64, u64, u64);
const NAN: u64 = u64::MAX - 1;

const fn f(value: f32) -> u64 {
    value.to_bits() as u64
}
const fn d(value: f64) -> u64 {
    value.to_bits()
}
const fn i(value: i64) -> u64 {
    value as u64
}

/// f16: 0x7bff is 65504, 0x7c00 infinity, 0x7e00 NaN. bf16: 0x7f7f is the largest. e4m3: 0x7e is 448, 0x7f
/// NaN, 0x38 is 1. e5m2: 0x7b is 57344, 0x7c infinity, 0x7e NaN, 0x3c is 1.
const ROWS: [Row; 54] = [
    (Int8, Sum, 127, 1, i(-128)),
    (Int8, Prod, 100, 3, 44),
    (Int8, Avg, i(-3), 0, i(-1)),
    (Int8, Avg, 127, 127, i(-1)),
    (Int8, Max, i(-1), 1, 1),
    (Int8, Min, i(-128), 127, i(-128)),
    (Uint8, Sum, 200, 100, 44),
    (Uint8, Avg, 200, 100, 22),
    (Uint8, Max, 255, 1, 255),
    (Uint8, Min, 255, 1, 1),
    (Int32, Sum, i(i32::MAX as i64), 1, i(i32::MIN as i64)),
    (Int32, Avg, i(-7), 0, i(-3)),
    (Int32, Prod, 1 << 20, 1 << 13, 0),
    (Uint32, Avg, 0xffff_ffff, 1, 0),
    (Uint32, Max, 0xffff_ffff, 1, 0xffff_ffff),
    (Int64, Sum, i(i64::MAX), 1, i(i64::MIN)),
    (Int64, Avg, i(i64::MIN), 1, i(i64::MIN / 2 + 1)),
    (Int64, Min, i(-1), 0, i(-1)),
    (Uint64, Avg, u64::MAX, 2, 0),
    (Uint64, Max, u64::MAX, 0, u64::MAX),
    (Float32, Sum, f(f32::NAN), f(1.0), NAN),
    (Float32, Sum, f(f32::INFINITY), f(f32::NEG_INFINITY), NAN),
    (Float32, Sum, f(f32::MAX), f(f32::MAX), f(f32::INFINITY)),
    (Float32, Sum, 1, 1, 2),
    (Float32, Prod, f(f32::NAN), f(0.0), NAN),
    (Float32, Max, f(f32::NAN), f(1.0), f(1.0)),
    (Float32, Max, f(1.0), f(f32::NAN), f(1.0)),
    (Float32, Min, f(f32::NAN), f(f32::NAN), NAN),
    (Float32, Min, f(f32::NEG_INFINITY), f(f32::NAN), f(f32::NEG_INFINITY)),
    (Float32, Avg, f(f32::MAX), f(f32::MAX), f(f32::MAX)),
    (Float64, Sum, d(f64::MAX), d(f64::MAX), d(f64::INFINITY)),
    (Float64, Max, d(f64::NAN), d(-2.0), d(-2.0)),
    (Float64, Avg, d(f64::MAX), d(f64::MAX), d(f64::MAX)),
    (Float64, Sum, 1, 1, 2),
    (Float16, Sum, 0x7bff, 0x7bff, 0x7c00),
    (Float16, Avg, 0x7bff, 0x7bff, 0x7bff),
    (Float16, Sum, 0x7c00, 0xfc00, NAN),
    (Float16, Max, 0x7e00, 0x3c00, 0x3c00),
    (Float16, Min, 0x3c00, 0x7e00, 0x3c00),
    (Float16, Sum, 1, 1, 2),
    (Bfloat16, Sum, 0x7f7f, 0x7f7f, 0x7f80),
    (Bfloat16, Avg, 0x7f7f, 0x7f7f, 0x7f7f),
    (Bfloat16, Max, 0x7fc0, 0x3f80, 0x3f80),
    (Bfloat16, Sum, 0x7fc0, 0x3f80, NAN),
    (Float8e4m3, Sum, 0x7e, 0x7e, 0x7e),
    (Float8e4m3, Sum, 0xfe, 0xfe, 0xfe),
    (Float8e4m3, Sum, 0x7f, 0x38, NAN),
    (Float8e4m3, Max, 0x7f, 0x38, 0x38),
    (Float8e4m3, Avg, 0x7e, 0x7e, 0x7e),
    (Float8e5m2, Sum, 0x7b, 0x7b, 0x7b),
    (Float8e5m2, Sum, 0x7c, 0x3c, 0x7b),
    (Float8e5m2, Sum, 0x7e, 0x3c, NAN),
    (Float8e5m2, Max, 0x7e, 0x3c, 0x3c),
    (Float8e5m2, Avg, 0x7b, 0x7b, 0x7b),
];

fn is_nan(dtype: DataType, bits: u64) -> bool {
    match dtype {
        Float32 => f32::from_bits(bits as u32).is_nan(),
        Float64 => f64::from_bits(bits).is_nan(),
        Float16 => bits & 0x7fff > 0x7c00,
        Bfloat16 => bits & 0x7fff > 0x7f80,
        Float8e4m3 => bits & 0x7f == 0x7f,
        Float8e5m2 => bits & 0x7f > 0x7c,
        _ => false,
    }
}

/// Runs one row on `count` equal elements: vectors and what is left over of them take different paths.
fn run_row(member: &Member, row: Row, count: usize) {
    let (dtype, op, first, second, wanted) = row;
    let (api, size) = (&member.api, dtype.size());
    let own = [first, second][member.rank].to_le_bytes();
    let input: Vec<u8> = own[..size].iter().copied().cycle().take(count * size).collect();
    let address = api.cuda.alloc(input.len()).expect("memory");
    api.cuda.copy_to_device(address, &input).expect("copy");
    // SAFETY: the buffer is freed after the wait.
    unsafe { api.nccl.all_reduce((address, address), count, (dtype, op), member.comm, member.stream.0) }
        .expect("a call");
    api.cuda.wait(member.stream).expect("wait");
    let mut output = vec![0; input.len()];
    api.cuda.copy_to_host(&mut output, address).expect("copy");
    // SAFETY: nothing uses it any more.
    unsafe { api.cuda.free(address) }.expect("free");
    for (at, bytes) in output.chunks(size).enumerate() {
        let mut word = [0; 8];
        word[..size].copy_from_slice(bytes);
        let found = u64::from_le_bytes(word);
        let right = if wanted == NAN { is_nan(dtype, found) } else { bytes == &wanted.to_le_bytes()[..size] };
        assert!(
            right,
            "{dtype:?} {op:?} of {first:#x} and {second:#x}: element {at} of {count} is {found:#x}, not {wanted:#x}"
        );
    }
}

#[test]
fn edges_of_the_types() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        for row in ROWS {
            [1, 37, 200].into_iter().for_each(|count| run_row(&member, row, count));
        }
        return member.end();
    }
    Job::this_test("values::edges_of_the_types", 2).run().assert_ok();
}

/// Every type at the sizes at which something changes: lines, slots, several slots, another number of
/// channels; at every offset of an element within a cache line in turn.
#[test]
fn sizes_and_offsets() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let mut rng = seeded_rng("sizes");
        let mut turn = 0;
        let mut cases = Vec::new();
        for dtype in DataType::all() {
            let size = dtype.size();
            let (line, slot) = (64 / size, SLOT / size);
            let n = me.nranks;
            let small = [0, 1, 2, 3, line - 1, line, line + 1, n * line - 1, n * line + 1];
            let large = [slot - 1, slot, slot + 1, n * slot - 1, n * slot, n * slot + 1, 20 * slot + 5];
            // Large ones of one type are as good as those of another, which they are cut like.
            let large = if long() { &large[..] } else { &large[turn % 7..][..1] };
            for count in small.into_iter().chain(large.iter().copied()) {
                let offset = (turn % line, (turn * 5) % line);
                let op = RedOp::ALL[rng.random_range(0..5usize)];
                cases.push(Case { in_place: turn % 3 == 0, offset, ..Case::plain(dtype, op, count) });
                turn += 1;
            }
        }
        member.run(&cases);
        return member.end();
    }
    for n in [2, 3] {
        Job::this_test("values::sizes_and_offsets", n).run().assert_ok();
    }
}

/// All pairs of offsets of an element in 16 bytes, with counts around a vector.
#[test]
fn every_offset() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let mut cases = Vec::new();
        for dtype in DataType::all().filter(|dtype| long() || [Uint8, Float16, Float32, Float64].contains(dtype)) {
            let places = 16 / dtype.size();
            for (send, recv) in (0..places).flat_map(|send| (0..places).map(move |recv| (send, recv))) {
                // A sample of bytes: they have 256 pairs.
                if long() || places < 16 || (send * 16 + recv) % 5 == 0 {
                    let count = 1 + (send * places + recv) % 70;
                    cases.push(Case { offset: (send, recv), ..Case::plain(dtype, Max, count) });
                }
            }
        }
        member.run(&cases);
        return member.end();
    }
    Job::this_test("values::every_offset", 2).run().assert_ok();
}
