//! Handles that are none, and handles of communicators that are gone.

use crate::common::abi::{self, Comm, Config, IN_PROGRESS, INVALID_ARGUMENT, SUCCESS, UniqueId};
use crate::common::launch::{self, Job};
use crate::library::{Answer, Bench, FLOAT64, Lib, SUM, pointer};
use crate::rank::{DEADLINE, settled, warm_up};

fn alone(name: &str) -> Job {
    Job::this_test(name, 1).deadline(DEADLINE).allow_any_warning()
}

/// Calls of data functions with a handle; the buffers are never looked at.
fn data_calls(lib: Lib, comm: usize) -> Vec<(&'static str, Answer)> {
    let (comm, at, null) = (Comm::from_number(comm), pointer(64), pointer(0));
    let mut answers = Vec::new();
    for name in ["ncclAllReduce", "ncclReduceScatter"] {
        // SAFETY: the types are those of nccl.h; the library refuses the handle before it looks at anything.
        answers
            .push((name, lib.answer(unsafe { lib.get::<abi::Reducing>(name)(at, at, 1, FLOAT64, SUM, comm, null) })));
    }
    // SAFETY: as above.
    answers.push((
        "ncclReduce",
        lib.answer(unsafe { lib.get::<abi::ReducingTo>("ncclReduce")(at, at, 1, FLOAT64, SUM, 0, comm, null) }),
    ));
    for name in ["ncclBroadcast", "ncclGather", "ncclScatter"] {
        // SAFETY: as above.
        answers.push((name, lib.answer(unsafe { lib.get::<abi::MovingOf>(name)(at, at, 1, FLOAT64, 0, comm, null) })));
    }
    for name in ["ncclAllGather", "ncclAlltoAll"] {
        // SAFETY: as above.
        answers.push((name, lib.answer(unsafe { lib.get::<abi::Moving>(name)(at, at, 1, FLOAT64, comm, null) })));
    }
    for name in ["ncclSend", "ncclRecv", "ncclBcast"] {
        // SAFETY: as above.
        answers.push((name, lib.answer(unsafe { lib.get::<abi::OneBuffer>(name)(at, 1, FLOAT64, 0, comm, null) })));
    }
    answers
}

/// Calls of all other functions that take a handle and do not forgive NULL.
fn other_calls(lib: Lib, comm: usize) -> Vec<(&'static str, Answer)> {
    let (mut child, mut handle, mut value, mut list) = (Comm::NULL, std::ptr::null_mut(), 0, [1]);
    let mut id = UniqueId([0; 128]);
    let mut answers: Vec<(&str, Answer)> =
        ["ncclCommCount", "ncclCommCuDevice", "ncclCommUserRank", "ncclCommGetAsyncError"]
            .map(|name| (name, lib.query(name, comm).0))
            .into();
    let (c, at, config) = (Comm::from_number(comm), pointer(64), std::ptr::null());
    // SAFETY: the types are those of nccl.h, and every pointer is to a live object.
    let codes = unsafe {
        [
            ("ncclCommSplit", lib.get::<abi::CommSplit>("ncclCommSplit")(c, 0, 0, &mut child, config)),
            ("ncclCommRegister", lib.get::<abi::CommRegister>("ncclCommRegister")(c, at, 64, &mut handle)),
            (
                "ncclCommWindowRegister",
                lib.get::<abi::CommWindowRegister>("ncclCommWindowRegister")(c, at, 64, &mut handle, 0),
            ),
            ("ncclCommMemStats", lib.get::<abi::CommMemStats>("ncclCommMemStats")(c, 0, &mut value)),
            (
                "ncclCommShrink",
                lib.get::<abi::CommShrink>("ncclCommShrink")(c, list.as_mut_ptr(), 1, &mut child, config, 0),
            ),
            ("ncclCommGetUniqueId", lib.get::<abi::CommGetUniqueId>("ncclCommGetUniqueId")(c, &mut id)),
            ("ncclRedOpDestroy", lib.get::<abi::RedOpDestroy>("ncclRedOpDestroy")(77, c)),
            ("ncclCommSuspend", lib.get::<abi::OfCommWithFlags>("ncclCommSuspend")(c, 0)),
        ]
    };
    // The text is that of the last call here; each is looked at alone elsewhere.
    answers.extend(codes.map(|(name, code)| (name, lib.answer(code))));
    answers
}

/// The functions that end a communicator; NULL is nothing to them.
fn ends(lib: Lib, comm: usize) -> Vec<(&'static str, Answer)> {
    let revoke = lib.get::<abi::OfCommWithFlags>("ncclCommRevoke");
    let mut answers: Vec<(&str, Answer)> =
        ["ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort"].map(|name| (name, lib.simple(name, comm))).into();
    // SAFETY: the type is that of nccl.h.
    answers.push(("ncclCommRevoke", lib.answer(unsafe { revoke(Comm::from_number(comm), 0) })));
    answers
}

#[track_caller]
fn all_refuse(lib: Lib, comm: usize) {
    let answers = [data_calls(lib, comm), other_calls(lib, comm), ends(lib, comm)].concat();
    for (name, answer) in answers {
        assert_eq!(answer.code, INVALID_ARGUMENT, "{name} with handle {comm:#x}: {answer:?}");
        assert!(answer.text.contains("corrupted comm object"), "{name} with handle {comm:#x}: {answer:?}");
    }
}

#[test]
fn null_and_garbage_are_refused() {
    if launch::child().is_none() {
        return alone("handles::null_and_garbage_are_refused").run().assert_ok();
    }
    let lib = Lib::load();
    let cuda = warm_up(lib);
    let before = settled();
    for (name, answer) in [data_calls(lib, 0), other_calls(lib, 0)].concat() {
        assert_eq!(answer.code, INVALID_ARGUMENT, "{name} with NULL: {answer:?}");
        assert!(answer.text.contains("comm argument is NULL"), "{name} with NULL: {answer:?}");
    }
    for (name, answer) in ends(lib, 0) {
        assert_eq!(answer.code, SUCCESS, "{name} with NULL: {answer:?}");
    }
    let (answer, live) = lib.init(1, lib.id(), 0);
    answer.ok();
    let on_stack = [0xdead_beef_u64; 64];
    let on_heap = vec![0u8; 4096];
    let garbage = [
        1,
        usize::MAX,
        usize::MAX - 63,
        on_stack.as_ptr() as usize,
        on_heap.as_ptr() as usize,
        null_and_garbage_are_refused as fn() as usize,
        live + 1,
        live + 8,
        live - 64 * 1024,
        live + 64,
        live + 64 * (1 << 20),
        live | 1 << 63,
    ];
    for handle in garbage {
        all_refuse(lib, handle);
    }
    // The one that is real has not suffered.
    let bench = Bench::new(cuda, 0);
    bench.begin(lib, live, 0);
    bench.check(1);
    lib.destroy(live).ok();
    drop(bench);
    before.assert_same();
}

#[test]
fn dead_handles_are_refused() {
    if launch::child().is_none() {
        return alone("handles::dead_handles_are_refused").run().assert_ok();
    }
    let lib = Lib::load();
    warm_up(lib);
    let before = settled();
    for end in ["ncclCommDestroy", "ncclCommAbort"] {
        let (answer, comm) = lib.init(1, lib.id(), 0);
        answer.ok();
        lib.simple("ncclCommFinalize", comm).ok();
        lib.simple("ncclCommFinalize", comm).is(INVALID_ARGUMENT, &["finalized already"]);
        lib.simple(end, comm).ok();
        all_refuse(lib, comm);
        // A new communicator does not answer to the old handle.
        let (answer, next) = lib.init(1, lib.id(), 0);
        answer.ok();
        assert_ne!(next, comm);
        all_refuse(lib, comm);
        lib.destroy(next).ok();
    }
    before.assert_same();
}

#[test]
fn one_of_many_destroys_wins() {
    if launch::child().is_none() {
        return alone("handles::one_of_many_destroys_wins").run().assert_ok();
    }
    let lib = Lib::load();
    warm_up(lib);
    let before = settled();
    for round in 0..20 {
        let (answer, comms) = lib.init_all(2, None);
        answer.ok();
        let codes: Vec<i32> = std::thread::scope(|scope| {
            let end = if round % 2 == 0 { Lib::destroy } else { Lib::abort };
            let first = comms[0];
            let calls: Vec<_> = (0..4).map(|_| scope.spawn(move || end(&lib, first).code)).collect();
            calls.into_iter().map(|call| call.join().expect("a thread")).collect()
        });
        assert_eq!(codes.iter().filter(|code| **code == SUCCESS).count(), 1, "{codes:?}");
        assert_eq!(codes.iter().filter(|code| **code == INVALID_ARGUMENT).count(), 3, "{codes:?}");
        lib.destroy(comms[1]).ok();
    }
    before.assert_same();
}

#[test]
fn an_unfinished_communicator_can_only_be_aborted() {
    if launch::child().is_none() {
        return alone("handles::an_unfinished_communicator_can_only_be_aborted").run().assert_ok();
    }
    let lib = Lib::load();
    let cuda = warm_up(lib);
    let bench = Bench::new(cuda, 0);
    let (answer, comm) = lib.init_config(2, lib.id(), 0, Config::oldest(0));
    answer.is(IN_PROGRESS, &[]);
    let early = "before the previous operation returned ncclSuccess";
    lib.count(comm).is(INVALID_ARGUMENT, &[early]);
    lib.all_reduce((bench.send, bench.recv), 8, (FLOAT64, SUM), comm, 0).is(INVALID_ARGUMENT, &[early]);
    lib.simple("ncclCommFinalize", comm).is(INVALID_ARGUMENT, &[early]);
    lib.destroy(comm).is(INVALID_ARGUMENT, &[early]);
    assert_eq!(lib.state(comm), IN_PROGRESS);
    lib.abort(comm).ok();
    all_refuse(lib, comm);
}
