//! Memory that is not of `cuMemAlloc`: that of `ncclMemAlloc`, ranges that a program has put together itself, as
//! allocators do that let memory grow, and memory that no other process can map.

use std::ffi::{c_int, c_void};

use crate::common::cuda::Stream;
use crate::common::graph::{CaptureMode, Graphs};
use crate::common::launch;
use crate::common::nccl::{open, symbol};
use crate::common::resources::Resources;
use crate::member::Member;
use crate::registered::{Bytes, settle};
use crate::setup::{self, Setup, Transport};

/// Bytes of each piece: no less can be had.
const PIECE: usize = 2 << 20;
/// More than are sent at a time.
const PIECES: usize = 20;

/// `CUmemAllocationProp`
#[repr(C)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: [c_int; 2],
    win32: usize,
    flags: u64,
}

/// The driver's calls for memory without `cuMemAlloc`.
struct Calls {
    create: unsafe extern "C" fn(*mut u64, usize, *const Properties, u64) -> c_int,
    release: unsafe extern "C" fn(u64) -> c_int,
    reserve: unsafe extern "C" fn(*mut u64, usize, usize, u64, u64) -> c_int,
    unreserve: unsafe extern "C" fn(u64, usize) -> c_int,
    map: unsafe extern "C" fn(u64, usize, usize, u64, u64) -> c_int,
    unmap: unsafe extern "C" fn(u64, usize) -> c_int,
    set_access: unsafe extern "C" fn(u64, usize, *const c_int, usize) -> c_int,
    get_access: unsafe extern "C" fn(*mut u64, *const c_int, u64) -> c_int,
    retain: unsafe extern "C" fn(*mut u64, *mut c_void) -> c_int,
    properties: unsafe extern "C" fn(*mut Properties, u64) -> c_int,
    range: unsafe extern "C" fn(*mut u64, *mut usize, u64) -> c_int,
    alloc_async: unsafe extern "C" fn(*mut u64, usize, Stream) -> c_int,
    free_async: unsafe extern "C" fn(u64, Stream) -> c_int,
}

fn ok(code: c_int) {
    assert_eq!(code, 0);
}

impl Calls {
    fn load() -> Calls {
        let l = open("libcuda.so.1").expect("the driver");
        // SAFETY: the types of the fields are the prototypes of cuda.h.
        unsafe {
            Calls {
                create: symbol(l, "cuMemCreate").expect("exported"),
                release: symbol(l, "cuMemRelease").expect("exported"),
                reserve: symbol(l, "cuMemAddressReserve").expect("exported"),
                unreserve: symbol(l, "cuMemAddressFree").expect("exported"),
                map: symbol(l, "cuMemMap").expect("exported"),
                unmap: symbol(l, "cuMemUnmap").expect("exported"),
                set_access: symbol(l, "cuMemSetAccess").expect("exported"),
                get_access: symbol(l, "cuMemGetAccess").expect("exported"),
                retain: symbol(l, "cuMemRetainAllocationHandle").expect("exported"),
                properties: symbol(l, "cuMemGetAllocationPropertiesFromHandle").expect("exported"),
                range: symbol(l, "cuMemGetAddressRange_v2").expect("exported"),
                alloc_async: symbol(l, "cuMemAllocAsync").expect("exported"),
                free_async: symbol(l, "cuMemFreeAsync").expect("exported"),
            }
        }
    }

    /// A range of some pieces on a device; its first address.
    fn range_of_pieces(&self, device: usize, pieces: usize, handle_types: c_int) -> u64 {
        let mut base = 0;
        // SAFETY: pointers are to live variables; the driver checks the rest.
        unsafe {
            ok((self.reserve)(&mut base, pieces * PIECE, 0, 0, 0));
            let properties = Properties { kind: 1, handle_types, location: [1, device as c_int], win32: 0, flags: 0 };
            for number in 0..pieces {
                let mut handle = 0;
                ok((self.create)(&mut handle, PIECE, &properties, 0));
                ok((self.map)(base + (number * PIECE) as u64, PIECE, 0, handle, 0));
                ok((self.release)(handle));
            }
            ok((self.set_access)(base, pieces * PIECE, [1, device as c_int, 3].as_ptr(), 1));
        }
        base
    }

    fn free_pieces(&self, base: u64, pieces: usize) {
        // SAFETY: all calls that used the memory have ended.
        unsafe {
            ok((self.unmap)(base, pieces * PIECE));
            ok((self.unreserve)(base, pieces * PIECE));
        }
    }
}

fn maps() -> usize {
    Resources::now().shared_maps.values().sum()
}

/// The ranks of other processes, whose memory this one maps.
fn others(member: &Member) -> usize {
    if setup::maps_buffers() && !setup::label().contains("Threads") { member.nranks - 1 } else { 0 }
}

/// Peers map all pieces of a range that is registered, also for a buffer that begins in one and ends in another, and
/// let go of them.
#[test]
fn a_range_of_many_pieces() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let calls = Calls::load();
            let plain = member.api.cuda.alloc(1 << 20).expect("memory");
            let base = calls.range_of_pieces(member.rank, PIECES, 1);
            let work = Bytes { member, count: 3 * PIECE };
            let buffer = base + (PIECE / 2) as u64;
            settle(member, plain);
            let before = maps();
            let nccl = &member.api.nccl;
            let handle = nccl.register(member.comm, base, PIECES * PIECE).expect("register");
            assert_eq!(handle != 0, setup::maps_buffers());
            let part = nccl.register(member.comm, base + PIECE as u64, PIECE).expect("register");
            (0..8).for_each(|_| work.run(buffer, 2));
            if !setup::label().contains("Threads") {
                assert_eq!(maps(), before + others(member) * PIECES, "peers' pieces");
            }
            [handle, part].into_iter().for_each(|handle| nccl.deregister(member.comm, handle).expect("deregister"));
            settle(member, plain);
            work.run(buffer, 2);
            if !setup::label().contains("Threads") {
                assert_eq!(maps(), before);
            }
            calls.free_pieces(base, PIECES);
            // SAFETY: all calls have ended.
            unsafe { member.api.cuda.free(plain) }.expect("free");
        });
    }
    for transport in [Transport::P2p, Transport::Threads, Transport::Shm] {
        Setup { transport, ..Setup::plain(3) }.run("ranges::a_range_of_many_pieces");
    }
}

/// A piece is replaced by another one at the same addresses, without a word: nobody uses what was there before.
#[test]
fn a_piece_is_replaced() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let calls = Calls::load();
            let base = calls.range_of_pieces(member.rank, 4, 1);
            let work = Bytes { member, count: 3 * PIECE };
            let handle = member.api.nccl.register(member.comm, base, 4 * PIECE).expect("register");
            (0..4).for_each(|_| work.run(base + 4096, 2));
            let second = base + PIECE as u64;
            // SAFETY: pointers are to live variables; all calls have ended.
            unsafe {
                ok((calls.unmap)(second, PIECE));
                let device = member.rank as c_int;
                let properties = Properties { kind: 1, handle_types: 1, location: [1, device], win32: 0, flags: 0 };
                let mut piece = 0;
                ok((calls.create)(&mut piece, PIECE, &properties, 0));
                ok((calls.map)(second, PIECE, 0, piece, 0));
                ok((calls.release)(piece));
                ok((calls.set_access)(second, PIECE, [1, device, 3].as_ptr(), 1));
            }
            (0..4).for_each(|_| work.run(base + 4096, 2));
            member.api.nccl.deregister(member.comm, handle).expect("a handle may outlive its memory");
            // SAFETY: all calls have ended; the pieces are unmapped one by one.
            (0..4).for_each(|number| unsafe { ok((calls.unmap)(base + (number * PIECE) as u64, PIECE)) });
            // SAFETY: as above.
            unsafe { ok((calls.unreserve)(base, 4 * PIECE)) };
        });
    }
    Setup::plain(2).run("ranges::a_piece_is_replaced");
}

/// Memory of pools, and memory that was made without handles: it is not registered, and calls work all the same.
#[test]
fn what_others_cannot_map_is_no_error() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let (calls, nccl) = (Calls::load(), &member.api.nccl);
            let stream = member.streams[0];
            let (mut pooled, pieces) = (0, calls.range_of_pieces(member.rank, 2, 0));
            // SAFETY: the pointer is to a live variable.
            unsafe { ok((calls.alloc_async)(&mut pooled, 2 * PIECE, stream)) };
            member.wait();
            for buffer in [pooled, pieces] {
                assert_eq!(nccl.register(member.comm, buffer, 2 * PIECE), Ok(0));
                Bytes { member, count: PIECE + 4096 }.run(buffer, 3);
            }
            calls.free_pieces(pieces, 2);
            // SAFETY: all calls have ended.
            unsafe { ok((calls.free_async)(pooled, stream)) };
            member.wait();
        });
    }
    Setup::plain(2).run("ranges::what_others_cannot_map_is_no_error");
}

/// What `ncclMemAlloc` gives: memory of `cuMemCreate`, of whole pieces, open to all devices that reach it. Peers map
/// it.
#[test]
fn memory_of_the_library() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let (calls, nccl) = (Calls::load(), &member.api.nccl);
            let plain = member.api.cuda.alloc(1 << 20).expect("memory");
            settle(member, plain);
            let before = maps();
            let buffer = nccl.mem_alloc(PIECE + 1).expect("memory");
            let device = member.rank as c_int;
            let (mut handle, mut base, mut bytes) = (0, 0, 0);
            let mut properties = Properties { kind: 0, handle_types: 0, location: [0; 2], win32: 0, flags: 0 };
            // SAFETY: pointers are to live variables.
            unsafe {
                ok((calls.retain)(&mut handle, buffer as *mut c_void));
                ok((calls.properties)(&mut properties, handle));
                ok((calls.release)(handle));
                ok((calls.range)(&mut base, &mut bytes, buffer + 77));
            }
            assert_eq!((properties.kind, properties.handle_types, properties.location), (1, 1, [1, device]));
            assert_eq!((base, bytes), (buffer, 2 * PIECE));
            for other in 0..4 {
                let mut flags = 0;
                // SAFETY: pointers are to live variables.
                unsafe { ok((calls.get_access)(&mut flags, [1, other].as_ptr(), buffer)) };
                assert_eq!(flags, 3, "device {other}");
            }
            let mine = maps();
            assert!(mine > before);
            (0..4).for_each(|_| Bytes { member, count: PIECE }.run(buffer, 2));
            assert_eq!(maps(), mine + others(member), "peers' memory");
            // SAFETY: all calls have ended.
            unsafe { nccl.mem_free(buffer) }.expect("free");
            settle(member, plain);
            assert_eq!(maps(), before);
            // SAFETY: as above.
            unsafe { member.api.cuda.free(plain) }.expect("free");
        });
    }
    Setup::plain(3).run("ranges::memory_of_the_library");
}

/// Memory is registered, and made, while a stream is captured: that spoils nothing.
#[test]
fn registered_while_a_stream_is_captured() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let (graphs, nccl, cuda) = (Graphs::load().expect("graphs"), &member.api.nccl, &member.api.cuda);
            let buffers = [cuda.alloc(1 << 20).expect("memory"), Calls::load().range_of_pieces(member.rank, 2, 1)];
            let (mut handles, mut given) = (Vec::new(), 0);
            let graph = graphs.capture(member.streams[0], CaptureMode::Global, || {
                handles.extend(buffers.map(|at| nccl.register(member.comm, at, 1 << 20).expect("register")));
                given = nccl.mem_alloc(1 << 20).expect("memory");
            });
            let exec = graphs.instantiate(graph);
            graphs.launch(exec, member.streams[0]);
            member.wait();
            assert!(handles.iter().all(|handle| (*handle != 0) == setup::maps_buffers()));
            for buffer in buffers.into_iter().chain([given]) {
                (0..3).for_each(|_| Bytes { member, count: 1 << 20 }.run(buffer, 2));
            }
            let again = graphs.capture(member.streams[0], CaptureMode::Global, || {
                handles.iter().for_each(|handle| nccl.deregister(member.comm, *handle).expect("deregister"));
            });
            [graph, again].into_iter().for_each(|graph| graphs.destroy(graph));
            graphs.destroy_exec(exec);
            // SAFETY: all calls have ended.
            unsafe { nccl.mem_free(given) }.expect("free");
        });
    }
    Setup::plain(2).run("ranges::registered_while_a_stream_is_captured");
}
