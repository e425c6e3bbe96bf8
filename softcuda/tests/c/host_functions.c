/* Host functions and callbacks: once each, in order, with their data, and where the program expects it. */
#include <cuda.h>
#include <stdatomic.h>

#include "check.h"

enum { CALLS = 200 };

static atomic_int next_call;
static int order[CALLS];

static void note(void *arg) {
  order[atomic_fetch_add(&next_call, 1)] = (int)(intptr_t)arg;
}

static void CUDA_CB note_callback(CUstream stream, CUresult status, void *arg) {
  CHECK(stream != NULL && status == CUDA_SUCCESS);
  note(arg);
}

/* Reads device memory's copy on the host between two operations of the stream. */
typedef struct between {
  volatile unsigned char *pinned;
  int seen;
} between;

static void look(void *arg) {
  between *b = arg;
  b->seen = b->pinned[0];
}

int main(void) {
  CUcontext context;
  CUstream stream;
  CUdeviceptr p;
  void *pinned;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (intptr_t i = 0; i < CALLS; i++) {
    if (i % 3 == 0) {
      OK(cuStreamAddCallback(stream, note_callback, (void *)i, 0));
    } else {
      OK(cuLaunchHostFunc(stream, note, (void *)i));
    }
  }
  OK(cuStreamSynchronize(stream));
  CHECK(atomic_load(&next_call) == CALLS);
  for (int i = 0; i < CALLS; i++) CHECK(order[i] == i);

  OK(cuMemAlloc(&p, 64));
  OK(cuMemAllocHost(&pinned, 64));
  between one = {pinned, -1}, two = {pinned, -1};
  OK(cuMemsetD8Async(p, 1, 64, stream));
  OK(cuMemcpyDtoHAsync(pinned, p, 64, stream));
  OK(cuLaunchHostFunc(stream, look, &one));
  OK(cuMemsetD8Async(p, 2, 64, stream));
  OK(cuMemcpyDtoHAsync(pinned, p, 64, stream));
  OK(cuLaunchHostFunc(stream, look, &two));
  /* Destroying a stream lets its work finish. */
  OK(cuStreamDestroy(stream));
  OK(cuCtxSynchronize());
  CHECK(one.seen == 1 && two.seen == 2);
  OK(cuMemFree(p));
  OK(cuMemFreeHost(pinned));
  return 0;
}
