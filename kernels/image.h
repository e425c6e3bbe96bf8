// The host image, as a software CUDA device takes it: a table of functions. The layout is the device's
// (version 1 of its interface); this is the kernels' own copy of it.
#pragma once
#include <stdint.h>

#define SOFTCUDA_IMAGE_MAGIC 0x53434944u   // "SCID"
#define SOFTCUDA_IMAGE_VERSION 1u

extern "C" {

typedef struct softcudaBlock {   // what one thread of one block is told
  uint32_t gridDim[3], blockDim[3], blockIdx[3], threadIdx[3];
  void* shared;                  // the block's shared memory, 64-byte aligned
  void* barrier;                 // 256 bytes, 64-byte aligned, zero at block start
} softcudaBlock;

typedef void (*softcudaEntry)(const softcudaBlock* block, void* const* params);

typedef struct softcudaFunction {
  const char* name;
  softcudaEntry entry;
  uint32_t shared_bytes, max_threads, nparams, reserved;
  const uint32_t* param_sizes;   // bytes of each argument
} softcudaFunction;

typedef struct softcudaImage {
  uint32_t magic, version, nfunctions, reserved;
  const softcudaFunction* functions;
} softcudaImage;

// The best image that this CPU runs.
const softcudaImage* oxccl_host_image(void);
// The images that this CPU runs, from 0 (the one that runs everywhere); null beyond the last. For tests.
const softcudaImage* oxccl_host_image_at(uint32_t index);

}  // extern "C"
