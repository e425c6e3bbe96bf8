//! What `SOFTCUDA_LINKS` says lies between devices.

mod common;

use common::api::{Api, IpcHandle, ok};
use common::{library_dir, role, run_child};
use std::ffi::c_int;
use std::time::{Duration, Instant};

const UNSUPPORTED: c_int = 217;
const LAZY: u32 = 1;
/// How long a copy of [`a_copy_stalls`] takes.
const STALL: Duration = Duration::from_millis(300);

type Attribute = extern "C" fn(*mut c_int, c_int, c_int, c_int) -> c_int;
type CanAccess = extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type EnablePeer = extern "C" fn(u64, u32) -> c_int;

/// Functions of the driver that only this test uses.
struct Peers {
    attribute: Attribute,
    can_access: CanAccess,
    enable: EnablePeer,
}

impl Peers {
    fn open() -> Peers {
        // SAFETY: softcuda's own library, and the types of NVIDIA's documentation. It is never unloaded.
        unsafe {
            let library = libloading::Library::new(library_dir().join("libcuda.so.1")).expect("softcuda's driver");
            let attribute = *library.get(b"cuDeviceGetP2PAttribute\0").expect("exported");
            let can_access = *library.get(b"cuDeviceCanAccessPeer\0").expect("exported");
            let enable = *library.get(b"cuCtxEnablePeerAccess\0").expect("exported");
            std::mem::forget(library);
            Peers { attribute, can_access, enable }
        }
    }

    /// Whether there is access, the performance rank, and whether atomics work.
    fn between(&self, a: c_int, b: c_int) -> [c_int; 3] {
        let (mut access, mut rank, mut atomics) = (9, 9, 9);
        ok((self.can_access)(&mut access, a, b));
        ok((self.attribute)(&mut rank, 1, a, b));
        ok((self.attribute)(&mut atomics, 3, a, b));
        [access, rank, atomics]
    }
}

/// By their numbers on the machine, whatever the process sees.
#[test]
fn what_the_driver_says() {
    if role().is_none() {
        let links = ("SOFTCUDA_LINKS", "*-3:pcie,2-3:none,1-3:lost");
        return run_child("what_the_driver_says", "run", &[links, ("CUDA_VISIBLE_DEVICES", "3,2,1,0")]);
    }
    let (api, peers) = (Api::ready(), Peers::open());
    let ways = [1, 2, 3].map(|peer| (peers.between(0, peer), peers.between(peer, 0)));
    assert_eq!(ways, [([0, 1, 0], [0, 1, 0]), ([1, 0, 1], [1, 0, 1]), ([1, 1, 0], [1, 1, 0])]);
    let others = [1, 2, 3].map(|device| api.use_device(device));
    api.use_device(0);
    assert_eq!(others.map(|other| (peers.enable)(other, 0)), [UNSUPPORTED, 0, 0]);
}

/// The parent's memory is on device 0; the child sees device 1 only.
#[test]
fn memory_of_a_device_that_is_not_seen() {
    const NAME: &str = "memory_of_a_device_that_is_not_seen";
    if let Some(role) = role() {
        return open_memory(&role);
    }
    let api = Api::ready();
    let memory = api.memory(64);
    let mut exported = IpcHandle([0; 64]);
    ok((api.ipc_get)(&mut exported, memory));
    let handle: String = exported.0.iter().map(|byte| format!("{byte:02x}")).collect();
    for (role, links, arrives) in [("works", "", true), ("lies", "0-1:lost", false), ("fails", "0-1:none", false)] {
        let before = 0x1122_3344u64;
        ok((api.copy_to)(memory, (&raw const before).cast(), 8));
        run_child(NAME, role, &[("SOFTCUDA_LINKS", links), ("CUDA_VISIBLE_DEVICES", "1"), ("HANDLE", &handle)]);
        assert_eq!(api.read_u64(memory), if arrives { 77 } else { before }, "{role}");
    }
}

fn open_memory(role: &str) {
    let api = Api::ready();
    let text = std::env::var("HANDLE").expect("set by the parent");
    let byte = |at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hexadecimal");
    let (handle, mut opened) = (IpcHandle(std::array::from_fn(byte)), 0);
    if role == "fails" {
        return assert_eq!((api.ipc_open)(&mut opened, handle, LAZY), UNSUPPORTED);
    }
    ok((api.ipc_open)(&mut opened, handle, LAZY));
    assert_eq!(api.read_u64(opened) == 0x1122_3344, role == "works");
    // A kernel that stores, and a copy.
    let set = api.function(api.module(), "set");
    api.run(set, 0, &[opened, 77]);
    ok((api.context_synchronize)());
    let source = api.memory(8);
    api.run(set, 0, &[source, 77]);
    ok((api.copy_async)(opened, source, 8, 0));
    ok((api.context_synchronize)());
}

/// Within a process, copies from and to the device.
#[test]
fn copies_between_devices_of_a_process() {
    if role().is_none() {
        return run_child("copies_between_devices_of_a_process", "run", &[("SOFTCUDA_LINKS", "0-1:lost")]);
    }
    let api = Api::ready();
    let here = api.memory(8);
    api.use_device(1);
    let there = api.memory(8);
    api.use_device(0);
    let value = 5u64;
    ok((api.copy_to)(here, (&raw const value).cast(), 8));
    ok((api.copy_async)(there, here, 8, 0));
    assert_eq!(api.read_u64(here), 5);
    ok((api.copy_async)(here, there, 8, 0));
    assert_eq!(api.read_u64(here), u64::MAX);
    api.use_device(1);
    assert_eq!(api.read_u64(there), 0);
}

#[test]
fn a_copy_stalls() {
    if role().is_none() {
        let links = format!("0-1:stall@{}ms", STALL.as_millis());
        return run_child("a_copy_stalls", "run", &[("SOFTCUDA_LINKS", &links)]);
    }
    let api = Api::ready();
    let here = api.memory(8);
    api.use_device(1);
    let there = api.memory(8);
    api.use_device(0);
    let (stream, start) = (api.stream(1), Instant::now());
    ok((api.copy_async)(there, here, 8, stream));
    assert_eq!((api.stream_query)(stream), 600, "not ready");
    ok((api.stream_synchronize)(stream));
    assert!(start.elapsed() >= STALL);
}
