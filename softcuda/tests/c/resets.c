/* The end of a context: by reset, by the last release, by destruction. Nothing of it may work afterwards, or come back
 * in its next life. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <signal.h>
#include <softcuda.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "check.h"

enum { PAGE = 4096 };

static void nothing(const softcudaBlock *block, void *const *params) {
  (void)block;
  (void)params;
}

static const softcudaFunction functions[] = {{"nothing", nothing, 0, 1, 0, 0, NULL}};
static const softcudaImage image = {SOFTCUDA_IMAGE_MAGIC, SOFTCUDA_IMAGE_VERSION, 1, 0, functions};
static _Alignas(PAGE) unsigned char own[PAGE];

/* One of everything, made in the current context. */
typedef struct {
  CUstream stream;
  CUevent event;
  CUmodule module;
  CUfunction function;
  CUdeviceptr device, pooled;
  int *pinned;
  CUgraph graph;
  CUgraphExec exec, fill;
  unsigned long long context, legacy, per_thread, buffers[3];
} everything;

static unsigned long long stream_id(CUstream stream) {
  unsigned long long id = 0;
  OK(cuStreamGetId(stream, &id));
  return id;
}

static unsigned long long buffer_id(void *p) {
  unsigned long long id = 0;
  OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)p));
  return id;
}

static CUcontext context_of(void *p) {
  CUcontext context = NULL;
  OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, (CUdeviceptr)p));
  return context;
}

static CUresult launch(CUfunction function, CUstream stream) {
  return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void make(everything *e) {
  CUcontext current;
  OK(cuCtxGetCurrent(&current));
  OK(cuStreamCreate(&e->stream, CU_STREAM_DEFAULT));
  OK(cuEventCreate(&e->event, CU_EVENT_DEFAULT));
  OK(softcudaModuleLoadImage(&e->module, &image));
  OK(cuModuleGetFunction(&e->function, e->module, "nothing"));
  OK(cuMemAlloc(&e->device, 100));
  OK(cuMemAllocAsync(&e->pooled, 100, e->stream));
  OK(cuMemHostAlloc((void **)&e->pinned, 100, 0));
  OK(cuMemHostRegister(own, PAGE, 0));
  OK(cuStreamBeginCapture(e->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(launch(e->function, e->stream));
  OK(cuStreamEndCapture(e->stream, &e->graph));
  OK(cuGraphInstantiate(&e->exec, e->graph, 0));
  OK(cuGraphLaunch(e->exec, e->stream));
  OK(cuStreamBeginCapture(e->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemsetD8Async(e->device, 1, 100, e->stream));
  OK(cuStreamEndCapture(e->stream, &e->graph));
  OK(cuGraphInstantiate(&e->fill, e->graph, 0));
  OK(cuGraphLaunch(e->fill, e->stream));
  OK(launch(e->function, e->stream));
  OK(launch(e->function, 0));
  OK(launch(e->function, CU_STREAM_PER_THREAD));
  OK(cuEventRecord(e->event, e->stream));
  *e->pinned = 7;
  own[5] = 5;
  OK(cuCtxGetId(current, &e->context));
  e->legacy = stream_id(0);
  e->per_thread = stream_id(CU_STREAM_PER_THREAD);
  e->buffers[0] = buffer_id((void *)e->device);
  e->buffers[1] = buffer_id(e->pinned);
  e->buffers[2] = buffer_id(own);
  CHECK(e->buffers[0] && e->buffers[1] && e->buffers[2] && e->buffers[0] != e->buffers[1]);
  CHECK(context_of((void *)e->device) == current && context_of(e->pinned) == current && context_of(own) == current);
}

/* Nothing answers to the old handles and addresses, whatever is current. */
static void gone(const everything *e) {
  CUstream stream;
  CUcontext context;
  unsigned long long id;
  void *p;
  int flag;
  float ms;
  EXPECT(CUDA_ERROR_INVALID_HANDLE, launch(e->function, e->stream));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, launch(e->function, 0));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(e->stream));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(e->stream));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamGetId(e->stream, &id));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamGetCtx(e->stream, &context));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamWaitEvent(e->stream, e->event, 0));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(e->event, e->stream));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(e->event));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventSynchronize(e->event));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, e->event, e->event));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuFuncGetAttribute(&flag, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, e->function));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction((CUfunction *)&p, e->module, "nothing"));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuMemsetD8Async(e->device, 0, 1, e->stream));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(e->exec, e->stream));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(e->stream));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy(e->event));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(e->module));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, e->device));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, e->pooled));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)e->pinned));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)own));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(e->device));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(e->pinned));
  EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own));
  CHECK(own[5] == 5); /* registered memory is the program's own */
  CHECK(cuStreamCreate(&stream, 0) != CUDA_SUCCESS || cuStreamDestroy(stream) == CUDA_SUCCESS);
}

/* Reading what was pinned there is a crash, not luck. */
static void unmapped(const int *pinned) {
  pid_t child = fork();
  int status;
  CHECK(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    _exit(*(volatile const int *)pinned == 7 ? 1 : 2);
  }
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* The current context is in the list of the dead: no call that needs one works. */
static void dead(CUcontext context, CUresult named) {
  CUdeviceptr memory;
  CUstream stream;
  CUevent event;
  CUdevice device;
  CUcontext current, other;
  CUmodule module;
  unsigned long long id;
  void *host;
  OK(cuCtxGetCurrent(&current));
  CHECK(current == context); /* it stays current, which is no use */
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&memory, 16));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemHostAlloc(&host, 16, 0));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemHostRegister(own, PAGE, 0));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamCreate(&stream, 0));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuEventCreate(&event, 0));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, softcudaModuleLoadImage(&module, &image));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxGetDevice(&device));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamSynchronize(0));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamSynchronize(CU_STREAM_LEGACY));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamQuery(CU_STREAM_PER_THREAD));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamGetCtx(0, &other));
  EXPECT(named, cuCtxGetId(context, &id));
  EXPECT(named, cuCtxPushCurrent(context));
  EXPECT(named, cuCtxSetCurrent(context));
  EXPECT(named, cuMemcpyPeer(1, context, 2, context, 3));
}

/* What has the same handles now is something else. */
static void anew(const everything *old) {
  everything now;
  make(&now);
  CHECK(now.context != old->context);
  CHECK(now.legacy != old->legacy && now.per_thread != old->per_thread);
  CHECK(now.stream != old->stream && now.event != old->event && now.module != old->module);
  for (int i = 0; i < 3; i++) {
    for (int j = 0; j < 3; j++) CHECK(now.buffers[i] != old->buffers[j]);
  }
  OK(cuCtxSynchronize());
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuGraphLaunch(old->exec, now.stream)); /* its kernel is of the old life */
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuGraphLaunch(old->fill, now.stream)); /* and this one's memory */
  OK(cuGraphLaunch(now.exec, now.stream));
  OK(cuMemHostUnregister(own));
  gone(&(everything){.stream = old->stream, .event = old->event, .module = old->module, .function = old->function,
                     .exec = old->exec, .device = 0x1000, .pooled = 0x1000, .pinned = (int *)0x1000});
}

static atomic_int step;

static void await(int wanted) {
  while (atomic_load(&step) < wanted) sleep_ms(1);
}

static void *bystander(void *arg) {
  CUcontext context = (CUcontext)arg;
  unsigned long long before, id;
  OK(cuCtxSetCurrent(context));
  before = stream_id(CU_STREAM_PER_THREAD);
  OK(cuMemsetD8Async(0, 0, 0, CU_STREAM_PER_THREAD));
  atomic_store(&step, 1);
  await(2);
  dead(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  atomic_store(&step, 3);
  await(4); /* somebody retains it: it works again, here too */
  id = stream_id(CU_STREAM_PER_THREAD);
  CHECK(id != before);
  OK(cuCtxSynchronize());
  return NULL;
}

static void primary_state(CUdevice device, int wanted) {
  unsigned int flags;
  int active;
  OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
  CHECK(active == wanted);
}

static void reset_by_driver(void) {
  CUcontext context, again, peer;
  everything before;
  pthread_t thread;
  OK(cuDevicePrimaryCtxRetain(&peer, 1));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(peer));
  OK(cuCtxEnablePeerAccess(context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuCtxEnablePeerAccess(peer, 0));
  make(&before);
  atomic_store(&step, 0);
  OK(pthread_create(&thread, NULL, bystander, context));
  await(1);
  OK(cuDevicePrimaryCtxReset(0));
  OK(cuDevicePrimaryCtxReset(0)); /* nothing is left to be reset */
  atomic_store(&step, 2);
  await(3);
  primary_state(0, 0);
  dead(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  gone(&(everything){.stream = before.stream,
                     .event = before.event,
                     .module = before.module,
                     .function = before.function,
                     .exec = before.exec,
                     .device = before.device,
                     .pooled = before.pooled,
                     .pinned = before.pinned});
  unmapped(before.pinned);
  /* The reset has not released it: one release, and no more. */
  OK(cuDevicePrimaryCtxRetain(&again, 0));
  CHECK(again == context);
  OK(cuDevicePrimaryCtxRelease(0));
  primary_state(0, 1);
  atomic_store(&step, 4);
  OK(pthread_join(thread, NULL));
  anew(&before);
  OK(cuCtxEnablePeerAccess(peer, 0)); /* access went with the context, in both directions */
  OK(cuCtxSetCurrent(peer));
  OK(cuCtxEnablePeerAccess(context, 0));
  OK(cuDevicePrimaryCtxReset(0));
  OK(cuDevicePrimaryCtxRetain(&again, 0));
  EXPECT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(context));
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuDevicePrimaryCtxReset(0));
  OK(cuDevicePrimaryCtxRelease(0)); /* after a reset, too */
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
  OK(cuDevicePrimaryCtxRelease(1));
  OK(cuCtxSetCurrent(NULL));
}

static void last_release(void) {
  CUcontext context;
  everything before;
  OK(cuDevicePrimaryCtxRetain(&context, 2));
  OK(cuCtxSetCurrent(context));
  make(&before);
  OK(cuDevicePrimaryCtxRelease(2));
  dead(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  gone(&before);
  unmapped(before.pinned);
  OK(cuDevicePrimaryCtxRetain(&context, 2));
  anew(&before);
  OK(cuDevicePrimaryCtxRelease(2));
  OK(cuCtxSetCurrent(NULL));
}

static void *destroyer(void *arg) {
  OK(cuCtxDestroy((CUcontext)arg));
  return NULL;
}

/* A context of the program's own, destroyed by another thread while it is current here. */
static void destroyed(CUdevice device) {
  CUcontext context, again;
  everything before;
  pthread_t thread;
  OK(cuCtxCreate(&context, NULL, 0, device));
  make(&before);
  OK(pthread_create(&thread, NULL, destroyer, context));
  OK(pthread_join(thread, NULL));
  dead(context, CUDA_ERROR_INVALID_CONTEXT);
  gone(&before);
  unmapped(before.pinned);
  OK(cuCtxPopCurrent(NULL));
  OK(cuCtxCreate(&again, NULL, 0, device));
  CHECK(again != context);
  anew(&before);
  OK(cuCtxDestroy(again));
}

/* The runtime begins anew at the next call, here and in other threads, and keeps one reference, not two. */
static void reset_by_runtime(int by_driver) {
  void *p, *pinned, *q;
  CUcontext context;
  unsigned long long before, after;
  OK(cudaSetDevice(3));
  OK(cudaMalloc(&p, 100));
  OK(cudaHostAlloc(&pinned, 100, 0));
  *(int *)pinned = 7;
  OK(cuCtxGetCurrent(&context));
  OK(cuCtxGetId(NULL, &before));
  if (by_driver) {
    OK(cuDevicePrimaryCtxReset(3));
  } else {
    OK(cudaDeviceReset());
  }
  primary_state(3, 0);
  unmapped(pinned);
  OK(cudaMalloc(&q, 100));
  primary_state(3, 1);
  OK(cuCtxGetId(context, &after));
  CHECK(after != before);
  OK(cudaFree(q));
  OK(cudaDeviceReset()); /* with it goes the runtime's reference, the only one */
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(3));
}

int main(void) {
  OK(cuInit(0));
  reset_by_driver();
  last_release();
  for (int round = 0; round < 3; round++) destroyed(round);
  reset_by_runtime(0);
  reset_by_runtime(1);
  return 0;
}
