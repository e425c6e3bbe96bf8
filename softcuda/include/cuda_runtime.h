/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The CUDA runtime API as a program includes it: the C part, and for C++ the typed forms of the calls that hand out
 * or take pointers. Host code only: there is no device compiler behind it. */
#ifndef SOFTCUDA_CUDA_RUNTIME_H
#define SOFTCUDA_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus

template <class T> inline cudaError_t cudaMalloc(T **ptr, size_t size) {
  return ::cudaMalloc(reinterpret_cast<void **>(ptr), size);
}
template <class T> inline cudaError_t cudaMallocAsync(T **ptr, size_t size, cudaStream_t stream) {
  return ::cudaMallocAsync(reinterpret_cast<void **>(ptr), size, stream);
}
template <class T> inline cudaError_t cudaMallocHost(T **ptr, size_t size, unsigned int flags = 0) {
  return ::cudaHostAlloc(reinterpret_cast<void **>(ptr), size, flags);
}
template <class T> inline cudaError_t cudaHostAlloc(T **ptr, size_t size, unsigned int flags) {
  return ::cudaHostAlloc(reinterpret_cast<void **>(ptr), size, flags);
}
template <class T>
inline cudaError_t cudaMallocManaged(T **ptr, size_t size, unsigned int flags = cudaMemAttachGlobal) {
  return ::cudaMallocManaged(reinterpret_cast<void **>(ptr), size, flags);
}
template <class T> inline cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned int flags) {
  return ::cudaHostGetDevicePointer(reinterpret_cast<void **>(device), host, flags);
}
inline cudaError_t cudaEventCreate(cudaEvent_t *event, unsigned int flags) {
  return ::cudaEventCreateWithFlags(event, flags);
}
template <class T>
inline cudaError_t cudaLaunchKernel(T *func, dim3 grid, dim3 block, void **args, size_t shared = 0,
                                    cudaStream_t stream = 0) {
  return ::cudaLaunchKernel(reinterpret_cast<const void *>(func), grid, block, args, shared, stream);
}
template <class T> inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attr, T *func) {
  return ::cudaFuncGetAttributes(attr, reinterpret_cast<const void *>(func));
}
template <class T> inline cudaError_t cudaFuncSetAttribute(T *func, cudaFuncAttribute attr, int value) {
  return ::cudaFuncSetAttribute(reinterpret_cast<const void *>(func), attr, value);
}

#endif

#endif
