//! Numbers and pointers that cannot be right, alone and in groups.

use std::ffi::c_int;

use crate::common::abi::{self, Comm, Config, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, UNHANDLED_CUDA_ERROR};
use crate::common::launch::{self, Job};
use crate::common::nccl::UniqueId;
use crate::common::oracle::DataType;
use crate::library::{Bench, FLOAT64, INT32, Lib, SUM, pointer};
use crate::rank::{DEADLINE, settled, warm_up};

/// Runs a body in a process of its own, with a communicator of two ranks that are threads of it; afterwards
/// the communicator must still work, and nothing may be left.
fn with_pair(test: &str, body: fn(Lib, &Bench, usize)) {
    if launch::child().is_none() {
        return Job::this_test(test, 1).deadline(DEADLINE).allow_any_warning().run().assert_ok();
    }
    let lib = Lib::load();
    let cuda = warm_up(lib);
    let before = settled();
    let (answer, comms) = lib.init_all(2, None);
    answer.ok();
    {
        let benches = [1, 0].map(|device| Bench::new(cuda, device));
        body(lib, &benches[1], comms[0]);
        lib.group_start();
        benches[1].begin(lib, comms[0], 0);
        cuda.use_device(1).expect("a device");
        benches[0].begin(lib, comms[1], 1);
        lib.group_end().ok();
        benches.iter().for_each(|bench| bench.check(2));
    }
    comms.iter().for_each(|comm| lib.destroy(*comm).ok());
    before.assert_same();
}

/// The root of an id waits for ranks; this ends it, and shows that the id is good.
fn use_up(lib: Lib, id: UniqueId) {
    let (answer, comm) = lib.init(1, id, 0);
    answer.ok();
    lib.destroy(comm).ok();
}

#[test]
fn unknown_types_operators_and_roots() {
    with_pair("arguments::unknown_types_operators_and_roots", |lib, bench, comm| {
        let buffers = (bench.send, bench.recv);
        // Whatever the count: a wrong number is wrong where nothing is to be done, too.
        for count in [0, 8] {
            for dt in [-1, 12, 13, 99, c_int::MAX, c_int::MIN] {
                lib.all_reduce(buffers, count, (dt, SUM), comm, 0)
                    .is(INVALID_ARGUMENT, &["AllReduce", "type", &dt.to_string()]);
            }
            for op in [-1, 5, 6, 99, c_int::MAX, c_int::MIN] {
                lib.all_reduce(buffers, count, (INT32, op), comm, 0)
                    .is(INVALID_ARGUMENT, &["AllReduce", "operation", &op.to_string()]);
            }
        }
        let broadcast: abi::MovingOf = lib.get("ncclBroadcast");
        for root in [-1, 2, c_int::MAX, c_int::MIN] {
            // SAFETY: the buffers are memory of the device.
            let code = unsafe {
                let (send, recv) = (pointer(bench.send), pointer(bench.recv));
                broadcast(send, recv, 8, INT32, root, Comm::from_number(comm), pointer(0))
            };
            lib.answer(code).is(INVALID_ARGUMENT, &["Broadcast", "root", &root.to_string()]);
        }
    });
}

#[test]
fn nothing_to_do_is_done_at_once() {
    // One rank of two alone: a collective without elements does not wait for the other.
    with_pair("arguments::nothing_to_do_is_done_at_once", |lib, bench, comm| {
        for buffers in [(bench.send, bench.recv), (0, 0), (bench.send + 1, 3)] {
            for dt in DataType::all() {
                lib.all_reduce(buffers, 0, (dt as i32, SUM), comm, 0).ok();
            }
        }
        lib.group_start();
        lib.all_reduce((0, 0), 0, (INT32, SUM), comm, 0).ok();
        lib.group_end().ok();
    });
}

#[test]
fn buffers_that_cannot_be() {
    with_pair("arguments::buffers_that_cannot_be", |lib, bench, comm| {
        let (send, recv) = (bench.send, bench.recv);
        for dt in DataType::all() {
            let how = (dt as i32, SUM);
            lib.all_reduce((0, recv), 8, how, comm, 0)
                .is(INVALID_ARGUMENT, &["AllReduce", "sendbuff", "not a valid pointer"]);
            lib.all_reduce((send, 0), 8, how, comm, 0)
                .is(INVALID_ARGUMENT, &["AllReduce", "recvbuff", "not a valid pointer"]);
            lib.all_reduce((send, recv), usize::MAX, how, comm, 0).is(INVALID_ARGUMENT, &["address space"]);
            for off in 1..dt.size() as u64 {
                lib.all_reduce((send + off, recv), 8, how, comm, 0).is(INVALID_ARGUMENT, &["sendbuff", "aligned"]);
                lib.all_reduce((send, recv + off), 8, how, comm, 0).is(INVALID_ARGUMENT, &["recvbuff", "aligned"]);
            }
        }
        // The end of the address space, by bytes and by elements.
        lib.all_reduce((send, recv), usize::MAX / 8, (FLOAT64, SUM), comm, 0).is(INVALID_ARGUMENT, &["address space"]);
        lib.all_reduce((u64::MAX - 7, recv), 8, (FLOAT64, SUM), comm, 0).is(INVALID_ARGUMENT, &["address space"]);
    });
}

#[test]
fn streams_that_are_none() {
    with_pair("arguments::streams_that_are_none", |lib, bench, comm| {
        let on_heap = [0u64; 32];
        for stream in [0xdead_0000, on_heap.as_ptr() as usize, usize::MAX] {
            let answer = lib.all_reduce((bench.send, bench.recv), 8, (INT32, SUM), comm, stream);
            answer.is(UNHANDLED_CUDA_ERROR, &["Cuda failure"]);
        }
    });
}

#[test]
fn an_error_drops_its_group() {
    with_pair("arguments::an_error_drops_its_group", |lib, bench, comm| {
        let buffers = (bench.send, bench.recv);
        let id = lib.id();
        let wrong: [&dyn Fn() -> i32; 5] = [
            &|| lib.all_reduce(buffers, 8, (99, SUM), comm, 0).code,
            &|| lib.all_reduce(buffers, 8, (INT32, SUM), 1, 0).code,
            &|| lib.all_reduce((0, bench.recv), 8, (INT32, SUM), comm, 0).code,
            &|| lib.all_reduce((bench.send + 1, bench.recv), 8, (INT32, SUM), comm, 0).code,
            &|| lib.init(1, id, 2).0.code,
        ];
        for call in wrong {
            lib.group_start();
            lib.group_start();
            // Alone this would wait for the other rank; it must not be launched.
            lib.all_reduce(buffers, 8, (INT32, SUM), comm, 0).ok();
            assert_eq!(call(), INVALID_ARGUMENT);
            lib.all_reduce(buffers, 8, (INT32, SUM), comm, 0).ok();
            lib.group_end().ok();
            assert_eq!(lib.group_end().code, INVALID_ARGUMENT);
            lib.group_end().is(INVALID_USAGE, &["not in a group call"]);
        }
        bench.cuda.wait(bench.stream).expect("an idle stream");
        use_up(lib, id);
    });
}

#[test]
fn a_dropped_creation_leaves_nothing() {
    with_pair("arguments::a_dropped_creation_leaves_nothing", |lib, _, _| {
        let before = settled();
        for _ in 0..20 {
            let (mut comm, id) = (Comm::from_number(usize::MAX), lib.id());
            lib.group_start();
            // SAFETY: the handle outlives the group.
            unsafe { lib.init_in_group(&mut comm, 1, id, 0) }.ok();
            assert_eq!(lib.init(1, id, 5).0.code, INVALID_ARGUMENT);
            assert_eq!(lib.group_end().code, INVALID_ARGUMENT);
            assert_eq!(comm, Comm::NULL, "not a handle that nobody can use");
            use_up(lib, id);
        }
        before.assert_same();
    });
}

#[test]
fn nowhere_to_write_to() {
    with_pair("arguments::nowhere_to_write_to", |lib, _, comm| {
        // SAFETY: NULL is what is tested.
        let codes = unsafe {
            [
                lib.get::<abi::GetVersion>("ncclGetVersion")(std::ptr::null_mut()),
                lib.get::<abi::GetUniqueId>("ncclGetUniqueId")(std::ptr::null_mut()),
            ]
        };
        assert_eq!(codes, [INVALID_ARGUMENT; 2]);
        for name in ["ncclCommCount", "ncclCommCuDevice", "ncclCommUserRank", "ncclCommGetAsyncError"] {
            // SAFETY: as above.
            let code = unsafe { lib.get::<abi::CommQuery>(name)(Comm::from_number(comm), std::ptr::null_mut()) };
            lib.answer(code).is(INVALID_ARGUMENT, &["argument is NULL"]);
        }
        let id = lib.id();
        // SAFETY: as above.
        let answer = unsafe { lib.init_in_group(std::ptr::null_mut(), 1, id, 0) };
        answer.is(INVALID_ARGUMENT, &["newcomm argument is NULL"]);
        use_up(lib, id);
        let all: abi::CommInitAll = lib.get("ncclCommInitAll");
        // SAFETY: as above.
        lib.answer(unsafe { all(std::ptr::null_mut(), 1, std::ptr::null()) })
            .is(INVALID_ARGUMENT, &["comms argument is NULL"]);
    });
}

#[test]
fn device_lists_that_cannot_be() {
    with_pair("arguments::device_lists_that_cannot_be", |lib, bench, _| {
        let there = bench.cuda.device_count().expect("devices") as i32;
        for ndev in [-1, c_int::MIN, 0, there + 1, c_int::MAX] {
            let (answer, _) = lib.init_all(ndev, None);
            answer.is(INVALID_ARGUMENT, &["Invalid device count requested", &ndev.to_string()]);
        }
        for device in [-1, there, c_int::MAX] {
            let (answer, comms) = lib.init_all(2, Some(&[0, device]));
            answer.is(INVALID_ARGUMENT, &["Invalid device", &device.to_string()]);
            assert_eq!(comms, [0, 0]);
        }
        lib.init_all(3, Some(&[0, 1, 0])).0.is(INVALID_USAGE, &["device 0", "NCCL_MULTI_RANK_GPU_ENABLE"]);
    });
}

#[test]
fn configurations_that_cannot_be() {
    with_pair("arguments::configurations_that_cannot_be", |lib, _, _| {
        let good = Config::oldest(1);
        let refused = |config, parts: &[&str]| {
            let id = lib.id();
            let (answer, comm) = lib.init_config(1, id, 0, config);
            answer.is(INVALID_ARGUMENT, parts);
            assert_eq!(comm, 0);
            // A wrong argument can be mended: the id is still good.
            use_up(lib, id);
        };
        refused(Config { magic: 0, ..good }, &["ncclConfig_t", "INITIALIZER"]);
        refused(Config { magic: 0xcafe_bee0, ..good }, &["ncclConfig_t", "INITIALIZER"]);
        for blocking in [2, -1, c_int::MAX] {
            refused(Config { blocking, ..good }, &["blocking", &blocking.to_string()]);
        }
        // A size that does not reach to the end of the magic.
        for size in [0, 8, 11] {
            refused(Config { size, ..good }, &["ncclConfig_t", &format!("size {size} ")]);
        }
        // An older program's structure is no error; nor is one of a program of the future.
        let newer = Config { version: 99_999, ..good };
        for config in
            [good, newer, Config { size: 16, ..good }, Config { size: 12, ..good }, Config { version: 0, ..good }]
        {
            let (answer, comm) = lib.init_config(1, lib.id(), 0, config);
            assert_eq!(answer.code, SUCCESS, "{answer:?}");
            lib.destroy(comm).ok();
        }
    });
}
