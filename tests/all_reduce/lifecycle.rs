//! The life of a communicator: configurations, the end in all its ways, what is left of it.

use std::ffi::c_void;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, waitpid};

use crate::bind::Api;
use crate::common::abi::{INVALID_ARGUMENT, MAGIC};
use crate::common::launch::{self, Job, Place};
use crate::common::nccl::{Comm, Failure};
use crate::common::oracle::{DataType, RedOp};
use crate::common::resources::Resources;
use crate::data::{Buffers, Case, Member, long};

/// How long an abort may take, on a machine that is busy.
const ABORT: Duration = Duration::from_secs(6);

fn one(count: usize) -> Case {
    Case::plain(DataType::Float32, RedOp::Sum, count)
}

/// An `ncclConfig_t` as a program of this version has it: `size` bytes, what is not a field filled with what
/// happened to be there.
fn config(size: usize, version: u64) -> Vec<u64> {
    const UNDEF: u64 = 0x8000_0000_8000_0000;
    const GARBAGE: u64 = 0xfedc_ba98_fedc_ba98;
    // size; magic, version; blocking, cgaClusterSize; minCTAs, maxCTAs; netName; splitShare, trafficClass;
    // commName; collnetEnable, CTAPolicy; ...
    let mut words = vec![size as u64, u64::from(MAGIC) | version << 32, 1 | UNDEF << 32, UNDEF, 0, UNDEF, 0];
    words.resize(15, UNDEF);
    // Behind its last field a struct of 24, 48, 96 or 120 bytes has four bytes of padding.
    let padded = matches!((size, version), (24, _) | (48, ..22600) | (96, ..23005) | (120, _));
    if padded {
        let last = &mut words[size / 8 - 1];
        *last = *last & 0xffff_ffff | GARBAGE << 32;
    }
    words[size.min(120) / 8..].iter_mut().for_each(|word| *word = GARBAGE);
    words.resize(40, GARBAGE);
    words
}

/// Sizes and versions as NVIDIA's headers from 2.14 to 2.32 have had them, and a version to come.
#[test]
fn configurations_of_every_version() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        let versions = [
            (24, 21400),
            (40, 21700),
            (48, 21800),
            (48, 22500),
            (48, 22600),
            (72, 22700),
            (80, 22800),
            (88, 22900),
            (96, 23003),
            (96, 23007),
            (112, 23102),
            (120, 23203),
            (160, 99999),
        ];
        for (size, version) in versions {
            let mut comm = Comm::NULL;
            let id = api.meet(&me, &format!("id{size}.{version}"));
            let code = api.init_words(&mut comm, (me.nranks, me.rank), id, &config(size, version));
            assert_eq!(code, 0, "size {size} version {version}: {}", api.nccl.last_error());
            let member = Member::new(&api, comm, me.rank, me.nranks);
            member.run(&[one(100)]);
            member.end();
        }
        let mut wrong = config(120, 23203);
        wrong[1] ^= 1;
        let code = api.init_words(&mut Comm::NULL.clone(), (1, 0), api.nccl.unique_id().expect("an id"), &wrong);
        assert_eq!(code, INVALID_ARGUMENT, "no magic");
        return;
    }
    Job::this_test("lifecycle::configurations_of_every_version", 2).allow_any_warning().run().assert_ok();
}

#[test]
fn memory_of_the_library() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let (nccl, cuda) = (member.api.nccl, member.api.cuda);
        let buffer = nccl.mem_alloc(4 << 20).expect("memory");
        cuda.copy_to_device(buffer, &3u32.to_le_bytes().repeat(1 << 20)).expect("copy");
        let what = (DataType::Uint32, RedOp::Prod);
        // SAFETY: the buffer is freed after the wait.
        unsafe { nccl.all_reduce((buffer, buffer), 1 << 20, what, member.comm, member.stream.0) }.expect("a call");
        cuda.wait(member.stream).expect("wait");
        let mut output = vec![0; 4 << 20];
        cuda.copy_to_host(&mut output, buffer).expect("copy");
        assert!(output == 9u32.to_le_bytes().repeat(1 << 20));
        // SAFETY: nothing uses it any more.
        unsafe { nccl.mem_free(buffer) }.expect("free");
        return member.end();
    }
    Job::this_test("lifecycle::memory_of_the_library", 2).run().assert_ok();
}

/// Destroy waits for what was launched, also where nobody has waited for the stream.
#[test]
fn destroy_right_after_a_launch() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        for (round, count) in [10, 1 << 20, 300_000, 1].into_iter().enumerate() {
            let comm = api.init(me.nranks, api.meet(&me, &format!("id{round}")), me.rank);
            let member = Member::new(&api, comm, me.rank, me.nranks);
            let buffers: Vec<Buffers> = (0..3).map(|_| Buffers::new(&member, one(count))).collect();
            buffers.iter().for_each(|buffers| buffers.call(&member, member.stream).expect("a call"));
            member.api.nccl.destroy(member.comm).expect("destroy");
            buffers.into_iter().for_each(|buffers| buffers.check(&member).unwrap_or_else(|wrong| panic!("{wrong}")));
        }
        return;
    }
    for delay in ["0", "2000"] {
        Job::this_test("lifecycle::destroy_right_after_a_launch", 2).env("SOFTCUDA_DELAY_US", delay).run().assert_ok();
    }
}

#[test]
fn many_communicators_one_after_the_other() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        let round = |number: usize| {
            let comm = api.init(me.nranks, api.meet(&me, &format!("id{number}")), me.rank);
            let member = Member::new(&api, comm, me.rank, me.nranks);
            member.run(&[one(number)]);
            // Every other one is aborted, which is as good when nothing runs.
            if number.is_multiple_of(2) {
                return member.end();
            }
            api.nccl.abort(member.comm).expect("abort");
            api.cuda.destroy_stream(member.stream).expect("destroy");
        };
        (0..10).for_each(round);
        let before = Resources::now();
        (10..if long() { 300 } else { 60 }).for_each(round);
        me.barrier("end");
        before.assert_same();
        return before.assert_memory_within(16 << 10);
    }
    Job::this_test("lifecycle::many_communicators_one_after_the_other", 2).run().assert_ok();
}

/// A peer that never comes: the kernel waits, the stream waits, a thread waits. An abort ends it all.
#[test]
fn abort_while_a_call_waits() {
    if let Some(me) = launch::child() {
        let before = Resources::now();
        let member = Member::of_process(&Api::load(), &me);
        if me.rank == 1 {
            me.await_published("aborted");
            return member.api.nccl.abort(member.comm).expect("abort");
        }
        let (api, context) = (member.api, member.api.current());
        let buffers = Buffers::new(&member, one(100_000));
        buffers.call(&member, member.stream).expect("a call");
        thread::scope(|scope| {
            scope.spawn(move || {
                api.cuda.set_current(context).expect("current");
                api.cuda.wait(member.stream).expect("the kernel leaves");
            });
            thread::sleep(Duration::from_millis(200));
            let start = Instant::now();
            api.nccl.abort(member.comm).expect("abort");
            assert!(start.elapsed() < ABORT, "an abort took {:?}", start.elapsed());
        });
        me.publish("aborted", b"");
        let left = Resources::now().grown(&before);
        let ours: Vec<&String> = left.iter().filter(|what| what.contains("oxccl") || what.contains("socket")).collect();
        assert!(ours.is_empty(), "{ours:?}");
        return;
    }
    Job::this_test("lifecycle::abort_while_a_call_waits", 2).run().assert_ok();
}

/// Communicators of one device that all wait are aborted one after the other: freeing the first must not
/// wait for the kernel of the second.
#[test]
fn several_that_wait_are_aborted_in_turn() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        let comm = |number: usize| api.init(me.nranks, api.meet(&me, &format!("id{number}")), me.rank);
        let members: Vec<Member> = (0..3).map(|number| Member::new(&api, comm(number), me.rank, me.nranks)).collect();
        // All memory first, that of links, too: an allocation may wait for the device.
        members.iter().for_each(|member| member.run(&[one(100_000)]));
        if me.rank == 0 {
            let buffers: Vec<Buffers> = members.iter().map(|member| Buffers::new(member, one(100_000))).collect();
            for (member, buffers) in members.iter().zip(&buffers) {
                buffers.call(member, member.stream).expect("a call");
            }
            thread::sleep(Duration::from_millis(100));
        } else {
            me.await_published("aborted");
        }
        for member in members {
            let start = Instant::now();
            api.nccl.abort(member.comm).expect("abort");
            assert!(start.elapsed() < ABORT, "an abort took {:?}", start.elapsed());
        }
        return me.publish("aborted", b"");
    }
    Job::this_test("lifecycle::several_that_wait_are_aborted_in_turn", 2).run().assert_ok();
}

/// Destroy waits for a peer that never comes; another thread aborts, and both return.
#[test]
fn abort_while_destroy_waits() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        if me.rank == 1 {
            me.await_published("aborted");
            return member.api.nccl.abort(member.comm).expect("abort");
        }
        Buffers::new(&member, one(1000)).call(&member, member.stream).expect("a call");
        thread::scope(|scope| {
            let destroyer = scope.spawn(move || member.api.nccl.destroy(member.comm));
            thread::sleep(Duration::from_millis(200));
            let start = Instant::now();
            member.api.nccl.abort(member.comm).expect("abort");
            assert!(start.elapsed() < ABORT, "an abort took {:?}", start.elapsed());
            let destroyed = destroyer.join().expect("no panic");
            assert_eq!(destroyed.expect_err("it was aborted meanwhile").code, INVALID_ARGUMENT);
        });
        return me.publish("aborted", b"");
    }
    Job::this_test("lifecycle::abort_while_destroy_waits", 2).allow_any_warning().run().assert_ok();
}

/// A call on 1000 elements in place.
fn in_place(member: &Member, buffer: u64) -> Result<(), Failure> {
    let what = (DataType::Float64, RedOp::Sum);
    // SAFETY: the buffer lives to the end of the process.
    unsafe { member.api.nccl.all_reduce((buffer, buffer), 1000, what, member.comm, member.stream.0) }
}

/// Calls, questions and ends of one communicator from many threads at once: each gets a result or an
/// error, and nobody a freed object.
#[test]
fn threads_that_race_with_the_end() {
    if launch::child().is_some() {
        let api = Api::load();
        let context = api.cuda.use_device(0).expect("a device");
        let buffer = api.cuda.alloc(8000).expect("memory");
        for round in 0..if long() { 300 } else { 30 } {
            let comm = api.init(1, api.nccl.unique_id().expect("an id"), 0);
            let member = Member::new(&api, comm, 0, 1);
            let (start, ended) = (&Barrier::new(4), &Mutex::new(0));
            let end = move |done: bool| *ended.lock().expect("no panic") += i32::from(done);
            thread::scope(|scope| {
                scope.spawn(move || {
                    start.wait();
                    end(api.nccl.destroy(member.comm).is_ok());
                });
                scope.spawn(move || {
                    start.wait();
                    end(round % 2 == 0 && api.nccl.abort(member.comm).is_ok());
                });
                scope.spawn(move || {
                    start.wait();
                    (0..20).for_each(|_| drop(api.nccl.async_error(member.comm)));
                });
                scope.spawn(move || {
                    api.cuda.set_current(context).expect("current");
                    start.wait();
                    (0..5).for_each(|_| drop(in_place(&member, buffer)));
                });
            });
            api.cuda.wait(member.stream).expect("wait");
            api.cuda.destroy_stream(member.stream).expect("destroy");
            assert_eq!(*ended.lock().expect("no panic"), 1, "one of them ends it");
        }
        return;
    }
    Job::this_test("lifecycle::threads_that_race_with_the_end", 1).allow_any_warning().run().assert_ok();
}

/// The communicator that is destroyed when the process ends.
static LAST: Mutex<Option<Member>> = Mutex::new(None);

extern "C" fn at_exit() {
    let member = LAST.lock().expect("no panic").take().expect("a communicator");
    let result = member.api.nccl.destroy(member.comm);
    println!("destroyed at exit: {result:?}");
}

fn wait_for_exit(me: &Place) {
    let member = Member::of_process(&Api::load(), me);
    member.run(&[one(1000)]);
    member.api.nccl.group_start().expect("group");
    member.api.nccl.group_end().expect("group");
    *LAST.lock().expect("no panic") = Some(member);
    // SAFETY: the handler is a function of this program.
    assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
}

/// Exit handlers run when what belongs to the main thread is gone already.
#[test]
fn destroy_in_an_exit_handler() {
    if let Some(me) = launch::child() {
        wait_for_exit(&me);
        // From here, so that it is this thread whose things are gone.
        std::process::exit(0);
    }
    let outcome = Job::this_test("lifecycle::destroy_in_an_exit_handler", 2).run();
    outcome.assert_ok();
    outcome.ranks.iter().for_each(|rank| assert!(rank.stdout.contains("destroyed at exit: Ok(())"), "{outcome}"));
}

/// A process may end with communicators alive, and with a kernel that waits in vain.
#[test]
fn exit_with_live_communicators() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        member.run(&[one(1000)]);
        if me.rank == 0 {
            Buffers::new(&member, one(1000)).call(&member, member.stream).expect("a call");
        }
        return;
    }
    Job::this_test("lifecycle::exit_with_live_communicators", 2).run().assert_ok();
}

/// A forked child has the handles and nothing behind them: it can end them and itself, and neither is
/// noticed by its parent.
#[test]
fn a_forked_child_is_inert() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        member.run(&[one(100)]);
        let buffer = member.api.cuda.alloc(8000).expect("memory");
        me.barrier("before");
        // SAFETY: the child calls the library, prints nothing and ends.
        match unsafe { libc::fork() } {
            0 => {
                let refused = in_place(&member, buffer).is_err();
                let ended = member.api.nccl.finalize(member.comm).is_ok()
                    && match me.rank {
                        0 => member.api.nccl.abort(member.comm).is_ok(),
                        _ => member.api.nccl.destroy(member.comm).is_ok(),
                    };
                std::process::exit(if refused && ended { 0 } else { 1 });
            }
            child => {
                let pid = rustix::process::Pid::from_raw(child);
                let status = waitpid(pid, WaitOptions::empty()).expect("wait").expect("the child has ended").1;
                assert_eq!(status.exit_status(), Some(0), "the child");
            }
        }
        me.barrier("after");
        member.run(&[one(100), one(5000)]);
        return member.end();
    }
    let job = Job::this_test("lifecycle::a_forked_child_is_inert", 2).deadline(Duration::from_secs(60));
    job.allow_any_warning().run().assert_ok();
}

extern "C" fn nap(_: *mut c_void) {
    thread::sleep(Duration::from_secs(4));
}

/// A kernel that cannot start, since the user's own work is before it, is told; its memory stays.
#[test]
fn abort_behind_work_of_the_user() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        me.barrier("ready");
        member.api.host(member.stream, nap);
        Buffers::new(&member, one(1000)).call(&member, member.stream).expect("a call");
        let start = Instant::now();
        member.api.nccl.abort(member.comm).expect("abort");
        assert!(start.elapsed() < Duration::from_secs(4), "an abort took {:?}", start.elapsed());
        return member.api.cuda.wait(member.stream).expect("the kernel finds its memory");
    }
    let job = Job::this_test("lifecycle::abort_behind_work_of_the_user", 2);
    job.allow_warning("a kernel did not leave").run().assert_ok();
}

/// The lines that people look for, with their subsystems switched on.
#[test]
fn the_log_tells_the_life() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        member.run(&[one(123)]);
        println!("handle {:p}", member.comm.0);
        return member.end();
    }
    let job = Job::this_test("lifecycle::the_log_tells_the_life", 2).env("NCCL_DEBUG", "INFO");
    // Settings that do nothing here, which is said.
    let idle = [("NCCL_CGA_CLUSTER_SIZE", "2"), ("NCCL_GRAPH_STREAM_ORDERING", "1"), ("NCCL_NTHREADS", "256")];
    let outcome = job.env("NCCL_DEBUG_SUBSYS", "ALL").with(&idle).run();
    outcome.assert_ok();
    for (rank, outcome) in outcome.ranks.iter().enumerate() {
        let text = &outcome.stdout;
        let handle = text.lines().find_map(|line| line.strip_prefix("handle ")).expect("the handle");
        for line in [
            "NCCL INFO NCCL version 2.32.3".to_string(),
            "NCCL INFO Bootstrap: Using ".to_string(),
            format!(
                "[Rank {rank}] ncclCommInitRank comm {handle} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId "
            ),
            format!("ncclCommInitRank comm {handle} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId "),
            " - Init START".to_string(),
            " - Init COMPLETE".to_string(),
            format!("Init timings - ncclCommInitRank: rank {rank} nranks 2 total "),
            format!("Channel 00/0 : {rank}[{rank}] -> {}[{}] via P2P/IPC", 1 - rank, 1 - rank),
            "Connected all rings, use ring PXN 0 GDR 0".to_string(),
            "AllReduce: opCount 0 sendbuff 0x".to_string(),
            format!(" count 123 datatype 7 op 0 root 0 comm {handle} [nranks=2] stream 0x"),
            format!("comm {handle} rank {rank} nranks 2 cudaDev {rank} busId "),
            " - Destroy COMPLETE".to_string(),
            "config cgaClusterSize (NCCL_CGA_CLUSTER_SIZE) has no effect".to_string(),
            "config graphStreamOrdering (NCCL_GRAPH_STREAM_ORDERING) has no effect".to_string(),
            "Invalid NCCL_NTHREADS 256 (a block of the software device has one thread): using 1".to_string(),
        ] {
            assert!(text.contains(&line), "rank {rank} did not print: {line}\n{text}");
        }
        assert_eq!(text.contains("Channel 00/01 : 0 1"), rank == 0, "rank 0 prints the ring\n{text}");
    }
}

/// Devices have the numbers that NVML gives them, whatever this process sees of them.
#[test]
fn the_log_has_nvmls_numbers() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        member.run(&[one(123)]);
        return member.end();
    }
    let job = Job::this_test("lifecycle::the_log_has_nvmls_numbers", 2).env("NCCL_DEBUG", "INFO");
    let outcome = job.env("CUDA_VISIBLE_DEVICES", "5,2").run();
    outcome.assert_ok();
    for (rank, number) in [(0, 5), (1, 2)] {
        let line = format!(" cudaDev {rank} nvmlDev {number} busId ");
        assert!(outcome.ranks[rank].stdout.contains(&line), "{line}\n{outcome}");
    }
}
