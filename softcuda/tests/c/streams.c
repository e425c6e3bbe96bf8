/* Streams and events: what is ordered is ordered, what is not can be waited for. */
#include <cuda.h>
#include <pthread.h>

#include "check.h"

enum { N = 4096 };

/* A stream can be held up by a host function that waits for the gate to open. */
typedef struct gate {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int open;
} gate;

static void wait_at_gate(void *arg) {
  gate *g = arg;
  pthread_mutex_lock(&g->lock);
  while (!g->open) pthread_cond_wait(&g->changed, &g->lock);
  pthread_mutex_unlock(&g->lock);
}

static void open_gate(gate *g) {
  pthread_mutex_lock(&g->lock);
  g->open = 1;
  pthread_cond_broadcast(&g->changed);
  pthread_mutex_unlock(&g->lock);
}

#define GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}

/* A copy behind a closed gate does not happen; a query says so and is no error. */
static void in_order(CUdeviceptr p) {
  gate g = GATE;
  CUstream stream;
  CUevent event;
  void *pinned;
  OK(cuMemAllocHost(&pinned, N));
  memset(pinned, 0, N);
  OK(cuMemsetD8(p, 0x11, N));
  OK(cuStreamSynchronize(NULL)); /* a fill of device memory does not wait by itself */
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventQuery(event)); /* never recorded: complete */
  OK(cuLaunchHostFunc(stream, wait_at_gate, &g));
  OK(cuMemsetD8Async(p, 0x22, N, stream));
  OK(cuMemcpyDtoHAsync(pinned, p, N, stream));
  OK(cuEventRecord(event, stream));
  EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  sleep_ms(20);
  CHECK(((volatile char *)pinned)[0] == 0);
  open_gate(&g);
  OK(cuEventSynchronize(event));
  OK(cuEventQuery(event));
  for (int i = 0; i < N; i++) CHECK(((char *)pinned)[i] == 0x22);
  OK(cuStreamSynchronize(stream));
  OK(cuStreamQuery(stream));
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(stream));
  OK(cuMemFreeHost(pinned));
}

/* One stream waits for an event of another, as it stood when the wait was made. */
static void between_streams(CUdeviceptr p) {
  gate first = GATE, second = GATE;
  CUstream a, b;
  CUevent event;
  unsigned char seen[N];
  OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreateWithPriority(&b, CU_STREAM_NON_BLOCKING, -1));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuMemsetD8(p, 0, N));
  OK(cuStreamSynchronize(NULL));
  OK(cuLaunchHostFunc(a, wait_at_gate, &first));
  OK(cuMemsetD8Async(p, 1, N, a));
  OK(cuEventRecord(event, a));
  OK(cuStreamWaitEvent(b, event, 0));
  OK(cuMemsetD8Async(p, 2, N / 2, b));
  /* recording again does not move what b waits for */
  OK(cuLaunchHostFunc(a, wait_at_gate, &second));
  OK(cuEventRecord(event, a));
  EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
  open_gate(&first);
  OK(cuStreamSynchronize(b));
  EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  OK(cuMemcpyDtoHAsync(seen, p, N, b));
  OK(cuStreamSynchronize(b));
  CHECK(seen[0] == 2 && seen[N / 2 - 1] == 2 && seen[N / 2] == 1 && seen[N - 1] == 1);
  open_gate(&second);
  OK(cuStreamSynchronize(a));
  /* an event can go while a stream still waits for it */
  OK(cuEventRecord(event, a));
  OK(cuStreamWaitEvent(b, event, 0));
  OK(cuEventDestroy(event));
  OK(cuStreamSynchronize(b));
  OK(cuStreamDestroy(a));
  OK(cuStreamDestroy(b));
}

/* The legacy stream waits for all blocking streams and they for it; non-blocking streams take no part. */
static void legacy(CUdeviceptr p) {
  gate g = GATE, h = GATE;
  CUstream blocking, free_one;
  CUevent event;
  unsigned char seen = 0;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuStreamCreate(&free_one, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuLaunchHostFunc(free_one, wait_at_gate, &h));
  OK(cuLaunchHostFunc(blocking, wait_at_gate, &g));
  OK(cuMemsetD8Async(p, 1, N, blocking));
  OK(cuMemsetD8Async(p, 2, N, CU_STREAM_LEGACY));
  OK(cuEventRecord(event, NULL));
  OK(cuMemsetD8Async(p, 3, N, blocking));
  sleep_ms(10);
  EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
  open_gate(&g);
  OK(cuEventSynchronize(event));
  OK(cuStreamSynchronize(blocking));
  EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(free_one));
  OK(cuMemcpyDtoH(&seen, p + 5, 1));
  CHECK(seen == 3);
  open_gate(&h);
  OK(cuCtxSynchronize());
  OK(cuStreamQuery(free_one));
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(blocking));
  OK(cuStreamDestroy(free_one));
}

static void timing(void) {
  CUevent start, end, untimed;
  CUstream stream;
  float ms = -1;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&start, CU_EVENT_DEFAULT));
  OK(cuEventCreate(&end, CU_EVENT_BLOCKING_SYNC));
  OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, start, end)); /* not recorded */
  gate g = GATE;
  OK(cuEventRecord(start, stream));
  OK(cuLaunchHostFunc(stream, wait_at_gate, &g));
  OK(cuEventRecord(end, stream));
  OK(cuEventSynchronize(start));
  EXPECT(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, start, end));
  sleep_ms(10);
  open_gate(&g);
  OK(cuEventSynchronize(end));
  OK(cuEventElapsedTime(&ms, start, end));
  CHECK(ms >= 9 && ms < 60000);
  OK(cuEventRecord(untimed, stream));
  OK(cuStreamSynchronize(stream));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, start, untimed));
  OK(cuEventDestroy(start));
  OK(cuEventDestroy(end));
  OK(cuEventDestroy(untimed));
  OK(cuStreamDestroy(stream));
}

static void facts_and_bad_input(void) {
  CUstream stream;
  CUevent event;
  unsigned int flags = 99;
  int priority = 99;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -1000)); /* out of range: clamped */
  OK(cuStreamGetFlags(stream, &flags));
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  int least, greatest;
  OK(cuCtxGetStreamPriorityRange(&least, &greatest));
  OK(cuStreamGetPriority(stream, &priority));
  CHECK(priority == greatest);
  OK(cuStreamIsCapturing(stream, &capture));
  CHECK(capture == CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&stream, 0x80));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(NULL, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&event, 0x80));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(NULL, stream));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(stream, NULL, NULL));
  OK(cuStreamDestroy(stream));
  CHECK(cuStreamSynchronize(stream) != CUDA_SUCCESS); /* gone */
  CHECK(cuStreamDestroy(stream) != CUDA_SUCCESS);
  CHECK(cuStreamQuery((CUstream)(uintptr_t)0x77777770) != CUDA_SUCCESS);
}

int main(void) {
  CUcontext context;
  CUdeviceptr p;
  int before = 0;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuMemAlloc(&p, N));
  for (int i = 0; i < 4; i++) {
    in_order(p);
    between_streams(p);
    legacy(p);
    timing();
    facts_and_bad_input();
    if (i == 0) before = open_fds();
  }
  CHECK(open_fds() == before);
  OK(cuMemFree(p));
  return 0;
}
