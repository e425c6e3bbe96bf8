//! The C interface from outside: the names and bindings of the library, the header against NVIDIA's facts, the
//! codes of calls with wrong arguments, and what the library writes where.
//!
//! `tests/abi/*.expected` hold what NVIDIA's own headers and library say; `scripts/install-nccl-header.sh DIR`
//! fetches those, and with OXCCL_NCCL_HOME=DIR the tests check the expectations too.

mod common;

#[path = "abi/calls.rs"]
mod calls;
#[path = "abi/conf.rs"]
mod conf;
#[path = "abi/facts.rs"]
mod facts;
#[path = "abi/log.rs"]
mod log;
#[path = "abi/names.rs"]
mod names;
#[path = "abi/tool.rs"]
mod tool;
