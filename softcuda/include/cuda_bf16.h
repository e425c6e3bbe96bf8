/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The types of bfloat16 and of a pair of them: storage only, so that a program can declare, copy and pass them.
 * Conversions and arithmetic are not declared; they are the business of NVIDIA's header. */
#ifndef SOFTCUDA_CUDA_BF16_H
#define SOFTCUDA_CUDA_BF16_H

#ifdef __cplusplus
#define SOFTCUDA_BF16_ALIGN alignas(4)
#elif __STDC_VERSION__ >= 201112L
#define SOFTCUDA_BF16_ALIGN _Alignas(4)
#else
#define SOFTCUDA_BF16_ALIGN
#endif

typedef struct __nv_bfloat16_raw { unsigned short x; } __nv_bfloat16_raw;
typedef struct __nv_bfloat162_raw { SOFTCUDA_BF16_ALIGN unsigned short x; unsigned short y; } __nv_bfloat162_raw;
typedef struct __nv_bfloat16 { unsigned short __x; } __nv_bfloat16;
typedef struct __nv_bfloat162 { SOFTCUDA_BF16_ALIGN __nv_bfloat16 x; __nv_bfloat16 y; } __nv_bfloat162;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#endif
