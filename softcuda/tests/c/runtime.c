/* A program of the runtime API alone: implicit contexts, the default stream, errors per thread, and a few kernels that
 * cannot run here. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

enum { N = 1 << 16 };
static unsigned char host[N], back[N];

static void errors(void) {
  void *p;
  CHECK(cudaGetLastError() == cudaSuccess);
  EXPECT(cudaErrorInvalidDevice, cudaSetDevice(4711));
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidDevice);
  OK(cudaMalloc(&p, 10)); /* success does not clear */
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaSuccess);
  OK(cudaFree(p));
  EXPECT(cudaErrorInvalidValue, cudaFree((void *)(uintptr_t)0x1234));
  EXPECT(cudaErrorInvalidMemcpyDirection, cudaMemcpy(host, back, 1, (enum cudaMemcpyKind)9));
  EXPECT(cudaErrorInvalidMemcpyDirection, cudaGetLastError());
  CHECK(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
  CHECK(strcmp(cudaGetErrorName(cudaErrorInvalidDeviceFunction), "cudaErrorInvalidDeviceFunction") == 0);
  CHECK(strstr(cudaGetErrorString(cudaErrorMemoryAllocation), "memory") != NULL);
  CHECK(strstr(cudaGetErrorString(cudaErrorInvalidDeviceFunction), "function") != NULL);
  CHECK(cudaGetErrorName((cudaError_t)12345) != NULL && cudaGetErrorString((cudaError_t)12345) != NULL);
}

static void *clean_thread(void *arg) {
  int device = -1;
  (void)arg;
  CHECK(cudaPeekAtLastError() == cudaSuccess);
  OK(cudaGetDevice(&device));
  CHECK(device == 0); /* each thread starts with device 0 */
  EXPECT(cudaErrorInvalidValue, cudaMemset((void *)(uintptr_t)0x1000, 0, 1));
  return NULL;
}

static void threads(void) {
  pthread_t thread;
  int device = -1;
  OK(cudaSetDevice(1));
  EXPECT(cudaErrorInvalidDevice, cudaSetDevice(-1));
  OK(pthread_create(&thread, NULL, clean_thread, NULL));
  OK(pthread_join(thread, NULL));
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice); /* this thread's own */
  OK(cudaGetDevice(&device));
  CHECK(device == 1);
  OK(cudaSetDevice(0));
}

static void copies(void) {
  unsigned char *p, *q, *pinned;
  size_t pitch, available, total;
  OK(cudaMalloc((void **)&p, N));
  OK(cudaMalloc((void **)&q, N));
  OK(cudaMemGetInfo(&available, &total));
  CHECK(available < total);
  for (int i = 0; i < N; i++) host[i] = (unsigned char)(i % 253);
  OK(cudaMemcpy(p, host, N, cudaMemcpyHostToDevice));
  OK(cudaMemcpy(q, p, N, cudaMemcpyDeviceToDevice));
  OK(cudaMemcpy(back, q, N, cudaMemcpyDeviceToHost));
  CHECK(memcmp(host, back, N) == 0);
  OK(cudaMemset(p, 1, N));
  OK(cudaMemcpy(back, p, N, cudaMemcpyDefault));
  CHECK(back[0] == 1 && back[N - 1] == 1);
  OK(cudaMemcpy(back, host, N, cudaMemcpyHostToHost));
  CHECK(memcmp(host, back, N) == 0);
  OK(cudaHostAlloc((void **)&pinned, N, cudaHostAllocPortable));
  OK(cudaMemcpyAsync(pinned, q, N, cudaMemcpyDeviceToHost, 0));
  OK(cudaStreamSynchronize(0));
  CHECK(memcmp(host, pinned, N) == 0);
  OK(cudaFreeHost(pinned));
  OK(cudaFree(p));
  OK(cudaFree(q));
  OK(cudaMallocPitch((void **)&p, &pitch, 100, 5));
  OK(cudaMemcpy2D(p, pitch, host, 100, 100, 5, cudaMemcpyHostToDevice));
  OK(cudaMemset2D(p, pitch, 0, 10, 2));
  OK(cudaMemcpy2D(back, 100, p, pitch, 100, 5, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 500; i++) CHECK(back[i] == (i % 100 < 10 && i < 200 ? 0 : host[i]));
  EXPECT(cudaErrorInvalidPitchValue, cudaMemcpy2D(p, pitch, host, 50, 100, 5, cudaMemcpyHostToDevice));
  OK(cudaFree(p));
  OK(cudaFree(NULL));
  OK(cudaFreeHost(NULL));
  p = (void *)(uintptr_t)1;
  OK(cudaMalloc((void **)&p, 0));
  CHECK(p == NULL);
  OK(cudaMallocAsync((void **)&p, 1000, 0));
  OK(cudaFreeAsync(p, 0));
  EXPECT(cudaErrorMemoryAllocation, cudaMalloc((void **)&p, (size_t)1 << 60));
  cudaGetLastError();
}

static atomic_int gate_open, calls;

static void wait_at_gate(void *arg) {
  (void)arg;
  while (!atomic_load(&gate_open)) sleep_ms(1);
  atomic_fetch_add(&calls, 1);
}

/* The default stream is a barrier for streams made without cudaStreamNonBlocking. */
static void default_stream(void) {
  cudaStream_t stream, apart;
  cudaEvent_t event, timed;
  float ms = -1;
  unsigned char *p;
  unsigned int flags;
  int priority, least, greatest, device = -1;
  OK(cudaMalloc((void **)&p, N));
  OK(cudaStreamCreate(&stream));
  OK(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
  OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  OK(cudaEventCreate(&timed));
  OK(cudaEventQuery(event));
  OK(cudaEventRecord(timed, apart));
  OK(cudaLaunchHostFunc(stream, wait_at_gate, NULL));
  OK(cudaMemsetAsync(p, 1, N, stream));
  OK(cudaMemsetAsync(p, 2, N / 2, 0));
  OK(cudaEventRecord(event, cudaStreamLegacy));
  EXPECT(cudaErrorNotReady, cudaEventQuery(event));
  EXPECT(cudaErrorNotReady, cudaStreamQuery(stream));
  CHECK(cudaGetLastError() == cudaSuccess); /* "not ready" is no error */
  OK(cudaStreamSynchronize(apart)); /* takes no part */
  atomic_store(&gate_open, 1);
  OK(cudaMemcpy(back, p, N, cudaMemcpyDeviceToHost)); /* on the default stream: waits for all */
  CHECK(atomic_load(&calls) == 1 && back[0] == 2 && back[N - 1] == 1);
  OK(cudaStreamWaitEvent(apart, event, 0));
  OK(cudaEventRecordWithFlags(event, apart, cudaEventRecordDefault));
  OK(cudaEventSynchronize(event));
  OK(cudaEventRecord(timed, apart));
  OK(cudaDeviceSynchronize());
  OK(cudaEventElapsedTime(&ms, timed, timed));
  CHECK(ms == 0);
  EXPECT(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, timed, event));
  cudaGetLastError();
  OK(cudaStreamGetFlags(apart, &flags));
  CHECK(flags == cudaStreamNonBlocking);
  OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  OK(cudaStreamGetPriority(stream, &priority));
  CHECK(priority == 0 && least == 0 && greatest < 0);
  OK(cudaStreamGetDevice(stream, &device));
  CHECK(device == 0);
  OK(cudaEventDestroy(event));
  OK(cudaEventDestroy(timed));
  OK(cudaStreamDestroy(stream));
  OK(cudaStreamDestroy(apart));
  OK(cudaFree(p));
}

static void capture_is_off(void) {
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  unsigned long long id = 1;
  OK(cudaStreamIsCapturing(0, &status));
  CHECK(status == cudaStreamCaptureStatusNone);
  status = cudaStreamCaptureStatusActive;
  OK(cudaStreamGetCaptureInfo(0, &status, &id, NULL, NULL, NULL, NULL));
  CHECK(status == cudaStreamCaptureStatusNone);
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  CHECK(mode == cudaStreamCaptureModeGlobal);
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  CHECK(mode == cudaStreamCaptureModeRelaxed);
}

/* Handles arrive whole: this process's own memory is recognised, and refused. */
static void handles(void) {
  void *p, *q;
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t shared;
  cudaEvent_t event;
  cudaMemPool_t pool, current;
  unsigned long long threshold = 4096, got = 1;
  OK(cudaMalloc(&p, 1000));
  OK(cudaIpcGetMemHandle(&memory, p));
  EXPECT(cudaErrorDeviceUninitialized, cudaIpcOpenMemHandle(&q, memory, cudaIpcMemLazyEnablePeerAccess));
  OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
  OK(cudaIpcGetEventHandle(&shared, event));
  memset(&memory, 0x33, sizeof memory);
  CHECK(cudaIpcOpenMemHandle(&q, memory, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess);
  cudaGetLastError();
  OK(cudaEventDestroy(event));
  OK(cudaFree(p));
  OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  OK(cudaDeviceGetMemPool(&current, 0));
  CHECK(pool == current);
  OK(cudaMallocFromPoolAsync(&p, 1000, pool, 0));
  OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &got));
  CHECK(got == threshold);
  OK(cudaFreeAsync(p, 0));
  OK(cudaDeviceSynchronize());
  OK(cudaMemPoolTrimTo(pool, 0));
  EXPECT(cudaErrorInvalidDevice, cudaDeviceGetMemPool(&pool, 4711));
  cudaGetLastError();
}

/* What nvcc's generated code does for a kernel called "lonely". */
extern void **__cudaRegisterFatBinary(void *binary);
extern void __cudaRegisterFatBinaryEnd(void **handle);
extern void __cudaUnregisterFatBinary(void **handle);
extern void __cudaRegisterFunction(void **handle, const char *stub, char *function, const char *name, int limit,
                                   void *tid, void *bid, void *block, void *grid, int *size);
extern unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream);
extern cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
extern cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub);
extern cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                      cudaStream_t stream);

static char lonely; /* stands for the host stub */

static void kernels_of_nvcc(void) {
  dim3 one = {1, 1, 1}, grid = {2, 3, 4}, got_grid, got_block;
  size_t shared = 0;
  cudaStream_t stream = NULL;
  cudaKernel_t kernel = NULL;
  struct cudaFuncAttributes attributes;
  int blocks;
  void *args[1] = {NULL}, **binary = __cudaRegisterFatBinary(NULL);
  CHECK(binary != NULL);
  __cudaRegisterFunction(binary, &lonely, &lonely, "lonely", -1, 0, 0, 0, 0, 0);
  __cudaRegisterFatBinaryEnd(binary);
  OK(__cudaPushCallConfiguration(grid, one, 77, NULL));
  OK(__cudaPopCallConfiguration(&got_grid, &got_block, &shared, &stream));
  CHECK(got_grid.x == 2 && got_grid.y == 3 && got_grid.z == 4 && got_block.z == 1 && shared == 77);
  EXPECT(cudaErrorMissingConfiguration, __cudaPopCallConfiguration(&got_grid, &got_block, &shared, &stream));
  cudaGetLastError();
  OK(__cudaGetKernel(&kernel, &lonely));
  EXPECT(cudaErrorInvalidDeviceFunction, __cudaLaunchKernel(kernel, one, one, args, 0, NULL));
  EXPECT(cudaErrorInvalidDeviceFunction, cudaGetLastError());
  EXPECT(cudaErrorInvalidDeviceFunction, cudaLaunchKernel(&lonely, one, one, args, 0, NULL));
  EXPECT(cudaErrorInvalidDeviceFunction, cudaLaunchKernel(&blocks, one, one, args, 0, NULL)); /* no kernel at all */
  EXPECT(cudaErrorInvalidDeviceFunction, cudaFuncGetAttributes(&attributes, &lonely));
  EXPECT(cudaErrorInvalidDeviceFunction, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &lonely, 32, 0));
  cudaGetLastError();
  __cudaUnregisterFatBinary(binary);
  EXPECT(cudaErrorInvalidDeviceFunction, __cudaGetKernel(&kernel, &lonely));
  OK(cudaDeviceSynchronize()); /* the process goes on */
  cudaGetLastError();
}

static void entry_points(void) {
  void *function = NULL;
  enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  int driver = 0, runtime = 0;
  OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, 0, &found));
  CHECK(function != NULL && found == cudaDriverEntryPointSuccess);
  OK(cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, 0, &found));
  CHECK(function == NULL && found == cudaDriverEntryPointSymbolNotFound);
  OK(cudaDriverGetVersion(&driver));
  OK(cudaRuntimeGetVersion(&runtime));
  CHECK(runtime >= 13000 && driver >= runtime);
}

static void peers(void) {
  unsigned char *here, *there;
  int can = 0;
  OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  CHECK(can == 1);
  OK(cudaDeviceEnablePeerAccess(1, 0));
  EXPECT(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
  EXPECT(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(0, 0));
  cudaGetLastError();
  OK(cudaMalloc((void **)&here, 100));
  OK(cudaMemset(here, 6, 100));
  OK(cudaSetDevice(1));
  OK(cudaMalloc((void **)&there, 100));
  OK(cudaMemcpyPeer(there, 1, here, 0, 100));
  OK(cudaMemcpy(back, there, 100, cudaMemcpyDeviceToHost));
  CHECK(back[99] == 6);
  OK(cudaFree(there));
  OK(cudaFree(here)); /* from whichever device */
  OK(cudaSetDevice(0));
  OK(cudaDeviceDisablePeerAccess(1));
}

static atomic_int step;

static void await_step(int wanted) {
  while (atomic_load(&step) < wanted) sleep_ms(1);
}

/* Uses device 1 before and after another thread resets it. */
static void *bystander(void *arg) {
  void *p;
  (void)arg;
  OK(cudaSetDevice(1));
  OK(cudaMalloc(&p, 100));
  atomic_store(&step, 1);
  await_step(2);
  OK(cudaMalloc(&p, 100));
  OK(cudaMemset(p, 0, 100));
  OK(cudaDeviceSynchronize());
  OK(cudaFree(p));
  return NULL;
}

/* After a reset everything begins anew, in this thread and in others. */
static void reset(void) {
  void *p;
  int device = -1;
  pthread_t thread;
  OK(pthread_create(&thread, NULL, bystander, NULL));
  await_step(1);
  OK(cudaSetDevice(1));
  OK(cudaMalloc(&p, 100));
  OK(cudaDeviceReset());
  OK(cudaGetDevice(&device));
  CHECK(device == 1);
  atomic_store(&step, 2);
  OK(pthread_join(thread, NULL));
  EXPECT(cudaErrorInvalidValue, cudaFree(p));
  cudaGetLastError();
  OK(cudaMalloc(&p, 100));
  OK(cudaMemset(p, 0, 100));
  OK(cudaFree(p));
  OK(cudaSetDevice(0));
}

int main(void) {
  errors();
  threads();
  copies();
  default_stream();
  capture_is_off();
  handles();
  kernels_of_nvcc();
  entry_points();
  int before = open_fds();
  copies();
  peers();
  CHECK(open_fds() == before);
  reset();
  OK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
  unsigned int flags = 0;
  OK(cudaGetDeviceFlags(&flags));
  CHECK((flags & cudaDeviceScheduleMask) == cudaDeviceScheduleBlockingSync);
  return 0;
}
