//! Shutdown of the driver at exit (`SOFTCUDA_UNLOAD=1`): who comes after it in the order of exit handlers is told so.

mod common;

use common::api::{Api, ok};
use common::{command, library_dir, role, wait};
use std::ffi::c_int;
use std::process::Stdio;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const DEINITIALIZED: c_int = 4;
/// What a child says with its exit code.
const RIGHT: c_int = 7;
const WRONG: c_int = 8;

struct State {
    api: Api,
    runtime: libloading::Library,
    context: u64,
    stream: u64,
    memory: u64,
    word: &'static AtomicU32,
}

static STATE: OnceLock<State> = OnceLock::new();
/// What the handler that comes first has seen.
static BEFORE: AtomicU32 = AtomicU32::new(0);

fn at_exit(function: extern "C" fn()) {
    // SAFETY: a function of this program.
    assert_eq!(unsafe { libc::atexit(function) }, 0);
}

fn runtime(state: &State, name: &str) -> extern "C" fn() -> c_int {
    // SAFETY: each is called without arguments by NVIDIA's documentation.
    unsafe { *state.runtime.get(name.as_bytes()).expect("exported") }
}

/// Whether the word can be read, by a child of our own.
fn is_readable(word: &'static AtomicU32) -> bool {
    // SAFETY: the child reads a word and ends; the parent waits for it.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::_exit(i32::from(word.load(Ordering::Relaxed) != 11));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

/// Calls of both interfaces, and whether page-locked memory is there.
fn look(state: &State) -> ([c_int; 8], bool) {
    let (api, mut pointer, mut context) = (&state.api, 0, 0);
    let answers = [
        (api.init)(0),
        (api.alloc)(&mut pointer, 64),
        (api.context_get)(&mut context),
        (api.context_set)(state.context),
        (api.stream_synchronize)(state.stream),
        (api.context_synchronize)(),
        runtime(state, "cudaDeviceSynchronize")(),
        (api.free)(state.memory),
    ];
    (answers, is_readable(state.word))
}

/// Registered after `cuInit`: the driver is still there, but for what this itself frees.
extern "C" fn first() {
    let state = STATE.get().expect("set");
    BEFORE.store(u32::from(look(state) == ([0; 8], true)), Ordering::SeqCst);
}

/// Registered before `cuInit`: it is gone.
extern "C" fn last() {
    let state = STATE.get().expect("set");
    let right = BEFORE.load(Ordering::SeqCst) == 1 && look(state) == ([DEINITIALIZED; 8], false);
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(if right { RIGHT } else { WRONG }) };
}

/// Without the setting everything works until the end.
extern "C" fn last_without() {
    let state = STATE.get().expect("set");
    let (mut answers, readable) = look(state);
    answers[7] = 0; // Freed by the first.
    let right = BEFORE.load(Ordering::SeqCst) == 1 && (answers, readable) == ([0; 8], true);
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(if right { RIGHT } else { WRONG }) };
}

fn prepare() -> &'static State {
    let api = Api::ready();
    let mut context = 0;
    ok((api.context_get)(&mut context));
    let (stream, memory, mut word) = (api.stream(0), api.memory(64), ptr::null_mut());
    ok((api.host_alloc)(&mut word, 4, 0));
    // SAFETY: pinned memory of this process, never freed, used by atomics alone.
    let word = unsafe { &*word.cast::<AtomicU32>() };
    word.store(11, Ordering::SeqCst);
    // SAFETY: softcuda's own library.
    let runtime = unsafe { libloading::Library::new(library_dir().join("libcudart.so.13")) }.expect("the runtime");
    STATE.get_or_init(|| State { api, runtime, context, stream, memory, word })
}

/// Runs a child and says how it ended.
fn ends_with(name: &str, setting: &str) -> Option<c_int> {
    let mut child = command(name, "run", &[("SOFTCUDA_UNLOAD", setting)]);
    let mut child = child.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a child");
    wait(&mut child, common::DEADLINE).code()
}

#[test]
fn who_comes_later_is_told() {
    if role().is_none() {
        return assert_eq!(ends_with("who_comes_later_is_told", "1"), Some(RIGHT));
    }
    at_exit(last);
    prepare();
    at_exit(first);
    std::process::exit(0);
}

#[test]
fn it_stays_unless_asked_for() {
    if role().is_none() {
        return assert_eq!(ends_with("it_stays_unless_asked_for", "0"), Some(RIGHT));
    }
    at_exit(last_without);
    prepare();
    at_exit(first);
    std::process::exit(0);
}

/// Work that is left, a kernel that never ends and a thread that waits for it are no reason to crash or to stay.
#[test]
fn with_work_left() {
    if role().is_none() {
        return assert_eq!(ends_with("with_work_left", "1"), Some(RIGHT));
    }
    let state = prepare();
    let module = state.api.module();
    let wait_for = state.api.function(module, "wait_for");
    for stream in [state.stream, state.api.stream(1), 2] {
        state.api.run(wait_for, stream, &[ptr::from_ref(state.word) as u64, 1]);
        state.api.run(state.api.function(module, "set"), stream, &[ptr::from_ref(state.word) as u64, 5]);
        let _ = (state.api.stream_query)(stream);
    }
    std::thread::spawn(move || {
        ok((state.api.context_set)(state.context));
        (state.api.context_synchronize)()
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::process::exit(RIGHT);
}
