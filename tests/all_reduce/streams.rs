//! The order of streams. Every operation of the software device takes its time here, so that what is not
//! ordered goes wrong.

use std::thread;

use crate::bind::{Api, LEGACY, NULL_STREAM, PER_THREAD};
use crate::common::cuda::Stream;
use crate::common::launch::{self, Job};
use crate::common::oracle::{DataType, RedOp};
use crate::data::{Case, Member, seeded_rng};

/// Elements of a buffer here, and its bytes as unsigned 32-bit integers.
const COUNT: usize = 3001;
const BYTES: usize = 4 * COUNT;

fn delayed(name: &str, n: usize) {
    Job::this_test(name, n).env("SOFTCUDA_DELAY_US", "2000").run().assert_ok();
}

/// A buffer of unsigned integers on the device.
#[derive(Clone, Copy)]
struct Words(u64);

impl Words {
    fn new(member: &Member, value: u32) -> Words {
        let words = Words(member.api.cuda.alloc(BYTES).expect("memory"));
        member.api.cuda.copy_to_device(words.0, &value.to_le_bytes().repeat(COUNT)).expect("copy");
        words
    }

    /// Fails unless all elements have this value; the device must have been waited for.
    fn assert(self, member: &Member, value: u32, what: &str) {
        let mut bytes = vec![0; BYTES];
        member.api.cuda.copy_to_host(&mut bytes, self.0).expect("copy");
        for (at, word) in bytes.chunks(4).enumerate() {
            assert_eq!(word, value.to_le_bytes(), "{what}: rank {}, element {at}", member.rank);
        }
    }

    fn sum_into(self, to: Words, member: &Member, stream: Stream) {
        let what = (DataType::Uint32, RedOp::Sum);
        // SAFETY: the buffers live to the end of the process.
        unsafe { member.api.nccl.all_reduce((self.0, to.0), COUNT, what, member.comm, stream.0) }.expect("a call");
    }
}

/// Fill and copy before the call, copy and fill after it, nobody waits in between.
fn sandwich(member: &Member, stream: Stream, what: &str) {
    let api = &member.api;
    let [source, send, recv, kept] = [7, 0, 0, 0].map(|value| Words::new(member, value));
    for _ in 0..3 {
        api.fill(send.0, 0xee, BYTES, stream);
        api.copy(send.0, source.0, BYTES, stream);
        send.sum_into(recv, member, stream);
        api.copy(kept.0, recv.0, BYTES, stream);
        api.fill(recv.0, 0xdd, BYTES, stream);
        api.fill(send.0, 0xcc, BYTES, stream);
    }
    api.cuda.wait(stream).expect("wait");
    kept.assert(member, 7 * member.nranks as u32, what);
    recv.assert(member, 0xdddd_dddd, what);
}

#[test]
fn every_kind_of_stream_keeps_its_order() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let blocking = member.api.blocking_stream();
        for (stream, what) in [
            (member.stream, "non-blocking"),
            (blocking, "blocking"),
            (NULL_STREAM, "NULL"),
            (LEGACY, "legacy"),
            (PER_THREAD, "per thread"),
        ] {
            sandwich(&member, stream, what);
        }
        return member.end();
    }
    delayed("streams::every_kind_of_stream_keeps_its_order", 2);
}

/// The legacy stream waits for a blocking stream, and the other way round, across a call.
#[test]
fn the_legacy_stream_is_a_barrier() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let (api, blocking) = (member.api, member.api.blocking_stream());
        let [source, buffer, kept] = [5, 0, 0].map(|value| Words::new(&member, value));
        for _ in 0..3 {
            api.copy(buffer.0, source.0, BYTES, blocking);
            buffer.sum_into(buffer, &member, NULL_STREAM);
            api.copy(kept.0, buffer.0, BYTES, blocking);
        }
        api.cuda.wait(blocking).expect("wait");
        kept.assert(&member, 5 * member.nranks as u32, "legacy");
        return member.end();
    }
    delayed("streams::the_legacy_stream_is_a_barrier", 2);
}

#[test]
fn events_carry_the_order_to_other_streams() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let (api, before, after) =
            (member.api, member.api.cuda.stream().expect("a stream"), member.api.blocking_stream());
        let [source, send, recv, kept] = [9, 0, 0, 0].map(|value| Words::new(&member, value));
        for _ in 0..3 {
            api.copy(send.0, source.0, BYTES, before);
            api.follow(member.stream, before);
            send.sum_into(recv, &member, member.stream);
            api.follow(after, member.stream);
            api.copy(kept.0, recv.0, BYTES, after);
            api.fill(recv.0, 0, BYTES, after);
            api.follow(before, after);
        }
        api.cuda.wait(after).expect("wait");
        kept.assert(&member, 9 * member.nranks as u32, "events");
        return member.end();
    }
    delayed("streams::events_carry_the_order_to_other_streams", 2);
}

/// The calls of one communicator follow one another whatever streams they are on: a chain in place.
#[test]
fn calls_on_two_streams_follow_one_another() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let other = member.api.cuda.stream().expect("a stream");
        let buffer = Words::new(&member, 1);
        for step in 0..10 {
            buffer.sum_into(buffer, &member, [member.stream, other][step % 2]);
        }
        [member.stream, other].into_iter().for_each(|stream| member.api.cuda.wait(stream).expect("wait"));
        buffer.assert(&member, (me.nranks as u32).pow(10), "alternating");
        return member.end();
    }
    delayed("streams::calls_on_two_streams_follow_one_another", 3);
}

/// A call on a stream that is being captured, alone and in a group, is not carried out; the capture and the
/// communicator stay usable.
#[test]
fn a_captured_call_is_not_carried_out() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let nccl = &member.api.nccl;
        let (send, recv) = (Words::new(&member, 1), Words::new(&member, 0));
        let what = (DataType::Uint32, RedOp::Sum);
        // SAFETY: the buffers live to the end of the process.
        let call = || unsafe { nccl.all_reduce((send.0, recv.0), COUNT, what, member.comm, member.stream.0) };
        member.api.capture(member.stream, call).expect("a captured call");
        let captured = member.api.capture(member.stream, || {
            nccl.group_start().expect("group");
            call().expect("queued");
            nccl.group_end()
        });
        captured.expect("a captured group");
        member.api.cuda.wait(member.stream).expect("wait");
        recv.assert(&member, 0, "captured");
        send.sum_into(recv, &member, member.stream);
        member.api.cuda.wait(member.stream).expect("wait");
        recv.assert(&member, me.nranks as u32, "after the captures");
        return member.end();
    }
    Job::this_test("streams::a_captured_call_is_not_carried_out", 2).run().assert_ok();
}

/// The default streams of two threads have one name and are two streams; and so are a stream that was
/// destroyed and a new one that got its handle.
#[test]
fn one_handle_can_name_two_streams() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let buffer = Words::new(&member, 1);
        let context = member.api.current();
        for _ in 0..3 {
            thread::scope(|scope| {
                scope.spawn(move || {
                    member.api.cuda.set_current(context).expect("current");
                    buffer.sum_into(buffer, &member, PER_THREAD);
                });
            });
            buffer.sum_into(buffer, &member, PER_THREAD);
            let short = member.api.cuda.stream().expect("a stream");
            buffer.sum_into(buffer, &member, short);
            member.api.cuda.destroy_stream(short).expect("destroy");
        }
        member.api.cuda.synchronize().expect("wait");
        buffer.assert(&member, (me.nranks as u32).pow(9), "one handle");
        return member.end();
    }
    delayed("streams::one_handle_can_name_two_streams", 2);
}

/// Streams of one group: the kernels wait for what was on each of them, and each waits for the kernels.
#[test]
fn a_group_joins_its_streams() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let (api, n) = (member.api, me.nranks as u32);
        let streams: Vec<Stream> = (0..3).map(|_| api.cuda.stream().expect("a stream")).collect();
        let sources: Vec<Words> = (0..3).map(|number| Words::new(&member, 10 + number)).collect();
        let [buffers, kept] = [0, 0].map(|value| (0..3).map(|_| Words::new(&member, value)).collect::<Vec<Words>>());
        for _ in 0..3 {
            (0..3).for_each(|at| api.copy(buffers[at].0, sources[at].0, BYTES, streams[at]));
            api.nccl.group_start().expect("group");
            // Each buffer is summed on the stream of another one.
            (0..3).for_each(|at| buffers[at].sum_into(buffers[at], &member, streams[(at + 1) % 3]));
            api.nccl.group_end().expect("group");
            (0..3).for_each(|at| api.copy(kept[at].0, buffers[at].0, BYTES, streams[(at + 2) % 3]));
            // Before the next round overwrites them.
            (0..3).for_each(|at| api.follow(streams[at], streams[(at + 2) % 3]));
        }
        streams.iter().for_each(|stream| api.cuda.wait(*stream).expect("wait"));
        (0..3).for_each(|at| kept[at].assert(&member, (10 + at as u32) * n, "group"));
        return member.end();
    }
    delayed("streams::a_group_joins_its_streams", 2);
}

/// A busy device changes nothing in the results.
#[test]
fn results_are_right_when_everything_takes_its_time() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        member.run(&Case::of_all(&mut seeded_rng("slow"), 1)[..25]);
        return member.end();
    }
    delayed("streams::results_are_right_when_everything_takes_its_time", 3);
}

/// On devices that have memory synchronisation domains, as the software device says it has, kernels are launched with
/// an attribute that asks for one: it is that call of the driver that fails here.
#[test]
fn kernels_ask_for_a_domain_of_their_own() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let member = Member::of_process(&api, &me);
        let buffer = api.cuda.alloc(8000).expect("memory");
        let what = (DataType::Float64, RedOp::Sum);
        // SAFETY: the buffer lives to the end of the process.
        let call = || unsafe { api.nccl.all_reduce((buffer, buffer), 1000, what, member.comm, member.stream.0) };
        let refused = call().expect_err("a launch that is refused");
        assert!(format!("{refused:?}").contains("cuLaunchKernelEx"), "{refused:?}");
        // A rank that ends while the other still links with it would be told of instead.
        return me.barrier("refused");
    }
    let job = Job::this_test("streams::kernels_ask_for_a_domain_of_their_own", 2).allow_any_warning();
    job.env("SOFTCUDA_FAULT", "cuLaunchKernelEx:1").run().assert_ok();
}
