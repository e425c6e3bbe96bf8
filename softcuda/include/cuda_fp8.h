/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The types of the two 8-bit floating point formats: storage only, so that a program can declare, copy and pass them.
 * Conversions and arithmetic are not declared; they are the business of NVIDIA's header. */
#ifndef SOFTCUDA_CUDA_FP8_H
#define SOFTCUDA_CUDA_FP8_H

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
typedef struct __nv_fp8_e4m3 { __nv_fp8_storage_t __x; } __nv_fp8_e4m3;
typedef struct __nv_fp8_e5m2 { __nv_fp8_storage_t __x; } __nv_fp8_e5m2;

#endif
