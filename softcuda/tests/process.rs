//! What processes have in common and what they leave behind: identity, IPC, fork, exit, leaks.

mod common;

use common::api::{Api, IpcHandle, ok};
use common::{command, count, count_maps, role, run_child, until, wait};
use std::ffi::{c_char, c_int};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const INVALID_CONTEXT: c_int = 201;
const MAP_FAILED: c_int = 205;
const INVALID_HANDLE: c_int = 400;
const LAZY: u32 = 1;
const INTERPROCESS: u32 = 6;

/// A child that is spoken to over its standard streams: lines of hexadecimal bytes.
struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    fn start(name: &str, role: &str) -> Peer {
        let mut child = command(name, role, &[]).spawn().expect("a child");
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        Peer { child, to, from }
    }

    fn say(&mut self, bytes: &[u8]) {
        writeln!(self.to, "{}", hex(bytes)).expect("the child listens");
    }

    /// The next line that is ours; the test harness prints some of its own.
    fn hear(&mut self) -> Vec<u8> {
        hear(&mut self.from)
    }

    fn end(mut self) {
        drop(self.to);
        let mut rest = String::new();
        let _ = self.from.read_to_string(&mut rest);
        let status = wait(&mut self.child, common::DEADLINE);
        assert!(status.success(), "{rest}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn hear(from: &mut impl BufRead) -> Vec<u8> {
    loop {
        let mut line = String::new();
        assert!(from.read_line(&mut line).expect("a line") > 0, "the other side is gone");
        let Some(digits) = line.trim().strip_prefix("> ") else { continue };
        let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ascii"));
        return pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hex")).collect();
    }
}

/// From the child.
fn answer(bytes: &[u8]) {
    println!("\n> {}", hex(bytes));
    std::io::stdout().flush().expect("the parent listens");
}

fn listen() -> Vec<u8> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    let line = format!("> {line}");
    hear(&mut line.as_bytes())
}

#[test]
fn devices_are_the_same_in_every_process() {
    fn identity(api: &Api) -> Vec<u8> {
        let (mut count, mut all) = (0, Vec::new());
        ok((api.device_count)(&mut count));
        for device in 0..count {
            let (mut uuid, mut pci) = ([0u8; 16], [0 as c_char; 32]);
            ok((api.device_uuid)(uuid.as_mut_ptr(), device));
            ok((api.device_pci)(pci.as_mut_ptr(), 32, device));
            all.extend(uuid);
            all.extend(pci.map(|c| c as u8));
        }
        all
    }
    let api = Api::open();
    ok((api.init)(0));
    if role().is_some() {
        return answer(&identity(&api));
    }
    let mut peer = Peer::start("devices_are_the_same_in_every_process", "tell");
    assert_eq!(peer.hear(), identity(&api));
    peer.end();
}

fn handle(bytes: &[u8]) -> IpcHandle {
    IpcHandle(bytes.try_into().expect("64 bytes"))
}

/// The parent exports, the child maps, each sees what the other stores; the child's mapping outlives the parent's free.
#[test]
fn memory_of_another_process() {
    const NAME: &str = "memory_of_another_process";
    let api = Api::ready();
    if role().is_some() {
        return open_memory(&api);
    }
    for bytes in [64usize, 5 << 20] {
        let memory = api.memory(bytes);
        let mut exported = IpcHandle([0; 64]);
        ok((api.ipc_get)(&mut exported, memory + 16));
        let mut own = 0;
        assert_eq!((api.ipc_open)(&mut own, exported, LAZY), INVALID_CONTEXT);
        ok((api.copy_to)(memory, b"parent".as_ptr().cast(), 6));
        let mut peer = Peer::start(NAME, "child");
        peer.say(&exported.0);
        assert_eq!(peer.hear(), b"parent");
        let mut seen = [0u8; 5];
        ok((api.copy_from)(seen.as_mut_ptr().cast(), memory, 5));
        assert_eq!(&seen, b"child");
        ok((api.free)(memory));
        peer.say(b"freed");
        assert_eq!(peer.hear(), b"child");
        // What was freed can no longer be opened, even if the descriptor's number is used again.
        let other = api.memory(bytes);
        peer.say(b"again");
        assert_eq!(peer.hear(), [MAP_FAILED as u8]);
        peer.end();
        ok((api.free)(other));
    }
}

fn open_memory(api: &Api) {
    let exported = handle(&listen());
    let (mut first, mut second, mut seen) = (0, 0, [0u8; 6]);
    ok((api.ipc_open)(&mut first, exported, LAZY));
    ok((api.ipc_open)(&mut second, exported, LAZY));
    assert_eq!(first, second);
    ok((api.ipc_close)(second));
    assert_eq!((api.free)(first), INVALID_VALUE);
    ok((api.copy_from)(seen.as_mut_ptr().cast(), first, 6));
    ok((api.copy_to)(first, b"child".as_ptr().cast(), 5));
    answer(&seen);
    listen();
    ok((api.copy_from)(seen.as_mut_ptr().cast(), first, 5));
    answer(&seen[..5]);
    ok((api.ipc_close)(first));
    assert_eq!((api.ipc_close)(first), INVALID_VALUE);
    assert_eq!(count_maps(), 0);
    listen();
    answer(&[(api.ipc_open)(&mut first, exported, LAZY) as u8]);
    assert_eq!((api.ipc_open)(&mut first, IpcHandle([3; 64]), LAZY), INVALID_HANDLE);
}

/// A reset takes what was opened of other processes along, and leaves theirs alone.
#[test]
fn a_reset_closes_what_was_opened() {
    const NAME: &str = "a_reset_closes_what_was_opened";
    let api = Api::ready();
    if role().is_some() {
        let (exported, mut opened, mut again) = (handle(&listen()), 0, 0);
        ok((api.ipc_open)(&mut opened, exported, LAZY));
        ok((api.primary_reset)(0));
        assert_eq!(count_maps(), 0);
        api.use_device(0);
        assert_eq!((api.ipc_close)(opened), INVALID_VALUE);
        ok((api.ipc_open)(&mut again, exported, LAZY));
        ok((api.copy_to)(again, b"again".as_ptr().cast(), 5));
        ok((api.ipc_close)(again));
        return answer(b"done");
    }
    let (memory, mut exported, mut seen) = (api.memory(64), IpcHandle([0; 64]), [0u8; 5]);
    ok((api.ipc_get)(&mut exported, memory));
    let mut peer = Peer::start(NAME, "child");
    peer.say(&exported.0);
    assert_eq!(peer.hear(), b"done");
    ok((api.copy_from)(seen.as_mut_ptr().cast(), memory, 5));
    assert_eq!(&seen, b"again");
    peer.end();
}

/// The child's stream waits for the parent's record, which comes late.
#[test]
fn an_event_of_another_process() {
    let api = Api::ready();
    if role().is_some() {
        let (mut event, mut memory) = (0, 0);
        ok((api.ipc_open_event)(&mut event, handle(&listen())));
        ok((api.ipc_open)(&mut memory, handle(&listen()), LAZY));
        let stream = api.stream(1);
        ok((api.stream_wait_event)(stream, event, 0));
        assert_eq!((api.event_query)(event), 600);
        answer(b"waiting");
        let mut seen = 0u32;
        ok((api.copy_from_async)(ptr::from_mut(&mut seen).cast(), memory, 4, stream));
        ok((api.event_query)(event));
        answer(&seen.to_le_bytes());
        return;
    }
    let module = api.module();
    let (wait_for, stream, memory, flag) =
        (api.function(module, "wait_for"), api.stream(1), api.memory(4), api.memory(4));
    let event = api.event(INTERPROCESS);
    let (mut of_event, mut of_memory) = (IpcHandle([0; 64]), IpcHandle([0; 64]));
    ok((api.ipc_get_event)(&mut of_event, event));
    ok((api.ipc_get)(&mut of_memory, memory));
    api.run(wait_for, stream, &[flag, 1]);
    ok((api.set_d32_async)(memory, 4711, 1, stream));
    ok((api.event_record)(event, stream));
    let mut peer = Peer::start("an_event_of_another_process", "child");
    peer.say(&of_event.0);
    peer.say(&of_memory.0);
    assert_eq!(peer.hear(), b"waiting");
    ok((api.set_d32_async)(flag, 1, 1, api.stream(1)));
    assert_eq!(peer.hear(), 4711u32.to_le_bytes());
    ok((api.event_synchronize)(event));
    peer.end();
}

/// A forked child may not use CUDA, and ends at once all the same.
#[test]
fn a_forked_child_is_inert() {
    if role().is_none() {
        return run_child("a_forked_child_is_inert", "run", &[]);
    }
    let api = Api::ready();
    let nothing = api.function(api.module(), "nothing");
    api.run(nothing, 2, &[]);
    api.run(nothing, 0, &[]);
    ok((api.context_synchronize)());
    // SAFETY: the child calls what the test is about, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut device = 0;
        let refused = [(api.init)(0), (api.context_device)(&mut device), (api.context_synchronize)()];
        let code = if refused == [3; 3] { 7 } else { 1 };
        // SAFETY: runs the exit handlers of the process, which is the point.
        unsafe { libc::exit(code) };
    }
    until("the forked child", || {
        let mut status = 0;
        // SAFETY: our own child, and room for its status.
        let ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        assert!(ended == 0 || libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
        ended == child
    });
}

/// The process ends although a kernel never does and more work is queued.
#[test]
fn exit_with_work_left() {
    if role().is_some() {
        let api = Api::ready();
        let module = api.module();
        let (wait_for, flag) = (api.function(module, "wait_for"), api.memory(4));
        let mut context = 0;
        ok((api.context_get)(&mut context));
        for stream in [api.stream(1), api.stream(1), 2] {
            api.run(wait_for, stream, &[flag, 1]);
            api.run(wait_for, stream, &[flag, 1]);
            assert_eq!((api.stream_query)(stream), 600);
        }
        let api: &'static Api = Box::leak(Box::new(api));
        std::thread::spawn(move || {
            ok((api.context_set)(context));
            (api.context_synchronize)()
        });
        std::thread::sleep(Duration::from_millis(20));
        std::process::exit(0);
    }
    run_child("exit_with_work_left", "run", &[]);
}

fn use_everything(api: &Api) {
    let module = api.module();
    let (count_running, nothing) = (api.function(module, "count_running"), api.function(module, "nothing"));
    let (streams, events) = ([api.stream(0), api.stream(1)], [api.event(0), api.event(INTERPROCESS)]);
    let memory = api.memory(3 << 20);
    let words = AtomicU32::new(0);
    let (mut host, mut pooled) = (ptr::null_mut(), 0);
    ok((api.host_alloc)(&mut host, 1000, 0));
    ok((api.host_register)(ptr::from_ref(&words).cast_mut().cast(), 4, 0));
    ok((api.alloc_async)(&mut pooled, 100, streams[1]));
    for stream in streams {
        ok(api.try_run(count_running, stream, (3, 2), &[memory]));
        api.run(nothing, stream, &[]);
        for event in events {
            ok((api.event_record)(event, stream));
            ok((api.stream_wait_event)(streams[0], event, 0));
        }
    }
    ok((api.free_async)(pooled, streams[1]));
    ok((api.context_synchronize)());
    ok((api.host_unregister)(ptr::from_ref(&words).cast_mut().cast()));
    ok((api.host_free)(host));
    ok((api.free)(memory));
    events.into_iter().for_each(|event| ok((api.event_destroy)(event)));
    streams.into_iter().for_each(|stream| ok((api.stream_destroy)(stream)));
    ok((api.module_unload)(module));
}

#[test]
fn nothing_is_left_behind() {
    if role().is_none() {
        return run_child("nothing_is_left_behind", "run", &[]);
    }
    let api = Api::ready();
    use_everything(&api);
    let (descriptors, maps) = (count("/proc/self/fd"), count_maps());
    assert_eq!(maps, 0);
    let mut free = [0usize; 2];
    let mut total = 0;
    ok((api.memory_info)(&mut free[0], &mut total));
    for _ in 0..50 {
        use_everything(&api);
    }
    ok((api.memory_info)(&mut free[1], &mut total));
    assert_eq!((count("/proc/self/fd"), count_maps(), free[1]), (descriptors, maps, free[0]));
    // Workers go with their streams, block threads after idling; the scheduler's thread and the test's two stay.
    until("threads end", || count("/proc/self/task") <= 3);
}

#[test]
fn the_memory_budget_holds() {
    if role().is_none() {
        return run_child("the_memory_budget_holds", "run", &[("SOFTCUDA_MEMORY", "64M"), ("SOFTCUDA_DEVICES", "2")]);
    }
    let api = Api::ready();
    let (mut first, mut second, mut free, mut total) = (0, 0, 0, 0);
    ok((api.alloc)(&mut first, 40 << 20));
    assert_eq!((api.alloc)(&mut second, 40 << 20), OUT_OF_MEMORY);
    assert_eq!((api.alloc)(&mut second, usize::MAX), OUT_OF_MEMORY);
    assert_eq!((api.alloc)(&mut second, 0), INVALID_VALUE);
    ok((api.memory_info)(&mut free, &mut total));
    assert_eq!((free, total), (24 << 20, 64 << 20));
    api.use_device(1);
    ok((api.alloc)(&mut second, 40 << 20));
    assert_eq!(first % (2 << 20), 0);
    ok((api.free)(first));
    assert_eq!((api.free)(first), INVALID_VALUE);
    assert_eq!((api.free)(second + 8), INVALID_VALUE);
    ok((api.free)(second));
}

#[test]
fn visible_devices_are_renumbered() {
    if role().is_none() {
        let variables = [("SOFTCUDA_DEVICES", "4"), ("CUDA_VISIBLE_DEVICES", "3,1")];
        return run_child("visible_devices_are_renumbered", "run", &variables);
    }
    let api = Api::ready();
    let (mut count, mut bus) = (0, [0; 2]);
    ok((api.device_count)(&mut count));
    assert_eq!(count, 2);
    ok((api.device_attribute)(&mut bus[0], 33, 0));
    ok((api.device_attribute)(&mut bus[1], 33, 1));
    assert_eq!(bus[0] - bus[1], 2);
    assert_eq!((api.device_attribute)(&mut bus[0], 33, 2), 101);
}
