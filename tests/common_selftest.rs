//! Tests of what the other tests stand on: `tests/common`.

mod common;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::contract::{Content, Contract, Func, Operator};
use common::launch::{self, Job};
use common::oracle::{DataType, Format, Kind, PERIOD, RedOp, Reduction};
use common::resources::Resources;

fn float(dtype: DataType) -> Format {
    match dtype.kind() {
        Kind::Float(format) => format,
        Kind::Int(_) => panic!("{dtype:?} is no float"),
    }
}

/// Bit patterns from the formats' definitions (IEEE 754, OCP 8-bit floating point).
#[test]
fn floats_encode_as_their_definitions_say() {
    let cases: [(DataType, f64, u64); 22] = [
        (DataType::Float16, 1.0, 0x3c00),
        (DataType::Float16, 65504.0, 0x7bff),
        (DataType::Float16, 65520.0, 0x7c00),
        (DataType::Float16, -2.0, 0xc000),
        (DataType::Float16, 5.960_464_477_539_063e-8, 0x0001),
        (DataType::Float16, 1.0 + 1.0 / 2048.0, 0x3c00),
        (DataType::Float16, 1.0 + 3.0 / 2048.0, 0x3c02),
        (DataType::Bfloat16, 1.0, 0x3f80),
        (DataType::Bfloat16, 3.0, 0x4040),
        (DataType::Bfloat16, -0.0, 0x8000),
        (DataType::Float8e4m3, 448.0, 0x7e),
        (DataType::Float8e4m3, 1e9, 0x7e),
        (DataType::Float8e4m3, f64::INFINITY, 0x7e),
        (DataType::Float8e4m3, 0.001953125, 0x01),
        (DataType::Float8e4m3, 1.0, 0x38),
        (DataType::Float8e4m3, f64::NAN, 0x7f),
        (DataType::Float8e5m2, 57344.0, 0x7b),
        (DataType::Float8e5m2, f64::INFINITY, 0x7b),
        (DataType::Float8e5m2, 1.0, 0x3c),
        (DataType::Float8e5m2, 1.125, 0x3c),
        (DataType::Float8e5m2, 1.375, 0x3e),
        (DataType::Float8e5m2, 2f64.powi(-17), 0x00),
    ];
    for (dtype, value, bits) in cases {
        assert_eq!(float(dtype).encode(value), bits, "{dtype:?} of {value}");
    }
}

/// The hardware's own conversions are the oracle's oracle, for the formats that Rust has.
#[test]
fn f32_and_f64_encode_as_the_machine_does() {
    let mut x = 1u64;
    for _ in 0..100_000 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let value = f64::from_bits(x);
        if !value.is_nan() {
            assert_eq!(float(DataType::Float32).encode(value), u64::from((value as f32).to_bits()), "{value:e}");
            assert_eq!(float(DataType::Float64).encode(value), x, "{value:e}");
            assert_eq!(float(DataType::Float64).decode(x).to_bits(), x);
        }
    }
}

#[test]
fn every_small_pattern_survives_decoding_and_encoding() {
    for dtype in [DataType::Float8e4m3, DataType::Float8e5m2, DataType::Float16, DataType::Bfloat16] {
        let format = float(dtype);
        for bits in 0..1u64 << (8 * dtype.size()) {
            let value = format.decode(bits);
            if value.is_finite() {
                assert_eq!(format.encode(value), bits, "{dtype:?} {bits:#x}");
            }
        }
    }
}

/// Rounds after every step, in a random order: an exact pattern gives the same bits in any order.
fn reduce_in_order(what: Reduction, format: Format, order: &[usize], element: usize) -> u64 {
    let round = |x: f64| format.decode(format.encode(x));
    let share = round(1.0 / what.nranks as f64);
    let inputs = order.iter().map(|rank| {
        let value = format.decode(what.input_bits(*rank, element));
        if what.op == RedOp::Avg { round(value * share) } else { value }
    });
    let total = inputs.reduce(|a, b| match what.op {
        RedOp::Sum | RedOp::Avg => round(a + b),
        RedOp::Prod => round(a * b),
        RedOp::Max => a.max(b),
        RedOp::Min => a.min(b),
    });
    format.encode(total.expect("there is a rank"))
}

#[test]
fn float_results_do_not_depend_on_the_order() {
    for dtype in DataType::all() {
        let Kind::Float(format) = dtype.kind() else { continue };
        for (op, nranks) in RedOp::ALL.into_iter().flat_map(|op| [2, 3, 7, 24, 70].map(|n| (op, n))) {
            let what = Reduction { dtype, op, nranks };
            let mut order: Vec<usize> = (0..nranks).collect();
            for element in (0..40).chain(PERIOD - 10..PERIOD) {
                order.rotate_left(element % nranks);
                order.swap(0, nranks - 1);
                let got = reduce_in_order(what, format, &order, element);
                assert_eq!(got, what.expected_bits(element), "{what:?} element {element}");
            }
        }
    }
}

#[test]
fn integers_wrap_and_averages_truncate() {
    let sum_of = |values: &[i8]| values.iter().fold(0i8, |a, b| a.wrapping_add(*b));
    let (nranks, dtype) = (5, DataType::Int8);
    for element in 0..PERIOD {
        let of = |op| Reduction { dtype, op, nranks };
        let inputs: Vec<i8> = (0..nranks).map(|rank| of(RedOp::Sum).input_bits(rank, element) as i8).collect();
        let product = inputs.iter().fold(1i8, |a, b| a.wrapping_mul(*b));
        assert_eq!(of(RedOp::Sum).expected_bits(element) as i8, sum_of(&inputs));
        assert_eq!(of(RedOp::Avg).expected_bits(element) as i8, sum_of(&inputs) / 5);
        assert_eq!(of(RedOp::Prod).expected_bits(element) as i8, product);
    }
}

#[test]
fn wrong_elements_are_counted_and_found() {
    let what = Reduction { dtype: DataType::Float32, op: RedOp::Sum, nranks: 3 };
    let pattern = what.expected();
    let mut buffer = vec![0; 4 * (2 * PERIOD + 10)];
    pattern.fill(&mut buffer, 100);
    assert_eq!(pattern.count_wrong(&buffer, 100), 0);
    assert!(pattern.count_wrong(&buffer, 101) > PERIOD);
    buffer[4 * (PERIOD + 7)] ^= 1;
    buffer[4 * 3 + 1] ^= 1;
    assert_eq!(pattern.count_wrong(&buffer, 100), 2);
    assert_eq!(pattern.first_wrong(&buffer, 100).map(|wrong| wrong.0), Some(3));
}

#[test]
fn a_census_sees_what_is_left_behind() {
    // In a process of its own: the other tests of this binary open and close things meanwhile.
    if launch::child().is_none() {
        return Job::this_test("a_census_sees_what_is_left_behind", 1).run().assert_ok();
    }
    let before = Resources::now();
    before.assert_same();
    let (keep, _peer) = std::os::unix::net::UnixStream::pair().expect("a socket pair");
    let grown = Resources::now().grown(&before);
    assert_eq!(grown, ["2 more fds: socket"]);
    drop((keep, _peer));
    before.assert_same();
    before.assert_memory_within(64 << 10);
}

#[test]
fn a_thread_that_takes_its_name_late_is_not_left_behind() {
    if launch::child().is_none() {
        return Job::this_test("a_thread_that_takes_its_name_late_is_not_left_behind", 1).run().assert_ok();
    }
    let barrier = Arc::new(Barrier::new(2));
    let twice = |barrier: &Barrier| (0..2).for_each(|_| _ = barrier.wait());
    let named = |barrier: Arc<Barrier>| {
        std::thread::spawn(move || {
            barrier.wait();
            rustix::thread::set_name(c"late").expect("a name");
            barrier.wait();
            barrier.wait();
        })
    };
    let first = named(barrier.clone());
    let before = Resources::now();
    twice(&barrier);
    before.assert_same();
    let other = Arc::new(Barrier::new(2));
    let second = named(other.clone());
    twice(&other);
    assert_eq!(Resources::now().grown(&before), ["1 more threads: late"]);
    [barrier, other].iter().for_each(|barrier| _ = barrier.wait());
    [first, second].into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn ranks_share_a_folder_and_meet() {
    if let Some(me) = launch::child() {
        if me.rank == 1 {
            me.publish("id", b"hello");
        }
        assert_eq!(me.await_published("id"), b"hello");
        me.barrier("end");
        println!("rank {} of {} is done", me.rank, me.nranks);
        return;
    }
    let outcome = Job::this_test("ranks_share_a_folder_and_meet", 3).run();
    outcome.assert_ok();
    assert!(outcome.ranks[2].stdout.contains("rank 2 of 3 is done"));
}

#[test]
fn a_deadline_kills_and_reports() {
    if let Some(me) = launch::child() {
        println!("rank {} is about to hang", me.rank);
        std::thread::sleep(Duration::from_secs(if me.rank == 0 { 0 } else { 600 }));
        return;
    }
    let job = Job::this_test("a_deadline_kills_and_reports", 2).deadline(Duration::from_secs(2));
    let failure = std::panic::catch_unwind(|| job.run()).expect_err("it must not end well");
    let report = failure.downcast_ref::<String>().expect("a formatted panic");
    for part in ["deadline of 2s passed", "rank 0\n  ended: exit status: 0", "thread", "rank 1 is about to hang"] {
        assert!(report.contains(part), "`{part}` is missing in:\n{report}");
    }
}

#[test]
fn warnings_fail_unless_announced() {
    const NAME: &str = "warnings_fail_unless_announced";
    if launch::child().is_some() {
        return println!("host:1:1 [0] file.rs:1 (f) NCCL WARN the sky falls");
    }
    let failure = std::panic::catch_unwind(|| Job::this_test(NAME, 1).run()).expect_err("a warning fails");
    assert!(failure.downcast_ref::<String>().is_some_and(|text| text.contains("the sky falls")));
    Job::this_test(NAME, 1).allow_warning("the sky").run().assert_ok();
    Job::this_test(NAME, 1).allow_any_warning().run().assert_ok();
}

#[test]
fn what_a_rank_leaves_running_is_ended_and_told() {
    if launch::child().is_some() {
        let shell = std::process::Command::new("sh").args(["-c", "sleep 600 &"]).status();
        assert!(shell.expect("sh starts").success());
        return;
    }
    let job = Job::this_test("what_a_rank_leaves_running_is_ended_and_told", 1);
    let failure = std::panic::catch_unwind(|| job.run()).expect_err("a leftover fails");
    assert!(failure.downcast_ref::<String>().is_some_and(|text| text.contains("left processes behind")));
}

fn seen(func: Func, root: usize, rank: usize) -> Contract {
    Contract { func, nranks: 3, root, rank }
}

/// The table of `Contract`, written down again by hand for rank 1 of 3.
#[test]
fn buffers_are_as_the_table_says() {
    let rows = [
        (Func::AllReduce, (1, 1), (1, 1), (0, 0)),
        (Func::Reduce, (1, 0), (1, 1), (0, 0)),
        (Func::Broadcast, (0, 1), (1, 1), (0, 0)),
        (Func::Bcast, (0, 1), (1, 1), (0, 0)),
        (Func::AllGather, (1, 3), (1, 3), (1, 0)),
        (Func::ReduceScatter, (3, 1), (3, 1), (0, 1)),
        (Func::AlltoAll, (3, 3), (3, 3), (0, 0)),
        (Func::Gather, (1, 0), (1, 3), (1, 0)),
        (Func::Scatter, (0, 1), (3, 1), (0, 1)),
    ];
    for (func, elsewhere, here, offsets) in rows {
        let sizes = |contract: Contract| (contract.sends(), contract.output().len());
        assert_eq!(sizes(seen(func, 0, 1)), elsewhere, "{func:?}, root 0");
        assert_eq!(sizes(seen(func, 1, 1)), here, "{func:?}, root 1");
        assert_eq!(seen(func, 1, 1).in_place(), offsets, "{func:?}");
    }
}

/// Products and sums in any order, rounded to the type after each step, give what is expected.
#[test]
fn scaled_sums_are_exact_in_any_order() {
    for dtype in DataType::all() {
        let Kind::Float(format) = dtype.kind() else { continue };
        for nranks in [1, 2, 3, 5, 8] {
            let operator = Some(Operator::PreMulSum { device: false });
            let content = Content { dtype, operator, nranks };
            for element in 0..200 {
                let term = |rank: usize| {
                    let (input, scalar) = (content.input_bits(rank, element), content.scalar(rank));
                    format.encode(format.decode(input) * format.decode(scalar))
                };
                let add = |sum: u64, rank| format.encode(format.decode(sum) + format.decode(term(rank)));
                for first in 0..nranks {
                    let order = (1..nranks).map(|step| (first + step) % nranks);
                    let sum = order.fold(term(first), add);
                    assert_eq!(sum, content.reduced_bits(element), "{dtype:?} {nranks} element {element} from {first}");
                }
            }
        }
    }
}

/// As in a program in C: what raises SIGPIPE in a rank is seen.
#[test]
fn a_rank_dies_of_sigpipe() {
    if launch::child().is_some() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        drop(reader);
        let _ = rustix::io::write(&writer, b"x");
        return;
    }
    let outcome = Job::this_test("a_rank_dies_of_sigpipe", 1).run();
    assert_eq!(outcome.ranks[0].signal(), Some(13), "{outcome}");
}
