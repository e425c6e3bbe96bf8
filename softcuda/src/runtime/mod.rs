//! The CUDA runtime API as a thin layer over the driver API.
//!
//! `libcudart.so.13` itself is a table of jumps (see `build.rs`): a function marked
//! `export_name = "softcudart_cudaMalloc"` here is what a program's `cudaMalloc` reaches. So there
//! is one copy of the runtime's state, in `libcuda.so.1`, however many runtimes are loaded.
//! A function whose ABI differs between runtimes is marked `softcudart12_` or `softcudart13_` instead.
//!
//! What the layer adds to the driver is little: the current device is the device of the current
//! context, and a thread without a context gets the primary context of its device when it first
//! needs one; the first error that matters is remembered per thread; a kernel's host stub stands
//! for the kernel. Everything else is the driver's business, and is called through its public
//! symbols, so that a tool that interposes on `cuMemAlloc_v2` sees `cudaMalloc` too.
//!
//! Out-parameters are `Option<&mut MaybeUninit<T>>`: C promises a pointer that is NULL or may be
//! written. Device pointers are plain integers and are never dereferenced here.

mod capture12;
mod context;
mod copy;
mod device;
mod driver;
mod entry;
mod error;
mod event;
mod graph;
mod graph12;
mod graph_driver;
mod graph_nodes;
mod kernel;
mod memory;
mod per_thread;
mod pool;
mod properties;
mod properties12;
mod registry;
mod stream;

use std::mem::MaybeUninit;

/// A pointer that C lets us write, or NULL.
type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// A `void *` of the program or a `CUdeviceptr`: the same 64 bits.
type Address = u64;

/// A stream, event, context, module or function: an opaque value that the driver checks.
type Handle = usize;

/// Three dimensions of a grid or block, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Dim3 {
    x: u32,
    y: u32,
    z: u32,
}
