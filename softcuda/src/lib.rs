//! A software CUDA device on host memory: the driver interface (`libcuda.so.1`) for programs that have no GPU.
//!
//! * `abi/`: the C boundary, the only room beside `memory/` with `unsafe`
//! * `driver`: the state behind it; `device/`, `context`, `event`, `module`: its objects; `handles`: how C names them
//! * `stream/`: queues of operations, and who executes them when
//! * `green`: green contexts, which have a part of a device
//! * `graph/`: stream capture, graphs, their launches
//! * `launch`: blocks and threads of a kernel
//! * `memory/`: allocations, virtual memory management, IPC, raw access
//! * `runtime/`, `nvml/`: what `libcudart.so` and `libnvidia-ml.so.1` jump to
//! * `fault`: calls that fail on request
#![deny(unsafe_code)]
#![allow(non_snake_case, reason = "the names of NVIDIA's interface")]

mod abi;
mod config;
mod context;
mod device;
mod driver;
mod error;
mod event;
mod fault;
mod graph;
mod green;
mod handles;
mod launch;
mod memory;
mod module;
mod nvml;
#[allow(unsafe_code)]
#[allow(clashing_extern_declarations, reason = "it calls exported functions, each by the types that suit the caller")]
mod runtime;
mod stream;
