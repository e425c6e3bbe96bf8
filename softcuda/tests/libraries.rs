//! The libraries beside the driver: the runtime of CUDA 12, and NVML.

mod common;

use common::api::{Api, ok};
use common::{library_dir, role, run_child};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

/// A library of softcuda's.
fn open(name: &str) -> libloading::Library {
    // SAFETY: softcuda's own library.
    unsafe { libloading::Library::new(library_dir().join(name)) }.expect(name)
}

/// A function of a library that stays loaded.
fn function<F: Copy>(library: &libloading::Library, name: &CStr) -> F {
    // SAFETY: each caller gives the type of NVIDIA's documentation.
    unsafe { *library.get::<F>(name.to_bytes_with_nul()).expect("exported") }
}

fn in_child(name: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    match role() {
        Some(_) => body(),
        None => run_child(name, "run", variables),
    }
}

/// Bytes of `cudaDeviceProp` in CUDA 12.
const PROPERTIES_12: usize = 1032;

/// Where NVIDIA's header of CUDA 12.8 has these members.
const MEMBERS_12: [(usize, c_int); 8] = [
    (308, 32),        // warpSize
    (348, 1_980_000), // clockRate
    (360, 9),         // major
    (388, 132),       // multiProcessorCount
    (584, 0x12),      // pciBusID
    (608, 2_619_000), // memoryClockRate
    (624, 2048),      // maxThreadsPerMultiProcessor
    (776, 1),         // unifiedFunctionPointers
];

#[test]
fn the_runtime_of_cuda_12() {
    in_child("the_runtime_of_cuda_12", &[("SOFTCUDA_DEVICES", "4")], || {
        let library = open("libcudart.so.12");
        let version: extern "C" fn(*mut c_int) -> c_int = function(&library, c"cudaRuntimeGetVersion");
        let mut number = 0;
        ok(version(&mut number));
        assert_eq!(number, 12_080);

        let properties: extern "C" fn(*mut u8, c_int) -> c_int = function(&library, c"cudaGetDeviceProperties_v2");
        let mut bytes = [0xaau8; PROPERTIES_12 + 8];
        ok(properties(bytes.as_mut_ptr(), 2));
        let at = |offset: usize| c_int::from_ne_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"));
        let wrong: Vec<_> = MEMBERS_12.iter().filter(|(offset, value)| at(*offset) != *value).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(bytes[PROPERTIES_12..], [0xaa; 8]);
        assert_eq!(properties(bytes.as_mut_ptr(), 4), 101);
        assert_eq!(properties(ptr::null_mut(), 0), 1);

        type Info = extern "C" fn(u64, *mut c_int, *mut u64, *mut u64, *mut u64, *mut usize) -> c_int;
        let info: Info = function(&library, c"cudaStreamGetCaptureInfo_v2");
        let (mut status, mut count) = (9, 9);
        // The per-thread default stream: the legacy one may not be asked about while anybody captures.
        ok(info(2, &mut status, ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), &mut count));
        assert_eq!(status, 0);
    });
}

/// Two runtimes in one process have one state.
#[test]
fn the_runtimes_share_the_driver() {
    in_child("the_runtimes_share_the_driver", &[], || {
        let (old, new) = (open("libcudart.so.12"), open("libcudart.so.13"));
        let malloc: extern "C" fn(*mut u64, usize) -> c_int = function(&old, c"cudaMalloc");
        let free: extern "C" fn(u64) -> c_int = function(&new, c"cudaFree");
        let last: extern "C" fn() -> c_int = function(&old, c"cudaGetLastError");
        let mut pointer = 0;
        ok(malloc(&mut pointer, 100));
        ok(free(pointer));
        assert_eq!(free(pointer), 1);
        assert_eq!((last(), last()), (1, 0));
    });
}

/// `cudaGetDriverEntryPoint` of CUDA 12 means the forms of CUDA 12.
#[test]
fn entry_points_are_those_of_cuda_12() {
    in_child("entry_points_are_those_of_cuda_12", &[], || {
        type Entry = extern "C" fn(*const c_char, *mut *mut c_void, u64, *mut c_int) -> c_int;
        let (driver, old, new) = (open("libcuda.so.1"), open("libcudart.so.12"), open("libcudart.so.13"));
        let of = |library| {
            let entry: Entry = function(library, c"cudaGetDriverEntryPoint");
            let (mut address, mut found) = (ptr::null_mut(), 9);
            ok(entry(c"cuCtxGetDevice".as_ptr(), &mut address, 0, &mut found));
            assert_eq!(found, 0);
            address as usize
        };
        let first: usize = function::<extern "C" fn()>(&driver, c"cuCtxGetDevice") as usize;
        let second: usize = function::<extern "C" fn()>(&driver, c"cuCtxGetDevice_v2") as usize;
        assert_eq!((of(&old), of(&new)), (first, second));
    });
}

type Get<T> = extern "C" fn(u64, *mut T) -> c_int;
type GetText = extern "C" fn(u64, *mut c_char, c_uint) -> c_int;
type Find = extern "C" fn(*const c_char, *mut u64) -> c_int;

fn text(call: impl FnOnce(*mut c_char, c_uint) -> c_int) -> String {
    let mut bytes = [0u8; 96];
    ok(call(bytes.as_mut_ptr().cast(), 96));
    CStr::from_bytes_until_nul(&bytes).expect("it ends").to_string_lossy().into_owned()
}

/// NVML sees the machine, not what `CUDA_VISIBLE_DEVICES` leaves of it, and names devices as the driver does.
#[test]
fn nvml_knows_the_drivers_devices() {
    let variables = [("SOFTCUDA_DEVICES", "4"), ("CUDA_VISIBLE_DEVICES", "3,1"), ("SOFTCUDA_MEMORY", "1G")];
    in_child("nvml_knows_the_drivers_devices", &variables, || {
        let nvml = open("libnvidia-ml.so.1");
        let init: extern "C" fn() -> c_int = function(&nvml, c"nvmlInit_v2");
        let count: extern "C" fn(*mut c_uint) -> c_int = function(&nvml, c"nvmlDeviceGetCount_v2");
        let by_pci: Find = function(&nvml, c"nvmlDeviceGetHandleByPciBusId_v2");
        let by_uuid: Find = function(&nvml, c"nvmlDeviceGetHandleByUUID");
        let index: Get<c_uint> = function(&nvml, c"nvmlDeviceGetIndex");
        let uuid: GetText = function(&nvml, c"nvmlDeviceGetUUID");
        let (mut number, mut device) = (0, 0);
        assert_eq!(count(&mut number), 1, "not initialised");
        ok(init());
        ok(count(&mut number));
        assert_eq!(number, 4);

        let api = Api::open();
        ok((api.init)(0));
        api.use_device(0);
        let bus = text(|to, length| (api.device_pci)(to, length as c_int, 0));
        let bus = std::ffi::CString::new(bus).expect("no zero");
        ok(by_pci(bus.as_ptr(), &mut device));
        ok(index(device, &mut number));
        assert_eq!(number, 3, "device 0 of the process is number 3 of the machine");

        let mut raw = [0u8; 16];
        ok((api.device_uuid)(raw.as_mut_ptr(), 0));
        let told = text(|to, length| uuid(device, to, length));
        let digits: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(told.replace('-', ""), format!("GPU{digits}"));
        let mut same = 0;
        let told = std::ffi::CString::new(told).expect("no zero");
        ok(by_uuid(told.as_ptr(), &mut same));
        assert_eq!(same, device);

        let memory: Get<[u64; 3]> = function(&nvml, c"nvmlDeviceGetMemoryInfo");
        let (mut usage, mut pointer) = ([0; 3], 0);
        ok((api.alloc)(&mut pointer, 4 << 20));
        ok(memory(device, &mut usage));
        assert_eq!(usage, [1 << 30, (1 << 30) - (4 << 20), 4 << 20]);
    });
}

#[test]
fn nvml_says_no() {
    in_child("nvml_says_no", &[("SOFTCUDA_DEVICES", "2")], || {
        let nvml = open("libnvidia-ml.so.1");
        let init: extern "C" fn() -> c_int = function(&nvml, c"nvmlInit_v2");
        let shutdown: extern "C" fn() -> c_int = function(&nvml, c"nvmlShutdown");
        let handle: extern "C" fn(c_uint, *mut u64) -> c_int = function(&nvml, c"nvmlDeviceGetHandleByIndex_v2");
        let link: extern "C" fn(u64, c_uint, *mut c_int) -> c_int = function(&nvml, c"nvmlDeviceGetNvLinkState");
        let peer: extern "C" fn(u64, u64, c_int, *mut c_int) -> c_int = function(&nvml, c"nvmlDeviceGetP2PStatus");
        let name: GetText = function(&nvml, c"nvmlDeviceGetName");
        let by_pci: Find = function(&nvml, c"nvmlDeviceGetHandleByPciBusId_v2");
        let unbuilt: Get<c_uint> = function(&nvml, c"nvmlDeviceGetPowerUsage");
        let words: extern "C" fn(c_int) -> *const c_char = function(&nvml, c"nvmlErrorString");
        let (mut zero, mut one, mut word, mut small) = (0, 0, 0, [0; 4]);
        assert_eq!((shutdown(), handle(0, &mut zero)), (1, 1));
        ok(init());
        ok(handle(0, &mut zero));
        ok(handle(1, &mut one));
        assert_eq!((handle(2, &mut zero), handle(0, ptr::null_mut())), (2, 2));
        assert_eq!((link(zero, 0, &mut word), link(zero, 18, &mut word)), (3, 2));
        let status = |which| {
            let mut status = 9;
            (peer(zero, one, which, &mut status), status)
        };
        assert_eq!([status(0), status(1), status(2), status(3), status(9)], [(0, 0), (0, 0), (0, 0), (0, 0), (2, 9)]);
        assert_eq!(name(zero, small.as_mut_ptr(), 4), 7);
        assert_eq!(by_pci(c"0000:77:00.0".as_ptr(), &mut one), 6);
        assert_eq!(unbuilt(zero, ptr::null_mut()), 3);
        for bad in [0, 1, zero + 1, u64::MAX] {
            assert_eq!(name(bad, small.as_mut_ptr(), 4), 2);
        }
        // SAFETY: a constant text for every number.
        let said = [3, 12345, -1].map(|code| unsafe { CStr::from_ptr(words(code)) }.to_bytes().len());
        assert!(said.iter().all(|length| *length > 0));
        ok(shutdown());
        assert_eq!(name(zero, small.as_mut_ptr(), 4), 1);
    });
}

#[test]
fn the_wish_for_no_wake_ups_is_told() {
    for (value, told) in [("1", 1), ("0", 0), ("", 0)] {
        if role().is_none() {
            run_child(
                "the_wish_for_no_wake_ups_is_told",
                "run",
                &[("SOFTCUDA_NO_WAKE", value), ("TOLD", &told.to_string())],
            );
            continue;
        }
        let driver = open("libcuda.so.1");
        let no_wake: extern "C" fn() -> c_int = function(&driver, c"softcudaNoWake");
        assert_eq!(no_wake().to_string(), std::env::var("TOLD").expect("set by the parent"));
    }
}
