/* What a pointer is: device memory, pinned memory, managed memory, registered memory, none of CUDA's. */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "check.h"

static int type_of(const void *p) {
  struct cudaPointerAttributes attributes;
  memset(&attributes, 0x77, sizeof attributes);
  OK(cudaPointerGetAttributes(&attributes, p));
  return (int)attributes.type;
}

static void device_memory(int device) {
  CUdeviceptr p, start;
  CUcontext context, owner;
  CUmemorytype type;
  int ordinal = -1, managed = -1;
  size_t size;
  unsigned long long id1 = 0, id2 = 0;
  struct cudaPointerAttributes attributes;
  OK(cudaSetDevice(device));
  OK(cuCtxGetCurrent(&context));
  OK(cuMemAlloc(&p, 5000));
  OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p + 10));
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 10));
  OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p + 4999));
  OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 10));
  OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + 10));
  OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
  CHECK(owner == context && type == CU_MEMORYTYPE_DEVICE && ordinal == device);
  CHECK(start == p && size == 5000);
  OK(cuPointerGetAttribute(&id1, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
  CUpointer_attribute wanted[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *data[2] = {&type, &ordinal};
  OK(cuPointerGetAttributes(2, wanted, data, p + 1));
  CHECK(type == CU_MEMORYTYPE_DEVICE && ordinal == device);
  OK(cudaPointerGetAttributes(&attributes, (void *)(uintptr_t)(p + 8)));
  CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == device);
  CHECK(attributes.devicePointer == (void *)(uintptr_t)(p + 8) && attributes.hostPointer == NULL);
  OK(cuMemFree(p));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
  CHECK(type_of((void *)(uintptr_t)p) == cudaMemoryTypeUnregistered);
  CUdeviceptr q;
  OK(cuMemAlloc(&q, 5000));
  OK(cuPointerGetAttribute(&id2, CU_POINTER_ATTRIBUTE_BUFFER_ID, q));
  CHECK(id1 != id2); /* new memory, maybe at the same address */
  OK(cuMemFree(q));
}

static void host_memory(void) {
  struct cudaPointerAttributes attributes;
  void *pinned, *managed;
  char local[16], *registered = aligned_alloc(4096, 8192);
  OK(cudaMallocHost(&pinned, 100));
  OK(cudaPointerGetAttributes(&attributes, (char *)pinned + 1));
  CHECK(attributes.type == cudaMemoryTypeHost);
  CHECK(attributes.hostPointer == (char *)pinned + 1 && attributes.devicePointer == (char *)pinned + 1);
  OK(cudaFreeHost(pinned));
  OK(cudaMallocManaged(&managed, 100, cudaMemAttachGlobal));
  CHECK(type_of(managed) == cudaMemoryTypeManaged);
  OK(cudaFree(managed));
  CHECK(type_of(local) == cudaMemoryTypeUnregistered);
  CHECK(type_of(registered) == cudaMemoryTypeUnregistered);
  OK(cudaHostRegister(registered, 8192, cudaHostRegisterDefault));
  CHECK(type_of(registered + 8191) == cudaMemoryTypeHost);
  OK(cudaHostUnregister(registered));
  CHECK(type_of(registered) == cudaMemoryTypeUnregistered);
  free(registered);
  OK(cudaPointerGetAttributes(&attributes, local));
  CHECK(attributes.device == -2 && attributes.devicePointer == NULL);
  EXPECT(cudaErrorInvalidValue, cudaPointerGetAttributes(NULL, local));
}

int main(void) {
  OK(cuInit(0));
  device_memory(0);
  device_memory(1);
  host_memory();
  CHECK(cudaGetLastError() == cudaErrorInvalidValue); /* from the NULL above */
  CHECK(cudaGetLastError() == cudaSuccess);
  return 0;
}
