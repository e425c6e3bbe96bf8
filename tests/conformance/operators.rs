//! Operators that users make: what is refused, what may change, what lives how long.

use std::collections::HashSet;

use crate::built;
use crate::case::Case;
use crate::common::abi::INVALID_ARGUMENT;
use crate::common::collectives::Call;
use crate::common::contract::Func;
use crate::common::launch;
use crate::common::nccl::Comm;
use crate::common::oracle::DataType;
use crate::member::{Api, Item, Member, Submission};
use crate::setup::{Setup, seeded_rng};

/// Operators alive at a time.
const MANY: usize = 1000;

fn there() -> bool {
    built::has("PreMulSum", built::PRE_MUL_SUM)
}

fn call(op: i32, dtype: DataType) -> Call {
    Call { func: Func::AllReduce, count: 8, dtype: dtype as i32, op, root: 0 }
}

/// The code of an AllReduce with an operator; `text` must be in the explanation.
fn refusal(member: &Member, buffer: u64, call: Call, text: &str) -> i32 {
    // SAFETY: the buffer is larger than the call needs.
    let result = unsafe { member.api.calls.call(call, (buffer, buffer), member.comm, member.streams[0].0) };
    let failure = result.expect_err("an operator that is not there");
    assert!(failure.text.contains(text), "{failure}");
    failure.code
}

#[test]
fn wrong_operators_are_refused() {
    if let Some(me) = launch::child() {
        let mut members: Vec<Member> =
            (0..2).map(|k| Member::of_process(Api::load(), &me, &format!("id{k}"))).collect();
        let (calls, comm, other) = (members[0].api.calls, members[0].comm, members[1].comm);
        let buffer = members[0].scratch(&[0; 64]);
        let op = calls.pre_mul_host(3, DataType::Int32, comm).expect("an operator");
        assert!(op >= 5, "{op} is one that is built in");
        let mismatch = "Data type supplied to user-created ncclRedOp_t does not match";
        assert_eq!(refusal(&members[0], buffer, call(op, DataType::Float32), mismatch), INVALID_ARGUMENT);
        assert_eq!(
            refusal(&members[1], buffer, call(op, DataType::Int32), "unknown to this communicator"),
            INVALID_ARGUMENT
        );
        for (op, comm) in [(op, other), (op, Comm::NULL), (0, comm), (4, comm), (-1, comm), (i32::MAX, comm)] {
            assert_eq!(calls.destroy_op(op, comm).expect_err("not its operator").code, INVALID_ARGUMENT, "{op}");
        }
        calls.destroy_op(op, comm).expect("its operator");
        assert_eq!(calls.destroy_op(op, comm).expect_err("destroyed before").code, INVALID_ARGUMENT);
        assert_eq!(
            refusal(&members[0], buffer, call(op, DataType::Int32), "unknown to this communicator"),
            INVALID_ARGUMENT
        );
        let mut own = seeded_rng("own");
        members[0].run(&[Item::Collective(Case::of(Func::AllReduce, 100))], Submission::Each, &mut own);
        return members.into_iter().for_each(Member::end);
    }
    if there() {
        Setup::plain(2).job("operators::wrong_operators_are_refused").allow_any_warning().run().assert_ok();
    }
}

/// Many alive at a time, each with a scalar of its own; handles are used again.
#[test]
fn many_operators() {
    if let Some(me) = launch::child() {
        let mut member = Member::of_process(Api::load(), &me, "id");
        let calls = member.api.calls;
        let make = |at: usize| calls.pre_mul_host(at as u64, DataType::Int64, member.comm).expect("an operator");
        let ops: Vec<i32> = (0..MANY).map(make).collect();
        assert_eq!(ops.iter().collect::<HashSet<_>>().len(), MANY);
        let (input, output) = (member.scratch(&2u64.to_le_bytes()), member.scratch(&[0; 8]));
        for at in [0, 1, 7, MANY / 2, MANY - 1] {
            let call = Call { count: 1, ..call(ops[at], DataType::Int64) };
            // SAFETY: the buffers live until the member's end.
            unsafe { calls.call(call, (input, output), member.comm, member.streams[0].0) }.expect("a call");
            member.wait();
            let mut found = [0; 8];
            member.api.cuda.copy_to_host(&mut found, output).expect("copy");
            assert_eq!(u64::from_le_bytes(found), (2 * at * me.nranks) as u64);
        }
        ops.iter().for_each(|op| calls.destroy_op(*op, member.comm).expect("destroy"));
        let again = calls.pre_mul_host(1, DataType::Int64, member.comm).expect("an operator");
        // One more is left to the communicator's end.
        assert!(again >= 5);
        return member.end();
    }
    if there() {
        [1, 2].iter().for_each(|n| Setup::plain(*n).run("operators::many_operators"));
    }
}

/// A scalar in device memory counts with the value that it has when the call runs.
#[test]
fn a_device_scalar_may_change() {
    if let Some(me) = launch::child() {
        let mut member = Member::of_process(Api::load(), &me, "id");
        let (calls, cuda) = (member.api.calls, member.api.cuda);
        let (input, output) = (member.scratch(&5u32.to_le_bytes()), member.scratch(&[0; 4]));
        let scalar = member.scratch(&[0; 4]);
        // SAFETY: the scalar lives until the member's end.
        let op = unsafe { calls.pre_mul_device(scalar, DataType::Uint32, member.comm) }.expect("an operator");
        for round in 1..10u32 {
            cuda.copy_to_device(scalar, &round.to_le_bytes()).expect("copy");
            let call = Call { count: 1, ..call(op, DataType::Uint32) };
            // SAFETY: the buffers live until the member's end.
            unsafe { calls.call(call, (input, output), member.comm, member.streams[0].0) }.expect("a call");
            member.wait();
            let mut found = [0; 4];
            cuda.copy_to_host(&mut found, output).expect("copy");
            assert_eq!(u32::from_le_bytes(found), 5 * round * me.nranks as u32);
        }
        calls.destroy_op(op, member.comm).expect("destroy");
        return member.end();
    }
    if there() {
        [1, 3].iter().for_each(|n| Setup::plain(*n).run("operators::a_device_scalar_may_change"));
    }
}
