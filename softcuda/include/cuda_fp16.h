/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The types of IEEE 754 half precision and of a pair of halves: storage only, so that a program can declare, copy and
 * pass them. Conversions and arithmetic are not declared; they are the business of NVIDIA's header. */
#ifndef SOFTCUDA_CUDA_FP16_H
#define SOFTCUDA_CUDA_FP16_H

#ifdef __cplusplus
#define SOFTCUDA_FP16_ALIGN alignas(4)
#elif __STDC_VERSION__ >= 201112L
#define SOFTCUDA_FP16_ALIGN _Alignas(4)
#else
#define SOFTCUDA_FP16_ALIGN
#endif

typedef struct __half_raw { unsigned short x; } __half_raw;
typedef struct __half2_raw { SOFTCUDA_FP16_ALIGN unsigned short x; unsigned short y; } __half2_raw;
typedef struct __half { unsigned short __x; } __half;
typedef struct __half2 { SOFTCUDA_FP16_ALIGN __half x; __half y; } __half2;
typedef __half half;
typedef __half2 half2;

#endif
