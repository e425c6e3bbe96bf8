/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What softcuda's libcuda.so.1 has and no GPU driver has: loading kernels that are host code, and what is asked of
 * them.
 *
 * A program looks for softcudaModuleLoadImage with dlsym. Where it is there, the program hands over an image, a table
 * of its kernels compiled for the host, in place of a fat binary, and goes on as on a GPU: cuModuleGetFunction,
 * cuLaunchKernel, cuModuleUnload.
 *
 * Rules of a launch: one block of one thread runs in whichever thread executes the stream. Otherwise each thread of
 * each block is an OS thread; all blocks of a launch are resident together and make progress together, and they start
 * in order. The image, its functions, names and code must stay in memory until the module is unloaded. */
#ifndef SOFTCUDA_SOFTCUDA_H
#define SOFTCUDA_SOFTCUDA_H

#include <stdint.h>

#include <cuda.h>

#define SOFTCUDA_IMAGE_MAGIC 0x53434944u /* "SCID" */
#define SOFTCUDA_IMAGE_VERSION 1u

#ifdef __cplusplus
extern "C" {
#endif

/* What one thread of one block is told. Both pointers are 64-byte aligned. */
typedef struct softcudaBlock {
  uint32_t gridDim[3], blockDim[3], blockIdx[3], threadIdx[3];
  void *shared;  /* the block's shared memory: the function's shared_bytes + the launch's dynamic bytes */
  void *barrier; /* 256 bytes, zero when the block starts: room for the image's own block barrier */
} softcudaBlock;

/* One kernel. params[i] points at the i-th argument, copied when the launch was made. */
typedef void (*softcudaEntry)(const softcudaBlock *block, void *const *params);

typedef struct softcudaFunction {
  const char *name;
  softcudaEntry entry;
  uint32_t shared_bytes; /* static shared memory of a block, in bytes */
  uint32_t max_threads;  /* most threads in a block */
  uint32_t nparams;
  uint32_t reserved;           /* 0 */
  const uint32_t *param_sizes; /* bytes of each of the nparams arguments */
} softcudaFunction;

typedef struct softcudaImage {
  uint32_t magic;   /* SOFTCUDA_IMAGE_MAGIC */
  uint32_t version; /* SOFTCUDA_IMAGE_VERSION */
  uint32_t nfunctions;
  uint32_t reserved; /* 0 */
  const softcudaFunction *functions;
} softcudaImage;

/* Makes a module of the image in the current context. CUDA_ERROR_INVALID_VALUE for a NULL pointer,
 * CUDA_ERROR_INVALID_IMAGE for another magic or version or a function without name or entry,
 * CUDA_ERROR_INVALID_CONTEXT without a current context. */
CUresult softcudaModuleLoadImage(CUmodule *module, const softcudaImage *image);

/* 1 if the environment has SOFTCUDA_NO_WAKE=1, else 0; no cuInit is needed. A store of a GPU wakes no thread that
 * sleeps on the word. An image that waits with futexes of its own should then neither wake anybody nor rely on being
 * woken, so that a program which counts on wake-ups is found out before it meets a GPU. softcuda itself never sleeps on
 * a word that kernels or other processes store to; it looks again and again, at intervals of up to 500 us. */
int softcudaNoWake(void);

/* The device is lost from now on, in this process: every call that has to do with its contexts fails with this code (a
 * CUresult, CUDA_ERROR_LAUNCH_FAILED as a rule), and nothing more is done on it; see the README. Kernels that run are
 * not stopped, but nobody waits for them. CUDA_ERROR_NOT_PERMITTED unless SOFTCUDA_FAULT has `lose@call` in it. */
CUresult softcudaLoseDevice(CUdevice device, int code);

#ifdef __cplusplus
}
#endif

#endif
