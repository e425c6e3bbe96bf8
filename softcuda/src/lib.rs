//! A software CUDA device on host memory.

mod runtime;
