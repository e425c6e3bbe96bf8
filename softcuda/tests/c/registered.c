/* Host memory that the program owns and registers. */
#include <cuda.h>
#include <sys/mman.h>

#include "check.h"

enum { PAGE = 4096, SIZE = 16 * PAGE };

int main(void) {
  CUcontext context;
  CUdeviceptr device, p;
  CUstream stream;
  unsigned int flags = 0;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&device, SIZE));
  unsigned char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);

  EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(memory));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(memory, 0, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(NULL, PAGE, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(memory, PAGE, 0x8000));
  OK(cuMemHostRegister(memory, SIZE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
  EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(memory, SIZE, 0));
  EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(memory + PAGE, PAGE, 0));
  OK(cuMemHostGetDevicePointer(&p, memory + 100, 0));
  CHECK(p == (CUdeviceptr)(uintptr_t)(memory + 100));
  OK(cuMemHostGetFlags(&flags, memory));
  CHECK((flags & CU_MEMHOSTREGISTER_DEVICEMAP) != 0);

  for (int i = 0; i < SIZE; i++) memory[i] = (unsigned char)(i % 251);
  OK(cuMemcpyHtoDAsync(device, memory, SIZE, stream));
  OK(cuStreamSynchronize(stream));
  memset(memory, 0, SIZE);
  OK(cuMemcpyDtoDAsync(p, device, 1000, stream)); /* registered memory has a device address */
  OK(cuStreamSynchronize(stream));
  for (int i = 0; i < 1000; i++) CHECK(memory[100 + i] == i % 251);
  CHECK(memory[99] == 0 && memory[1100] == 0);

  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(memory)); /* not CUDA's to free */
  OK(cuMemHostUnregister(memory));
  EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(memory));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&p, memory, 0));
  OK(cuMemHostRegister(memory + PAGE, 2 * PAGE, 0)); /* again, another range */
  OK(cuMemHostUnregister(memory + PAGE));
  OK(munmap(memory, SIZE));
  OK(cuMemFree(device));
  OK(cuStreamDestroy(stream));
  return 0;
}
