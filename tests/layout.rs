//! `plan::layout` and `kernels/work.h` declare the same bytes: a C++ compiler checks the header against
//! sizes, alignments, offsets and numbers taken from Rust.

use std::fmt::Write as _;
use std::mem::{align_of, offset_of, size_of};
use std::path::PathBuf;
use std::process::Command;

use nccl::plan::call::{DataType, Op};
use nccl::plan::layout::{self, Counter, KernelOp, LaunchArgs, LinkEnd, Proto, Step, Work};

/// Assertions about one structure. The pattern that takes it apart makes sure that no field is left out.
/// (A macro, since `offset_of!` takes names.)
macro_rules! structure {
    ($text:expr, $name:ident { $($field:ident = $c:literal),* $(,)? }) => {{
        let $name { $($field: _),* } = $name::default();
        assertion($text, &format!("sizeof({})", stringify!($name)), size_of::<$name>());
        assertion($text, &format!("alignof({})", stringify!($name)), align_of::<$name>());
        let value = $name::default();
        $(
            assertion($text, &format!("offsetof({}, {})", stringify!($name), $c), offset_of!($name, $field));
            assertion($text, &format!("sizeof {}::{}", stringify!($name), $c), size_of_val(&value.$field));
        )*
    }};
}

fn assertion(text: &mut String, expression: &str, value: usize) {
    writeln!(text, "static_assert({expression} == {value}, \"{expression} is {value} in Rust\");").unwrap();
}

fn structures(text: &mut String) {
    structure!(text, Step {
        flags = "flags", nrecv = "nrecv", nsend = "nsend", place = "place", repeat = "repeat", stride = "stride",
        in_chunk = "in_chunk", out_chunk = "out_chunk", recv = "recv", send = "send",
    });
    structure!(text, Counter {
        value = "value", waiters = "waiters", left = "left", signatures = "signatures", call = "call", offer = "offer",
    });
    structure!(text, LinkEnd {
        slots = "slots", posted = "posted", consumed = "consumed", direct = "direct", pos = "pos", seen = "seen",
        slot_bytes = "slot_bytes", peer = "peer", begin = "begin", left = "left",
    });
    structure!(text, Work {
        input = "in", output = "out", steps = "steps", links = "links", count = "count", block = "block",
        piece = "piece", lo = "lo", hi = "hi", nsteps = "nsteps", nchunks = "nchunks", datatype = "type", op = "op",
        proto = "proto", flags = "flags", nlinks = "nlinks", first = "first", pre = "pre", post = "post", signature = "signature",
        serial = "serial", offers = "offers",
    });
    structure!(text, LaunchArgs {
        nwork = "nwork", nchannels = "nchannels", spin = "spin", yields = "yields", futex_ns = "futex_ns",
        abort = "abort", error = "error", items = "items", flags = "flags", reserved0 = "reserved0", peers = "peers",
        reserved = "reserved", work = "work",
    });
}

fn numbers(text: &mut String) {
    for (name, value) in [
        ("SLOTS", layout::SLOTS),
        ("MAX_FAN", layout::MAX_FAN),
        ("MAX_WORK", layout::MAX_WORK),
        ("LAUNCH_BYTES", layout::LAUNCH_BYTES),
        ("ERROR_WORDS", layout::ERROR_WORDS),
        ("ERROR_CLAIM", layout::ERROR_CLAIM),
        ("MAX_LINKS", layout::MAX_LINKS),
        ("REGISTRATIONS", layout::REGISTRATIONS),
        ("OFFER_BITS", layout::OFFER_BITS as usize),
        ("PLACE_UNIT", layout::PLACE_UNIT as usize),
        ("NTYPES", DataType::ALL.len()),
        ("SUM", KernelOp::Sum as usize),
        ("PROD", KernelOp::Prod as usize),
        ("MAX", KernelOp::Max as usize),
        ("MIN", KernelOp::Min as usize),
        ("SUM", Op::Sum as usize),
        ("PROD", Op::Prod as usize),
        ("MAX", Op::Max as usize),
        ("MIN", Op::Min as usize),
        ("SIMPLE", Proto::Simple as usize),
        ("LL", Proto::Ll as usize),
        ("LL128", Proto::Ll128 as usize),
        ("NPROTOS", Proto::ALL.len()),
        ("STEP_IN", layout::step_flag::IN.into()),
        ("STEP_OUT", layout::step_flag::OUT.into()),
        ("STEP_FROM_OUT", layout::step_flag::FROM_OUT.into()),
        ("STEP_POST", layout::step_flag::POST.into()),
        ("STEP_NO_DATA", layout::step_flag::NO_DATA.into()),
        ("STEP_OFFER", layout::step_flag::OFFER.into()),
        ("STEP_VERDICT", layout::step_flag::VERDICT.into()),
        ("STEP_PULL", layout::step_flag::PULL.into()),
        ("WORK_OFFER", layout::work_flag::OFFER.into()),
        ("WORK_PULL", layout::work_flag::PULL.into()),
        ("WORK_PRE", layout::work_flag::PRE.into()),
        ("WORK_POST", layout::work_flag::POST.into()),
        ("WORK_PRE_AT", layout::work_flag::PRE_AT.into()),
        ("LAUNCH_ROWS", layout::launch_flag::ROWS as usize),
        ("LAUNCH_NO_WAKE", layout::launch_flag::NO_WAKE as usize),
        ("ABORT_NONE", layout::abort::NONE as usize),
        ("ABORT_REPORT", layout::abort::REPORT as usize),
        ("ERROR_NONE", layout::kernel_error::NONE as usize),
        ("ERROR_ABORTED", layout::kernel_error::ABORTED as usize),
        ("ERROR_MISMATCH", layout::kernel_error::MISMATCH as usize),
        ("ERROR_PEER_LEFT", layout::kernel_error::PEER_LEFT as usize),
        ("ERROR_BAD_WORK", layout::kernel_error::BAD_WORK as usize),
    ] {
        assertion(text, name, value);
    }
    let types = ["I8", "U8", "I32", "U32", "I64", "U64", "F16", "F32", "F64", "BF16", "F8E4M3", "F8E5M2"];
    for (name, datatype) in types.iter().zip(DataType::ALL) {
        assertion(text, name, datatype as usize);
    }
}

/// Compiles assertions after the header; the compiler's words where it fails.
fn compile(name: &str, assertions: &str) -> Result<(), String> {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let header = format!("#include \"{}/kernels/work.h\"\n#include <stddef.h>\n", env!("CARGO_MANIFEST_DIR"));
    std::fs::write(&file, format!("{header}using namespace oxccl;\n{assertions}"))
        .expect("a file in the target folder");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let output = Command::new(&compiler).args(["-std=c++17", "-fsyntax-only"]).arg(&file).output();
    let output = output.unwrap_or_else(|e| panic!("{compiler}, which the build needed too: {e}"));
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn rust_and_cpp_agree() {
    let mut text = String::new();
    structures(&mut text);
    numbers(&mut text);
    assert!(text.lines().count() > 100, "{text}");
    compile("layout.cc", &text).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_difference_is_found() {
    let mut text = String::new();
    assertion(&mut text, "offsetof(Work, pre)", offset_of!(Work, pre) + 8);
    let message = compile("layout_wrong.cc", &text).expect_err("compiles, though it is wrong");
    assert!(message.contains("offsetof(Work, pre) is 96 in Rust"), "{message}");
}
