/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Of CUDA's built-in vector types the one that a launch needs. */
#ifndef SOFTCUDA_VECTOR_TYPES_H
#define SOFTCUDA_VECTOR_TYPES_H

struct dim3 {
  unsigned int x, y, z;
#ifdef __cplusplus
  constexpr dim3(unsigned int nx = 1, unsigned int ny = 1, unsigned int nz = 1) : x(nx), y(ny), z(nz) {}
#endif
};
typedef struct dim3 dim3;

#endif
