use super::boundary::{guard, source};
use super::library::error_string;
use super::types::{ResultCode, Team};
use crate::error::Error;
use crate::log::last_error_text;

#[test]
fn a_panic_becomes_an_internal_error() {
    let code: ResultCode = guard("ncclTest", |_| -> Result<(), Error> { panic!("a bug of {}", "ours") });
    assert_eq!(code, ResultCode(3));
    assert_eq!(last_error_text(), "internal error: ncclTest panicked: a bug of ours");
    let team: Team = guard("ncclTest", |_| -> Team { panic!() });
    assert_eq!(team, Team::NONE);
    let number: i32 = guard("ncclTest", |_| -> i32 { panic!() });
    assert_eq!(number, -1);
}

/// Programs match these strings.
#[test]
fn codes_have_nccls_words() {
    let words = |code| error_string(code).to_str().unwrap();
    assert_eq!(words(0), "no error");
    assert_eq!(words(3), "internal error - please report this issue to the NCCL developers");
    assert_eq!(words(6), "remote process exited or there was a network error");
    assert_eq!(words(7), "NCCL operation in progress");
    for code in [-1, 9, 10, i32::MAX, i32::MIN] {
        assert_eq!(words(code), "unknown result code");
    }
}

#[test]
fn files_are_named_from_the_source_root() {
    assert_eq!(source("src/abi/group.rs"), "abi/group.rs");
    assert_eq!(source("elsewhere/x.rs"), "elsewhere/x.rs");
}
