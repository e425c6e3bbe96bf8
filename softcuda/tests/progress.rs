//! Sixteen streams on two processors: all get on, whatever they wait for and whoever synchronises, and none is left
//! behind. How far apart they end is printed:
//!
//!     cargo test -p softcuda --test progress -- --nocapture

mod common;

use common::api::{Api, ok};
use common::{DEADLINE, command, role, until, wait};
use std::ffi::c_void;
use std::process::Stdio;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const STREAMS: usize = 16;

/// What a stream's host functions count.
struct Chain {
    began: Instant,
    /// Host functions that ran.
    calls: AtomicU64,
    /// Microseconds from the beginning to the last of them.
    finished: AtomicU64,
}

impl Chain {
    fn all() -> &'static [Chain] {
        let began = Instant::now();
        let chains = (0..STREAMS).map(|_| Chain { began, calls: AtomicU64::new(0), finished: AtomicU64::new(0) });
        // Host functions may run as long as the process does.
        chains.collect::<Vec<_>>().leak()
    }

    fn data(&'static self) -> *mut c_void {
        ptr::from_ref(self).cast_mut().cast()
    }
}

/// The host function: one more, at this time.
extern "C" fn count(chain: *mut c_void) {
    // SAFETY: the address of a chain that lives for good.
    let chain = unsafe { &*chain.cast::<Chain>() };
    chain.finished.store(chain.began.elapsed().as_micros() as u64, Ordering::SeqCst);
    chain.calls.fetch_add(1, Ordering::SeqCst);
}

/// Leaves this process two of the processors that it may use.
fn two_processors() {
    // SAFETY: a set of processors is plain bits, of the size that is told; both calls only read or fill it.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut allowed), 0);
        let mut two: libc::cpu_set_t = std::mem::zeroed();
        let found = (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &allowed));
        found.take(2).for_each(|cpu| libc::CPU_SET(cpu, &mut two));
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &two), 0);
    }
}

/// The body in a child on two processors, with a hardware queue for each stream; what it prints is shown.
fn in_child(name: &str, body: impl FnOnce(&Api)) {
    if role().is_some() {
        two_processors();
        return body(&Api::ready());
    }
    let mut child =
        command(name, "run", &[("SOFTCUDA_CONNECTIONS", "0")]).stdout(Stdio::inherit()).spawn().expect("a child");
    assert!(wait(&mut child, DEADLINE).success(), "{name}");
}

fn streams(api: &Api) -> Vec<u64> {
    (0..STREAMS).map(|_| api.stream(NON_BLOCKING)).collect()
}

/// Waits for the last stream, then until the others are done, for which nobody lends a hand.
fn finish(streams: &[u64], api: &Api, chains: &[Chain], calls: u64) {
    ok((api.stream_synchronize)(streams[STREAMS - 1]));
    until("the other streams", || chains.iter().all(|chain| chain.calls.load(Ordering::SeqCst) == calls));
}

fn print(what: &str, chains: &[Chain]) {
    let finished = || chains.iter().map(|chain| chain.finished.load(Ordering::SeqCst));
    let (first, last) = (finished().min().expect("streams"), finished().max().expect("streams"));
    let ratio = last as f64 / first.max(1) as f64;
    println!(
        "{what}: the first of {STREAMS} streams ends after {first} us, the last after {last} us: ratio {ratio:.2}"
    );
}

/// In each round a stream waits for a kernel of the stream before it, by polling memory, and for an event of another
/// stream's last round. Nothing gets on unless all do.
#[test]
fn streams_that_wait_for_one_another() {
    const ROUNDS: usize = 40;
    in_child("streams_that_wait_for_one_another", |api| {
        let module = api.module();
        let [wait, set, add, compute] = ["wait_for", "set", "add", "compute"].map(|name| api.function(module, name));
        let (streams, chains) = (streams(api), Chain::all());
        let events: Vec<u64> = streams.iter().map(|_| api.event(DISABLE_TIMING)).collect();
        // A word for each stream and round, and a sum for each stream.
        let (words, sums) = (api.memory(4 * STREAMS * (ROUNDS + 1)), api.memory(8 * STREAMS));
        let word = |stream: usize, round: usize| words + 4 * (round * STREAMS + stream) as u64;
        for round in 0..ROUNDS {
            for (s, &stream) in streams.iter().enumerate() {
                ok((api.stream_wait_event)(stream, events[(s + 5) % STREAMS], 0));
                if (s, round) != (0, 0) {
                    api.run(wait, stream, &[word(s, round), 1]);
                }
                api.run(compute, stream, &[1000]);
                api.run(add, stream, &[sums + 8 * s as u64, 1]);
                let next = if s + 1 < STREAMS { word(s + 1, round) } else { word(0, round + 1) };
                api.run(set, stream, &[next, 1]);
                ok((api.launch_host)(stream, count, chains[s].data()));
            }
            for (stream, event) in streams.iter().zip(&events) {
                ok((api.event_record)(*event, *stream));
            }
        }
        finish(&streams, api, chains, ROUNDS as u64);
        for s in 0..STREAMS {
            assert_eq!(api.read_u64(sums + 8 * s as u64), ROUNDS as u64);
        }
        print("dependent", chains);
    });
}

/// Streams that have nothing to do with one another, all with the same work.
#[test]
fn streams_on_their_own() {
    const KERNELS: usize = 200;
    in_child("streams_on_their_own", |api| {
        let compute = api.function(api.module(), "compute");
        let (streams, chains) = (streams(api), Chain::all());
        for _ in 0..KERNELS {
            for (stream, chain) in streams.iter().zip(chains) {
                api.run(compute, *stream, &[4000]);
                ok((api.launch_host)(*stream, count, chain.data()));
            }
        }
        finish(&streams, api, chains, KERNELS as u64);
        print("independent", chains);
    });
}
