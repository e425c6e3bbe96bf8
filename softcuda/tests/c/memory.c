/* Device and host memory of the driver API: allocation, copies, fills, limits, and what bad pointers do. */
#include <cuda.h>

#include "check.h"

enum { N = 1 << 20 };
static unsigned char host[N], back[N];

static void copies(void) {
  CUdeviceptr a, b;
  OK(cuMemAlloc(&a, N));
  OK(cuMemAlloc(&b, N));
  CHECK(a % 512 == 0 && b % 512 == 0);
  for (int i = 0; i < N; i++) host[i] = (unsigned char)(i * 7 + i / 256);
  OK(cuMemcpyHtoD(a, host, N));
  OK(cuMemcpyDtoD(b, a, N));
  OK(cuMemcpyDtoH(back, b, N));
  CHECK(memcmp(host, back, N) == 0);
  /* a part of it, not aligned */
  OK(cuMemcpyDtoD(b + 3, a + 1000, 77));
  OK(cuMemcpyDtoH(back, b + 3, 77));
  CHECK(memcmp(host + 1000, back, 77) == 0);
  OK(cuMemcpy(b, (CUdeviceptr)(uintptr_t)host, 100)); /* unified addresses */
  memset(back, 0, sizeof back);
  OK(cuMemcpy((CUdeviceptr)(uintptr_t)back, b, 100));
  CHECK(memcmp(host, back, 100) == 0);
  OK(cuMemFree(a));
  OK(cuMemFree(b));
}

static void fills(void) {
  CUdeviceptr p;
  unsigned int words[64];
  unsigned short halves[64];
  OK(cuMemAlloc(&p, N));
  OK(cuMemsetD8(p, 0xab, N));
  OK(cuMemcpyDtoH(back, p, N));
  for (int i = 0; i < N; i++) CHECK(back[i] == 0xab);
  OK(cuMemsetD32(p, 0x01020304, 64));
  OK(cuMemcpyDtoH(words, p, sizeof words));
  for (int i = 0; i < 64; i++) CHECK(words[i] == 0x01020304);
  OK(cuMemsetD16(p, 0x0506, 63));
  OK(cuMemcpyDtoH(halves, p, sizeof halves));
  CHECK(halves[0] == 0x0506 && halves[62] == 0x0506 && halves[63] == 0x0102);
  OK(cuMemsetD8(p, 0, 1024));
  OK(cuMemsetD2D8(p, 64, 1, 10, 3)); /* three rows of ten bytes */
  OK(cuMemcpyDtoH(back, p, 256));
  for (int i = 0; i < 256; i++) CHECK(back[i] == (i % 64 < 10 && i / 64 < 3));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(p + 1, 0, 4)); /* not aligned */
  OK(cuMemFree(p));
}

static void rows(void) {
  CUdeviceptr p;
  size_t pitch;
  CUDA_MEMCPY2D copy;
  OK(cuMemAllocPitch(&p, &pitch, 100, 8, 4));
  CHECK(pitch >= 100 && pitch % 128 == 0);
  memset(&copy, 0, sizeof copy);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host;
  copy.srcPitch = 100;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = p;
  copy.dstPitch = pitch;
  copy.WidthInBytes = 100;
  copy.Height = 8;
  OK(cuMemcpy2D(&copy));
  for (int row = 0; row < 8; row++) {
    OK(cuMemcpyDtoH(back, p + (size_t)row * pitch, 100));
    CHECK(memcmp(back, host + row * 100, 100) == 0);
  }
  OK(cuMemFree(p));
}

static void kinds(void) {
  CUdeviceptr p, base;
  void *pinned;
  size_t size;
  unsigned int flags;
  OK(cuMemAllocHost(&pinned, 1000));
  memset(pinned, 1, 1000);
  OK(cuMemHostGetDevicePointer(&p, pinned, 0));
  CHECK(p == (CUdeviceptr)(uintptr_t)pinned);
  OK(cuMemFreeHost(pinned));
  OK(cuMemHostAlloc(&pinned, 1000, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetFlags(&flags, pinned));
  CHECK((flags & CU_MEMHOSTALLOC_PORTABLE) != 0);
  OK(cuMemFreeHost(pinned));
  OK(cuMemAllocManaged(&p, 1000, CU_MEM_ATTACH_GLOBAL));
  memset((void *)(uintptr_t)p, 5, 1000); /* the host may write it */
  OK(cuMemcpyDtoH(back, p, 1000));
  CHECK(back[0] == 5 && back[999] == 5);
  OK(cuMemFree(p));
  OK(cuMemAllocAsync(&p, 5000, NULL));
  OK(cuMemsetD8Async(p, 9, 5000, NULL));
  OK(cuMemcpyDtoH(back, p, 5000));
  CHECK(back[4999] == 9);
  OK(cuMemFreeAsync(p, NULL));
  OK(cuCtxSynchronize());
  OK(cuMemAlloc(&p, 3000));
  OK(cuMemGetAddressRange(&base, &size, p + 1234));
  CHECK(base == p && size == 3000);
  OK(cuMemFree(p));
}

static void limits(void) {
  CUdeviceptr p;
  size_t before, total, during, after;
  OK(cuMemGetInfo(&before, &total));
  CHECK(before <= total);
  OK(cuMemAlloc(&p, 64u << 20));
  OK(cuMemGetInfo(&during, &total));
  CHECK(before - during >= 64u << 20);
  OK(cuMemFree(p));
  OK(cuMemGetInfo(&after, &total));
  CHECK(after == before);
  EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, total + 1));
  EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, SIZE_MAX - 10));
}

static void bad_input(void) {
  CUdeviceptr p;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&p, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(NULL, 16));
  OK(cuMemAlloc(&p, 4096));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(p + 16));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(back, p, 4097)); /* past the end */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p + 4096 - 8, host, 16));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(p + 4090, 1, 10));
  OK(cuMemFree(p));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p, host, 16)); /* freed */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(0x1000));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(host));
}

int main(void) {
  CUcontext context;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  copies();
  int before = open_fds();
  for (int i = 0; i < 3; i++) {
    copies();
    fills();
    rows();
    kinds();
    limits();
    bad_input();
  }
  CHECK(open_fds() == before);
  return 0;
}
