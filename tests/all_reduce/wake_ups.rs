//! Kernels that do without wake-ups, as on a GPU (`SOFTCUDA_NO_WAKE=1`), and kernels that do not.

use std::path::Path;
use std::time::Duration;

use crate::bind::Api;
use crate::common::c_program::Program;
use crate::common::launch::{self, Job, Place};
use crate::data::{Case, Member, seeded_rng};

/// How late the late rank is: much longer than its peers yield before they sleep, on a machine with nothing else to do.
const LATE: Duration = Duration::from_millis(30);

/// A library that counts the kernels' futex calls.
fn counter() -> Option<Program> {
    Program::build_by("cc", "tests/all_reduce/futex_calls.c", |compilation| {
        compilation.shared().args(["-D_GNU_SOURCE", "-ldl"])
    })
}

/// The futex calls that this process's kernels have made so far.
fn futex_calls() -> u64 {
    // SAFETY: the preloaded library has this function, with this type.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"shared_futex_calls".as_ptr());
        assert!(!found.is_null(), "the library was not preloaded");
        std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> u64>(found)()
    }
}

/// Every rank is late for some calls. `wait_until_asleep`: rank 0 is late for another one, until rank 1 has begun to
/// sleep on a futex, however long the yields before take.
fn calls_with_late_ranks(me: &Place, wait_until_asleep: bool) {
    let member = Member::of_process(&Api::load(), me);
    let cases = Case::of_all(&mut seeded_rng("wake-ups"), 1);
    for (number, case) in cases.iter().step_by(7).enumerate() {
        if number % me.nranks == me.rank {
            std::thread::sleep(LATE);
        }
        member.run(&[*case]);
    }
    if wait_until_asleep {
        std::thread::scope(|scope| {
            if me.rank == 1 {
                scope.spawn(|| tell_when_asleep(me));
            } else if me.rank == 0 {
                me.await_published("asleep");
            }
            member.run(&[cases[0]]);
        });
    }
    member.end();
}

fn tell_when_asleep(me: &Place) {
    while futex_calls() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    me.publish("asleep", b"");
}

fn job(library: &Path) -> Job {
    Job::this_test("wake_ups::kernels_do_without_when_asked", 4).env("LD_PRELOAD", library)
}

#[test]
fn kernels_do_without_when_asked() {
    if let Some(me) = launch::child() {
        let no_wake = std::env::var("SOFTCUDA_NO_WAKE").is_ok_and(|value| value == "1");
        calls_with_late_ranks(&me, !no_wake);
        assert!(!no_wake || futex_calls() == 0, "{} futex calls", futex_calls());
        return;
    }
    let Some(library) = counter() else { return };
    job(library.path()).env("SOFTCUDA_NO_WAKE", "0").run().assert_ok();
    job(library.path()).env("SOFTCUDA_NO_WAKE", "1").run().assert_ok();
    job(library.path()).env("SOFTCUDA_NO_WAKE", "1").env("NCCL_P2P_DISABLE", "1").run().assert_ok();
}
