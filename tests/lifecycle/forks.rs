//! Forks of a process with communicators: the child is inert, whatever it does and however it ends, and the parent goes
//! on.

use std::ffi::CString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

use crate::api::{Api, Holdings, Member, abort};
use crate::common::abi::{INVALID_USAGE, REMOTE_ERROR, SUCCESS};
use crate::common::launch::{self, Job, Place};
use crate::common::nccl::Comm;
use crate::common::need;
use crate::common::resources::Resources;

/// How a child ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With exit handlers.
    Exit,
    /// Without.
    QuickExit,
    Segv,
    Abort,
    Exec,
    /// It stays until it is told.
    LivesOn,
}

const ENDS: [End; 6] = [End::Exit, End::QuickExit, End::Segv, End::Abort, End::Exec, End::LivesOn];

/// A child; its work gives its exit code.
fn fork(work: impl FnOnce() -> i32) -> Pid {
    // SAFETY: the child calls the library, which is what is tested, and then ends without a return.
    match unsafe { libc::fork() } {
        0 => {
            let code = work();
            // SAFETY: exit handlers are not wanted.
            unsafe { libc::_exit(code) }
        }
        pid => Pid::from_raw(pid).expect("a process id"),
    }
}

fn wait_for(child: Pid) -> WaitStatus {
    waitpid(Some(child), WaitOptions::empty()).expect("wait").expect("the child has ended").1
}

/// Everything that a child may try: the number of the first thing that went wrong, 0 where nothing did.
fn try_everything(members: &[Member], sockets: usize) -> i32 {
    let api = Api::load();
    let held = Resources::now().fds.get("socket").copied().unwrap_or(0);
    if held > sockets {
        return 50 + (held - sockets) as i32;
    }
    for (number, member) in members.iter().enumerate() {
        let comm = member.comm;
        let checks = [
            api.questions(comm).iter().all(|(_, code)| *code == INVALID_USAGE),
            member.call().is_err_and(|failure| failure.code == INVALID_USAGE && failure.text.contains("forked")),
            api.nccl.group_start().is_ok() && member.call().is_err() && api.nccl.group_end().is_err(),
            api.nccl.async_error(comm).is_ok(),
            api.nccl.finalize(comm).is_ok(),
            if number % 2 == 0 { api.nccl.destroy(comm).is_ok() } else { api.nccl.abort(comm).is_ok() },
        ];
        if let Some(wrong) = checks.iter().position(|fine| !fine) {
            return 10 * (number as i32 + 1) + wrong as i32;
        }
    }
    // CUDA does not work in a child, and so nothing new does.
    let id = api.nccl.unique_id();
    let made = id.and_then(|id| api.try_init((1, 0), id));
    i32::from(made.is_ok())
}

fn end(how: End, dir: &Path, code: i32) -> i32 {
    match how {
        End::QuickExit => {}
        // SAFETY: that is what is tested.
        End::Exit => unsafe { libc::exit(code) },
        End::Segv if code == 0 => {
            // SAFETY: the process dies of it.
            unsafe {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                libc::raise(libc::SIGSEGV);
            }
        }
        End::Abort if code == 0 => {
            // SAFETY: the process dies of it.
            unsafe { libc::abort() };
        }
        End::Exec if code == 0 => {
            let program = CString::new("/bin/true").expect("no NUL");
            // SAFETY: a C string, and a list that ends with NULL.
            unsafe { libc::execv(program.as_ptr(), [program.as_ptr(), std::ptr::null()].as_ptr()) };
            return 99;
        }
        End::LivesOn => {
            let until = Instant::now() + launch::DEADLINE;
            while !dir.join("over").exists() && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
        }
        _ => {}
    }
    code
}

fn assert_ended(how: End, status: WaitStatus) {
    let wanted = match how {
        End::Segv => (None, Some(libc::SIGSEGV)),
        End::Abort => (None, Some(libc::SIGABRT)),
        _ => (Some(0), None),
    };
    assert_eq!((status.exit_status(), status.terminating_signal()), wanted, "{how:?}: {status:?}");
}

/// Children of both ranks, while a call is under way, and between calls; with communicators that block, and that do
/// not.
#[test]
fn children_of_all_kinds() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        let place = (me.nranks, me.rank);
        let sockets = Resources::now().fds.get("socket").copied().unwrap_or(0);
        let before = Holdings::now();
        let polled = Member::new(api.begin(place, api.meet(&me, "polled")), place);
        assert_eq!(api.nccl.settle(polled.comm), SUCCESS);
        let members = [Member::new(api.init(place, api.meet(&me, "blocking")), place), polled];
        members.iter().for_each(Member::sum);
        let mut children = Vec::new();
        for (number, how) in ENDS.into_iter().enumerate() {
            members.iter().for_each(Member::fill);
            // Rank 0 calls before the fork, the other one after it: the kernel waits meanwhile.
            if me.rank == 0 {
                members[0].call().expect("a call");
            }
            let child = fork(|| end(how, &me.dir, try_everything(&members, sockets)));
            match how {
                End::LivesOn => children.push(child),
                _ => assert_ended(how, wait_for(child)),
            }
            me.barrier(&format!("forked {number}"));
            if me.rank == 1 {
                members[0].call().expect("a call");
            }
            members[0].check();
            members[1].sum();
        }
        members.into_iter().for_each(Member::end);
        before.assert_same();
        me.publish("over", b"");
        return children.into_iter().for_each(|child| assert_ended(End::LivesOn, wait_for(child)));
    }
    Job::this_test("forks::children_of_all_kinds", 2).allow_any_warning().run().assert_ok();
}

/// A rank dies while it joins; its child, which has all its descriptors, lives on. The others hear of the death.
#[test]
fn a_child_hides_no_death() {
    const NAME: &str = "forks::a_child_hides_no_death";
    if let Some(me) = launch::child() {
        return join_and_die(&me);
    }
    let outcome = Job::this_test(NAME, 2).allow_any_warning().run();
    assert!(outcome.ranks[0].status.success(), "{outcome}");
    assert_eq!(outcome.ranks[1].signal(), Some(libc::SIGKILL), "{outcome}");
}

fn join_and_die(me: &Place) {
    let api = Api::load();
    api.cuda.use_device(me.rank).expect("a device");
    // Nobody ever comes as rank 2.
    let comm = api.begin((3, me.rank), api.meet(me, "id"));
    // Time to check in: how far it has come is not to be seen from outside.
    thread::sleep(Duration::from_millis(500));
    if me.rank == 1 {
        let dir = me.dir.clone();
        fork(|| {
            // Nobody reaps it when it has ended: the harness would take it for one that was left behind.
            // SAFETY: no pointers.
            unsafe { libc::setpgid(0, 0) };
            end(End::LivesOn, &dir, 0)
        });
        me.await_published("ready");
        // SAFETY: the process dies of it.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    me.publish("ready", b"");
    let start = Instant::now();
    assert_eq!(api.nccl.settle(comm), REMOTE_ERROR, "{}", api.nccl.last_error());
    assert!(start.elapsed() < Duration::from_secs(10), "heard of a death after {:?}", start.elapsed());
    assert!(api.nccl.last_error().contains("rank 1"), "{}", api.nccl.last_error());
    abort(api, comm);
    me.publish("over", b"");
    // The child of the dead rank ends now; nobody is left to wait for it.
    thread::sleep(Duration::from_millis(300));
}

/// Forks in the middle of everything that threads do: the children end, and what the threads do succeeds.
#[test]
fn in_the_middle_of_everything() {
    if launch::child().is_some() {
        let api = Api::load();
        let (n, rounds) = (4, if need::long() { 200 } else { 12 });
        thread::scope(|scope| {
            for device in 0..n {
                scope.spawn(move || {
                    api.cuda.use_device(device).expect("a device");
                    for round in 0..rounds {
                        let comm = match round % 2 {
                            0 => api.init((1, 0), api.nccl.unique_id().expect("an id")),
                            _ => api.begin((1, 0), api.nccl.unique_id().expect("an id")),
                        };
                        assert_eq!(api.nccl.settle(comm), SUCCESS);
                        let member = Member::new(comm, (1, 0));
                        member.sum();
                        member.end();
                    }
                });
            }
            scope.spawn(move || {
                for round in 0..3 * rounds {
                    let how = if round % 2 == 0 { End::Exit } else { End::QuickExit };
                    assert_ended(how, wait_for(fork(|| end(how, Path::new("/"), 0))));
                    thread::sleep(Duration::from_millis(1));
                }
            });
        });
        return;
    }
    Job::this_test("forks::in_the_middle_of_everything", 1).run().assert_ok();
}

/// Forks while threads write to the log, and the log is opened anew: a child's own line may be lost, the child ends.
#[test]
fn while_others_write() {
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        let member = Member::new(api.init((1, 0), api.nccl.unique_id().expect("an id")), (1, 0));
        let (over, garbage) = (AtomicBool::new(false), Comm(std::ptr::without_provenance_mut(0x123)));
        let write = |reset: bool| {
            while !over.load(Ordering::Relaxed) {
                assert!(api.nccl.count(garbage).is_err());
                if reset {
                    api.reset_log();
                }
            }
        };
        thread::scope(|scope| {
            let write = &write;
            [false, false, true].into_iter().for_each(|reset| drop(scope.spawn(move || write(reset))));
            for _ in 0..if need::long() { 600 } else { 60 } {
                let child = fork(|| i32::from(member.call().is_ok() || api.nccl.count(garbage).is_ok()));
                assert_ended(End::QuickExit, wait_for(child));
            }
            over.store(true, Ordering::Relaxed);
        });
        return member.end();
    }
    let job = Job::this_test("forks::while_others_write", 1).env("NCCL_DEBUG_FILE", "/dev/null");
    job.allow_any_warning().run().assert_ok();
}
