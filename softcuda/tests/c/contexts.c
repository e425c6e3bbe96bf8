/* Contexts: primary ones, own ones, and each thread's stack of them. */
#include <cuda.h>
#include <pthread.h>

#include "check.h"

static CUcontext current(void) {
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  return context;
}

static void *other_thread(void *arg) {
  CUdevice device = -1;
  CHECK(current() == NULL);
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice(&device));
  OK(cuCtxSetCurrent((CUcontext)arg));
  OK(cuCtxGetDevice(&device));
  CHECK(device == 1);
  return NULL;
}

static void primary(void) {
  CUcontext one, again, two;
  unsigned int flags;
  int active;
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK(!active);
  OK(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_BLOCKING_SYNC));
  OK(cuDevicePrimaryCtxRetain(&one, 0));
  OK(cuDevicePrimaryCtxRetain(&again, 0));
  OK(cuDevicePrimaryCtxRetain(&two, 1));
  CHECK(one == again && one != two);
  CHECK(current() == NULL); /* retaining makes nothing current */
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK(active && (flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC);
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK(active); /* retained once more than released */
  pthread_t thread;
  OK(pthread_create(&thread, NULL, other_thread, two));
  OK(pthread_join(thread, NULL));
  CHECK(current() == NULL);
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK(!active);
  OK(cuDevicePrimaryCtxRelease(1));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(1));
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRetain(&one, 4711));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevicePrimaryCtxRetain(NULL, 0));
}

static void stack(void) {
  CUcontext one, two, popped;
  CUdevice device;
  unsigned int version = 0;
  unsigned long long id1 = 0, id2 = 0;
  OK(cuCtxCreate(&one, NULL, 0, 0));
  CHECK(current() == one);
  OK(cuCtxCreate(&two, NULL, 0, 1));
  CHECK(current() == two && one != two);
  OK(cuCtxGetDevice(&device));
  CHECK(device == 1);
  OK(cuCtxGetApiVersion(two, &version));
  CHECK(version >= 3020);
  OK(cuCtxGetId(one, &id1));
  OK(cuCtxGetId(two, &id2));
  CHECK(id1 != id2);
  OK(cuCtxPopCurrent(&popped));
  CHECK(popped == two && current() == one);
  OK(cuCtxPushCurrent(two));
  OK(cuCtxPushCurrent(two)); /* twice is allowed */
  OK(cuCtxPopCurrent(NULL));
  CHECK(current() == two);
  OK(cuCtxSetCurrent(one)); /* replaces the top */
  OK(cuCtxPopCurrent(&popped));
  CHECK(popped == one && current() == one);
  OK(cuCtxSetCurrent(NULL)); /* takes the top away */
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&popped));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
  OK(cuCtxDestroy(one));
  OK(cuCtxDestroy(two));
}

static void bad_input(void) {
  CUcontext gone;
  CUdeviceptr memory;
  OK(cuCtxCreate(&gone, NULL, 0, 0));
  OK(cuCtxDestroy(gone)); /* the current one: it leaves the stack */
  CHECK(current() == NULL);
  CHECK(cuCtxDestroy(gone) != CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent(gone) != CUDA_SUCCESS);
  CHECK(cuCtxPushCurrent(gone) != CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent((CUcontext)(uintptr_t)0x1234567) != CUDA_SUCCESS);
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&memory, 16));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxGetCurrent(NULL));
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate(&gone, NULL, 0, 4711));
}

static void limits(void) {
  CUcontext context;
  size_t value = 0;
  int least = 1, greatest = 1;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
  OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
  CHECK(value == 4096);
  EXPECT(CUDA_ERROR_UNSUPPORTED_LIMIT, cuCtxGetLimit(&value, (CUlimit)4711));
  OK(cuCtxGetStreamPriorityRange(&least, &greatest));
  CHECK(least == 0 && greatest < 0);
  OK(cuCtxSynchronize());
  OK(cuDevicePrimaryCtxReset(0));
  OK(cuCtxSetCurrent(NULL));
}

int main(void) {
  OK(cuInit(0));
  CHECK(current() == NULL);
  primary();
  stack();
  bad_input();
  int before = open_fds();
  for (int i = 0; i < 20; i++) stack();
  CHECK(open_fds() == before);
  limits();
  return 0;
}
