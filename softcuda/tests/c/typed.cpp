// The C++ forms of the runtime's calls: typed pointers, default arguments.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "check.h"

static_assert(sizeof(__half) == 2 && sizeof(__nv_bfloat16) == 2, "16-bit types");
static_assert(sizeof(__nv_fp8_e4m3) == 1 && sizeof(__nv_fp8_e5m2) == 1, "8-bit types");
static_assert(sizeof(__half2) == 4 && alignof(__half2) == 4, "pairs");
static_assert(sizeof(__nv_bfloat162) == 4 && alignof(__nv_bfloat162) == 4, "pairs");

int main() {
  float *device = nullptr, *pinned = nullptr, *mapped = nullptr;
  cudaEvent_t event;
  cudaStream_t stream;
  dim3 grid(3), block;
  CHECK(grid.x == 3 && grid.y == 1 && block.z == 1);
  OK(cudaMalloc(&device, 64 * sizeof(float)));
  OK(cudaMallocHost(&pinned, 64 * sizeof(float)));
  OK(cudaHostGetDevicePointer(&mapped, pinned, 0));
  CHECK(mapped == pinned);
  for (int i = 0; i < 64; i++) pinned[i] = 0.5f * static_cast<float>(i);
  OK(cudaMemcpyAsync(device, pinned, 64 * sizeof(float), cudaMemcpyHostToDevice));
  OK(cudaMemsetAsync(device, 0, sizeof(float)));
  OK(cudaStreamCreate(&stream));
  OK(cudaEventCreate(&event, cudaEventDisableTiming));
  OK(cudaEventRecord(event));
  OK(cudaStreamWaitEvent(stream, event));
  OK(cudaMemcpyAsync(pinned, device, 64 * sizeof(float), cudaMemcpyDeviceToHost, stream));
  OK(cudaStreamSynchronize(stream));
  CHECK(pinned[0] == 0 && pinned[63] == 31.5f);
  cudaDeviceProp properties;
  OK(cudaGetDeviceProperties(&properties, 0));
  CHECK(properties.warpSize == 32);
  OK(cudaFree(device));
  OK(cudaFreeHost(pinned));
  OK(cudaEventDestroy(event));
  OK(cudaStreamDestroy(stream));
  return 0;
}
