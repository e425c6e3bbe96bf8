//! A software CUDA device on host memory: the driver interface (`libcuda.so.1`) for programs that have no GPU.
//!
//! The rooms, top to bottom; each uses itself and those below it (`tests/tidy.rs`):
//!
//! * `runtime/`, `nvml/`: what `libcudart.so` and `libnvidia-ml.so.1` jump to
//! * `abi/`: the C boundary
//! * `driver`: the whole state behind it
//! * `context/`: contexts, primary and green ones, and which one is current
//! * `module`, `graph/`, `event`: functions; stream capture, graphs, their launches; events
//! * `stream/`: queues of operations, and who executes them when
//! * `launch`: blocks and threads of a kernel
//! * `callout`: calls to the client's code
//! * `memory/`: allocations, virtual memory management, IPC, raw access
//! * `device/`, `config`, `identity`: devices, settings, what identifies a device
//! * `fault`: calls that fail on request
//! * `handles`, `os`, `error`: how C names objects; the system; codes
//!
//! `unsafe` stands in `abi/`, `runtime/`, `nvml/`, `callout`, `memory/` and `os` alone.
#![deny(unsafe_code)]
#![allow(non_snake_case, reason = "the names of NVIDIA's interface")]

mod abi;
mod callout;
mod config;
mod context;
mod device;
mod driver;
mod error;
mod event;
mod fault;
mod graph;
mod handles;
mod identity;
mod launch;
mod memory;
mod module;
mod nvml;
mod os;
#[allow(unsafe_code)]
#[allow(clashing_extern_declarations, reason = "it calls exported functions, each by the types that suit the caller")]
mod runtime;
mod stream;
