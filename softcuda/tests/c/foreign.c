/* Streams, events and functions of other contexts and threads: what may be used together, and what may not, whichever
 * context is current. Three contexts: two on one device, one on another. */
#include <cuda.h>
#include <pthread.h>
#include <softcuda.h>
#include <stdatomic.h>

#include "check.h"

enum { CONTEXTS = 3 };

static void wait_for(const softcudaBlock *block, void *const *params) {
  atomic_int *word = *(atomic_int **)params[0];
  (void)block;
  while (!atomic_load(word)) sleep_ms(1);
}

static const uint32_t sizes[] = {8};
static const softcudaFunction functions[] = {{"wait_for", wait_for, 0, 1, 1, 0, sizes}};
static const softcudaImage image = {SOFTCUDA_IMAGE_MAGIC, SOFTCUDA_IMAGE_VERSION, 1, 0, functions};

typedef struct {
  CUcontext context;
  CUdevice device;
  CUstream stream, apart;
  CUevent event, timed;
  CUmodule module;
  CUfunction function;
  CUdeviceptr memory;
} home;

static home homes[CONTEXTS];
static atomic_int go = 1, never_set_here;

static void make(home *h, CUdevice device) {
  h->device = device;
  OK(cuCtxCreate(&h->context, NULL, 0, device));
  OK(cuStreamCreate(&h->stream, CU_STREAM_DEFAULT));
  OK(cuStreamCreate(&h->apart, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&h->event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&h->timed, CU_EVENT_DEFAULT));
  OK(softcudaModuleLoadImage(&h->module, &image));
  OK(cuModuleGetFunction(&h->function, h->module, "wait_for"));
  OK(cuMemAlloc(&h->memory, 64));
}

static CUresult launch(CUfunction function, CUstream stream, atomic_int *word) {
  void *params[] = {&word};
  return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static CUresult launch_ex(CUfunction function, CUstream stream) {
  atomic_int *word = &go;
  void *params[] = {&word};
  CUlaunchConfig config;
  memset(&config, 0, sizeof config);
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  return cuLaunchKernelEx(&config, function, params, NULL);
}

static unsigned long long id_of(CUstream stream) {
  unsigned long long id = 0;
  OK(cuStreamGetId(stream, &id));
  return id;
}

static CUcontext context_of(CUstream stream) {
  CUcontext context = NULL;
  OK(cuStreamGetCtx(stream, &context));
  return context;
}

/* For a function, an event or a stream that goes by its own context: the same if both are of one context. */
static CUresult both(const home *a, const home *b) { return a == b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }

/* Every function, event and stream with every stream, whatever is current. */
static void pairs(const home *current, const home *a, const home *b) {
  OK(cuCtxSetCurrent(current->context));
  EXPECT(both(a, b), launch(a->function, b->stream, &go));
  EXPECT(both(a, b), launch_ex(a->function, b->apart));
  EXPECT(both(a, b), cuEventRecord(a->event, b->stream));
  EXPECT(both(a, b), cuEventRecordWithFlags(a->event, b->apart, 0));
  OK(cuStreamWaitEvent(b->stream, a->event, 0)); /* of any context and device */
  OK(cuEventRecord(a->timed, a->apart));
  OK(cuEventRecord(b->timed, b->apart));
  OK(cuStreamSynchronize(a->apart));
  OK(cuStreamSynchronize(b->apart));
  OK(cuEventSynchronize(a->event));
  OK(cuEventQuery(a->event));
  float ms;
  EXPECT(both(a, b), cuEventElapsedTime(&ms, a->timed, b->timed));
  CHECK(context_of(b->stream) == b->context && context_of(b->apart) == b->context);
  /* copies go by the stream, between memory of any contexts */
  OK(cuMemcpyAsync(a->memory, b->memory, 64, b->stream));
  OK(cuStreamSynchronize(b->stream));
  OK(cuStreamQuery(b->stream));
}

/* The default streams are the current context's: functions and events must be of that one. */
static void defaults(const home *current, const home *a) {
  CUstream streams[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
  OK(cuCtxSetCurrent(current->context));
  for (int i = 0; i < 3; i++) {
    EXPECT(both(a, current), launch(a->function, streams[i], &go));
    EXPECT(both(a, current), launch_ex(a->function, streams[i]));
    EXPECT(both(a, current), cuEventRecord(a->event, streams[i]));
    OK(cuStreamWaitEvent(streams[i], a->event, 0));
    CHECK(context_of(streams[i]) == current->context);
    OK(cuStreamSynchronize(streams[i]));
  }
  CHECK(id_of(NULL) == id_of(CU_STREAM_LEGACY) && id_of(NULL) != id_of(CU_STREAM_PER_THREAD));
}

/* In the legacy stream's context it is a barrier, for others it is none. */
static void barriers(const home *a, const home *b) {
  atomic_int stuck = 0;
  OK(cuCtxSetCurrent(a->context));
  OK(launch(a->function, NULL, &stuck));
  OK(cuMemsetD8Async(a->memory, 1, 64, a->stream));
  OK(cuMemsetD8Async(b->memory, 1, 64, b->stream));
  OK(cuStreamSynchronize(b->stream));
  OK(cuCtxSetCurrent(b->context));
  OK(launch(b->function, NULL, &go));
  OK(launch(b->function, CU_STREAM_PER_THREAD, &go));
  OK(cuStreamSynchronize(NULL));
  OK(cuCtxSynchronize());
  EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(a->stream));
  atomic_store(&stuck, 1);
  OK(cuStreamSynchronize(a->stream));
}

typedef struct {
  unsigned long long ids[CONTEXTS], legacy[CONTEXTS];
  CUevent event;
} thread_view;

/* A thread's own default streams go with it; what they were given is still done. */
static void *own_streams(void *arg) {
  thread_view *view = arg;
  for (int i = 0; i < CONTEXTS; i++) {
    OK(cuCtxSetCurrent(homes[i].context));
    view->ids[i] = id_of(CU_STREAM_PER_THREAD);
    view->legacy[i] = id_of(NULL);
  }
  OK(launch(homes[CONTEXTS - 1].function, CU_STREAM_PER_THREAD, &never_set_here));
  OK(cuEventRecord(homes[CONTEXTS - 1].event, CU_STREAM_PER_THREAD));
  return NULL;
}

static void threads(void) {
  thread_view views[3];
  pthread_t thread;
  for (int i = 0; i < 2; i++) {
    atomic_store(&never_set_here, 0);
    OK(pthread_create(&thread, NULL, own_streams, &views[i]));
    OK(pthread_join(thread, NULL));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(homes[CONTEXTS - 1].event));
    atomic_store(&never_set_here, 1);
    OK(cuEventSynchronize(homes[CONTEXTS - 1].event));
  }
  own_streams(&views[2]);
  for (int i = 0; i < 3 * CONTEXTS; i++) {
    for (int j = 0; j < 3 * CONTEXTS; j++) {
      const thread_view *v = &views[i / CONTEXTS], *w = &views[j / CONTEXTS];
      CHECK((v->ids[i % CONTEXTS] == w->ids[j % CONTEXTS]) == (i == j)); /* one for each thread and context */
      CHECK((v->legacy[i % CONTEXTS] == w->legacy[j % CONTEXTS]) == (i % CONTEXTS == j % CONTEXTS));
      CHECK(v->ids[i % CONTEXTS] != w->legacy[j % CONTEXTS]);
    }
  }
}

/* A destroyed stream's or event's handle is invalid for good, also when others take its place; so is a handle of the
 * wrong kind. */
static void stale(const home *h) {
  enum { ROUNDS = 300 };
  static CUstream streams[ROUNDS];
  static CUevent events[ROUNDS];
  OK(cuCtxSetCurrent(h->context));
  for (int i = 0; i < ROUNDS; i++) {
    OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    OK(cuStreamDestroy(streams[i]));
    OK(cuEventDestroy(events[i]));
    for (int j = 0; j <= i; j++) {
      EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(streams[j]));
      EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(events[j]));
      CHECK(i == j || (streams[i] != streams[j] && events[i] != events[j]));
    }
  }
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize((CUstream)h->event));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventSynchronize((CUevent)h->stream));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, launch((CUfunction)h->module, h->stream, &go));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent((CUcontext)h->stream));
}

int main(void) {
  OK(cuInit(0));
  for (int i = 0; i < CONTEXTS; i++) make(&homes[i], i / 2);
  for (int c = 0; c < CONTEXTS; c++) {
    for (int a = 0; a < CONTEXTS; a++) {
      for (int b = 0; b < CONTEXTS; b++) pairs(&homes[c], &homes[a], &homes[b]);
      defaults(&homes[c], &homes[a]);
      if (a != c) barriers(&homes[c], &homes[a]);
    }
  }
  threads();
  stale(&homes[1]);
  for (int i = 0; i < CONTEXTS; i++) OK(cuCtxDestroy(homes[i].context));
  return 0;
}
