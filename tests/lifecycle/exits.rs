//! Every way for a process with communicators to end: no crash, nobody waits, the exit code is the program's.

use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::common::c_program::Program;
use crate::common::launch::Job;
use crate::common::profile_dir;

/// How long a process may take, on a machine that is busy.
const DEADLINE: Duration = Duration::from_secs(60);
/// The exit code of `exits.cc`.
const CODE: i32 = 42;

/// Compiles `exits.cc` as a user would, linked with the library or to load it.
fn compile(loads: bool) -> Option<Program> {
    Program::build_by("c++", "tests/lifecycle/exits.cc", |compilation| {
        let compilation = match loads {
            true => compilation.args(["-DLOADED"]),
            false => compilation.nccl(&profile_dir()),
        };
        compilation.runtime().args(["-std=c++17", "-ldl"])
    })
}

/// Runs the program, ending in each of these ways; `ended` is what each communicator's end must have said.
fn run(program: &Path, ways: &[(&str, Option<&str>)]) {
    for pair in ways.chunks(2) {
        thread::scope(|scope| {
            for (way, ended) in pair {
                scope.spawn(move || {
                    let job = Job::program(program, 1).args([way]).allow_any_warning().deadline(DEADLINE);
                    let outcome = job.run();
                    assert_eq!(outcome.ranks[0].status.code(), Some(CODE), "{way}\n{outcome}");
                    if let Some(ended) = ended {
                        let lines = outcome.ranks[0].stdout.lines().filter(|line| line == ended).count();
                        assert_eq!(lines, 2, "{way}: {ended}\n{outcome}");
                    }
                });
            }
        });
    }
}

/// What the software device does in exit handlers and destructors of static objects is what it does at any time.
const FINE: Option<&str> = Some("ended: 0");

#[test]
fn of_a_program_that_is_linked() {
    let Some(program) = compile(false) else { return };
    let ways = [
        ("return", None),
        ("thread", None),
        ("quick", None),
        ("at_quick", FINE),
        ("atexit", FINE),
        ("atexit_abort", FINE),
        ("static", FINE),
        ("static_abort", FINE),
        ("hang", None),
        ("hang_waited", None),
        ("destroying", None),
        ("creation", None),
    ];
    run(program.path(), &ways);
}

#[test]
fn of_a_program_that_loads_the_library() {
    let Some(program) = compile(true) else { return };
    let ways = [
        ("return", None),
        ("close", None),
        ("close_live", None),
        ("close_and_use", None),
        ("close_hang", None),
        ("close_thread", None),
        ("close_creation", None),
        ("atexit", FINE),
        ("static", FINE),
        ("static_abort", FINE),
        ("hang", None),
    ];
    run(program.path(), &ways);
}
