//! Calls with wrong arguments (calls.c), on this library and on NVIDIA's.

use crate::common;
use crate::tool::{self, Folder, Headers};

const FLAGS: &str = "-std=c11 -Wall -Wextra -pedantic -Werror";

#[test]
fn wrong_arguments_get_the_codes_of_the_interface() {
    let Some(()) = tool::compilers() else { return };
    let folder = Folder::new();
    let (program, libraries) = (folder.path("calls"), common::profile_dir());
    tool::compile("cc", FLAGS, &Headers::Ours, "tests/abi/calls.c", &program, &[&libraries.join("libnccl.so.2")]);
    let run = tool::output(tool::command(&program, &libraries, &[], &[]));
    assert_eq!(tool::stdout(&run), "done\n", "{}", tool::stderr(&run));
    assert_eq!(run.status.code(), Some(0));
}

#[test]
fn a_program_made_with_nvidias_header_runs_on_this_library() {
    let (Some(()), Some(home)) = (tool::compilers(), tool::nvidia()) else { return };
    let folder = Folder::new();
    let (program, libraries) = (folder.path("calls"), common::profile_dir());
    tool::compile(
        "cc",
        FLAGS,
        &Headers::Nvidia(home),
        "tests/abi/calls.c",
        &program,
        &[&libraries.join("libnccl.so.2")],
    );
    let run = tool::output(tool::command(&program, &libraries, &[], &[]));
    assert_eq!(tool::stdout(&run), "done\n", "{}", tool::stderr(&run));
}

/// Shows that the expectations are NCCL's. The library itself is large and only fetched when asked for.
#[test]
fn nvidias_library_gives_the_same_codes() {
    let (Some(()), Some(home)) = (tool::compilers(), tool::nvidia()) else { return };
    let library = home.join("lib/libnccl.so.2");
    if !library.exists() {
        return println!("not run: {} (install-nccl-header.sh DIR --library fetches it)", library.display());
    }
    let folder = Folder::new();
    let program = folder.path("calls");
    tool::compile("cc", FLAGS, &Headers::Nvidia(home.clone()), "tests/abi/calls.c", &program, &[&library]);
    let run = tool::output(tool::command(&program, &home.join("lib"), &[], &["common"]));
    assert_eq!(tool::stdout(&run), "done\n", "{}", tool::stderr(&run));
}

#[test]
fn a_live_communicator_checks_its_arguments_and_says_what_is_not_built() {
    let Some(()) = tool::compilers() else { return };
    let folder = Folder::new();
    let (program, libraries) = (folder.path("live"), common::profile_dir());
    tool::compile("cc", FLAGS, &Headers::Ours, "tests/abi/live.c", &program, &[&libraries.join("libnccl.so.2")]);
    let run = tool::output(tool::command_on_softcuda(&program, &libraries));
    assert_eq!(tool::stdout(&run), "done\n", "{}", tool::stderr(&run));
    assert_eq!(run.status.code(), Some(0));
}
