// Entry points, one for each element type and protocol, and one for messages, which are bytes. OXCCL_KERNEL is the
// target's: a __global__ function for a GPU, an entry of the image's table for the host.
#include "interp.cuh"
#if defined(OXCCL_WARPS)   // the target's threads move in step
#include "ll128.cuh"
#endif

#if !defined(OXCCL_TYPES)   // a test may want fewer
#define OXCCL_TYPES(X)                                                                                    \
  X(i8, I8) X(u8, U8) X(i32, I32) X(u32, U32) X(i64, I64) X(u64, U64) X(f16, F16) X(bf16, BF16)           \
  X(f32, F32) X(f64, F64) X(f8e4m3, F8E4M3) X(f8e5m2, F8E5M2)
#endif

#define OXCCL_SIMPLE(name, type) OXCCL_KERNEL(oxccl_simple_##name, oxccl::type, oxccl::Simple)
#define OXCCL_LL(name, type) OXCCL_KERNEL(oxccl_ll_##name, oxccl::type, oxccl::LowLatency)
OXCCL_TYPES(OXCCL_SIMPLE)
OXCCL_TYPES(OXCCL_LL)
OXCCL_KERNEL(oxccl_messages, oxccl::I8, oxccl::Messages)
#if defined(OXCCL_WARPS)
#define OXCCL_LL128(name, type) OXCCL_KERNEL(oxccl_ll128_##name, oxccl::type, oxccl::WideLines)
OXCCL_TYPES(OXCCL_LL128)
#endif

#if defined(OXCCL_IMAGE)
#define OXCCL_ENTRY(name, type) OXCCL_FUNCTION(oxccl_simple_##name) OXCCL_FUNCTION(oxccl_ll_##name)
OXCCL_IMAGE_TABLE(OXCCL_TYPES(OXCCL_ENTRY) OXCCL_FUNCTION(oxccl_messages))
#endif
