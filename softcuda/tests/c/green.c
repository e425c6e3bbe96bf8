/* Green contexts: SMs in parts, streams of their own, memory and code of the primary context. */
#include <cuda.h>
#include <pthread.h>
#include <softcuda.h>
#include <stdatomic.h>

#include "check.h"

enum { SMS = 132, SIZE = 16 };

typedef struct {
  atomic_int now, most, all, go;
} count_running_words;

/* Counts how many run at once; each stays until it is told to go, or for a moment. */
static void count_running(const softcudaBlock *block, void *const *params) {
  count_running_words *words = *(count_running_words **)params[0];
  int now = atomic_fetch_add(&words->now, 1) + 1, most = atomic_load(&words->most);
  (void)block;
  while (now > most && !atomic_compare_exchange_weak(&words->most, &most, now)) continue;
  atomic_fetch_add(&words->all, 1);
  sleep_ms(2);
  while (!atomic_load(&words->go)) sleep_ms(1);
  atomic_fetch_sub(&words->now, 1);
}

static const uint32_t sizes[] = {8};
static const softcudaFunction functions[] = {{"count_running", count_running, 0, 1, 1, 0, sizes}};
static const softcudaImage image = {SOFTCUDA_IMAGE_MAGIC, SOFTCUDA_IMAGE_VERSION, 1, 0, functions};

static CUcontext primary;
static CUfunction function;

static CUresult launch(CUfunction f, CUstream stream, unsigned int blocks, count_running_words *words) {
  void *params[] = {&words};
  return cuLaunchKernel(f, blocks, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static CUdevResource whole(CUdevice device) {
  CUdevResource resource;
  OK(cuDeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(resource.type == CU_DEV_RESOURCE_TYPE_SM && resource.nextResource == NULL);
  return resource;
}

static void resources(void) {
  CUdevResource all = whole(0), groups[9], rest, other;
  unsigned int count = 0;
  CUdevResourceDesc desc;
  int sms = 0;
  OK(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  CHECK(sms == SMS && all.sm.smCount == SMS);
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDeviceGetDevResource(0, &other, CU_DEV_RESOURCE_TYPE_INVALID));
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDeviceGetDevResource(0, &other, (CUdevResourceType)1000));
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetDevResource(4711, &other, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetDevResource(0, NULL, CU_DEV_RESOURCE_TYPE_SM));

  /* how many groups there would be */
  OK(cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 0, 0));
  CHECK(count == SMS / 8);
  OK(cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 0, 9)); /* 16 of them */
  CHECK(count == SMS / 16);
  OK(cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, 3));
  CHECK(count == SMS / 4);

  count = 9;
  OK(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, SIZE));
  CHECK(count == SMS / SIZE && rest.type == CU_DEV_RESOURCE_TYPE_SM && rest.sm.smCount == SMS % SIZE);
  for (unsigned int i = 0; i < count; i++) {
    CHECK(groups[i].type == CU_DEV_RESOURCE_TYPE_SM && groups[i].sm.smCount == SIZE);
    for (unsigned int j = 0; j < i; j++) CHECK(memcmp(&groups[i], &groups[j], sizeof rest) != 0);
  }
  count = 2;
  OK(cuDevSmResourceSplitByCount(groups + 7, &count, &all, &other, 0, 66));
  CHECK(count == 1 && groups[7].sm.smCount == 72 && other.sm.smCount == 60);
  count = 1;
  OK(cuDevSmResourceSplitByCount(groups + 7, &count, &all, &other, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING,
                                 SMS));
  CHECK(count == 1 && groups[7].sm.smCount == SMS && other.type == CU_DEV_RESOURCE_TYPE_INVALID);

  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 0, SMS + 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 64, 8));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(NULL, NULL, &all, NULL, 0, 8));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(groups, &count, NULL, NULL, 0, 8));
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, cuDevSmResourceSplitByCount(NULL, &count, &groups[0], NULL, 0, 8));
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDevSmResourceSplitByCount(NULL, &count, &other, NULL, 0, 8));
  count = 0;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(groups, &count, &all, NULL, 0, 8));

  OK(cuDevResourceGenerateDesc(&desc, groups, 3));
  CUdevResource mixed[2] = {groups[0], groups[7]}, twice[2] = {groups[0], groups[0]}, plain[2] = {all, all};
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, cuDevResourceGenerateDesc(&desc, mixed, 2));
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, cuDevResourceGenerateDesc(&desc, twice, 2));
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, cuDevResourceGenerateDesc(&desc, plain, 2));
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDevResourceGenerateDesc(&desc, &other, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc(&desc, groups, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc(NULL, groups, 1));
  memset(&other, 1, sizeof other);
  other.type = CU_DEV_RESOURCE_TYPE_SM; /* not made by the driver */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc(&desc, &other, 1));
}

static CUgreenCtx make(CUdevResource *parts, unsigned int count) {
  CUdevResourceDesc desc;
  CUgreenCtx green = NULL;
  OK(cuDevResourceGenerateDesc(&desc, parts, count));
  OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  return green;
}

static void split(CUdevResource *groups, unsigned int count) {
  CUdevResource all = whole(0);
  unsigned int made = count;
  OK(cuDevSmResourceSplitByCount(groups, &made, &all, NULL, 0, SIZE));
  CHECK(made == count);
}

static CUcontext context_of(CUgreenCtx green) {
  CUcontext context = NULL;
  OK(cuCtxFromGreenCtx(&context, green));
  return context;
}

static CUstream stream_of(CUgreenCtx green) {
  CUstream stream = NULL;
  OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  return stream;
}

static unsigned long long id_of(CUstream stream) {
  unsigned long long id = 0;
  OK(cuStreamGetId(stream, &id));
  return id;
}

static int is_active(CUdevice device) {
  unsigned int flags;
  int active;
  OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
  return active;
}

static void creation(void) {
  CUdevResource groups[2], own;
  CUdevResourceDesc desc;
  CUgreenCtx green, other;
  CUcontext current, context;
  CUdevice device = -1;
  unsigned long long id = 0, again = 0, plain = 0;
  split(groups, 2);
  OK(cuDevResourceGenerateDesc(&desc, groups, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(&green, desc, 0, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(&green, desc, 0, 3));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(&green, desc, 1, CU_GREEN_CTX_DEFAULT_STREAM));
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuGreenCtxCreate(&green, desc, 99, CU_GREEN_CTX_DEFAULT_STREAM));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(NULL, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  EXPECT(CUDA_ERROR_INVALID_VALUE,
         cuGreenCtxCreate(&green, (CUdevResourceDesc)primary, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  CHECK(!is_active(1));
  green = make(groups, 1);
  other = make(groups + 1, 1);
  OK(cuCtxGetCurrent(&current));
  CHECK(current == primary); /* nothing was made current */
  context = context_of(green);
  CHECK(context == context_of(green) && context != primary && context != context_of(other));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent((CUcontext)green)); /* not converted */
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxFromGreenCtx(&current, (CUgreenCtx)primary));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(context));
  OK(cuCtxGetId(context, &id));
  OK(cuGreenCtxGetId(green, &again));
  OK(cuCtxGetId(primary, &plain));
  CHECK(id == again && id != plain);
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxGetId(NULL, &id));
  OK(cuCtxPushCurrent(context));
  OK(cuGreenCtxGetId(NULL, &again));
  CHECK(id == again);
  OK(cuCtxGetDevice(&device));
  CHECK(device == 0);
  OK(cuGreenCtxGetDevResource(green, &own, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(own.sm.smCount == SIZE);
  OK(cuCtxGetDevResource(context, &own, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(own.sm.smCount == SIZE);
  OK(cuCtxGetDevResource(primary, &own, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(own.sm.smCount == SMS);
  OK(cuGreenCtxDestroy(other));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxDestroy(other));
  OK(cuCtxPopCurrent(&current));
  CHECK(current == context);
  /* a green context's part can be split again */
  unsigned int count = 2;
  OK(cuGreenCtxGetDevResource(green, &own, CU_DEV_RESOURCE_TYPE_SM));
  OK(cuDevSmResourceSplitByCount(groups, &count, &own, NULL, 0, 8));
  CHECK(count == 2 && groups[0].sm.smCount == 8);
  OK(cuGreenCtxDestroy(green));
}

/* Memory, code and events are the primary context's, whatever is current. */
static void sharing(CUgreenCtx green, CUgreenCtx other) {
  CUcontext context = context_of(green), owner = NULL;
  CUdeviceptr memory;
  CUmodule module;
  CUfunction own;
  CUevent event;
  CUstream stream = stream_of(green), apart = stream_of(other), plain;
  count_running_words *words;
  OK(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
  OK(cuCtxPushCurrent(context));
  OK(cuMemAlloc(&memory, 64));
  OK(cuMemHostAlloc((void **)&words, sizeof *words, 0));
  memset(words, 0, sizeof *words);
  atomic_store(&words->go, 1);
  OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
  CHECK(owner == primary);
  OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, (CUdeviceptr)words));
  CHECK(owner == primary);
  OK(softcudaModuleLoadImage(&module, &image));
  OK(cuModuleGetFunction(&own, module, "count_running"));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CUstream streams[] = {stream, apart, plain, NULL};
  for (int i = 0; i < 4; i++) {
    OK(launch(function, streams[i], 1, words));
    OK(launch(own, streams[i], 1, words));
    OK(cuMemsetD8Async(memory, 1, 64, streams[i]));
    OK(cuEventRecord(event, streams[i]));
    OK(cuEventSynchronize(event));
  }
  CHECK(atomic_load(&words->all) == 8);
  OK(cuCtxPopCurrent(NULL));
  OK(launch(own, NULL, 1, words));
  OK(cuCtxSynchronize());
  CHECK(atomic_load(&words->all) == 9);
  OK(cuStreamDestroy(stream));
  OK(cuStreamDestroy(apart));
  OK(cuStreamDestroy(plain));
  OK(cuEventDestroy(event));
  OK(cuModuleUnload(module));
  OK(cuMemFree(memory));
  OK(cuMemFreeHost(words));
}

static void no_work(void *arg) { (void)arg; }

static void streams(CUgreenCtx green) {
  CUcontext context = context_of(green), found;
  CUgreenCtx of;
  CUstream stream, own = stream_of(green), outside;
  CUdevResource resource;
  CUdevice device;
  unsigned int flags;
  unsigned long long legacy = id_of(NULL);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&stream, green, CU_STREAM_DEFAULT, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(NULL, green, CU_STREAM_NON_BLOCKING, 0));
  OK(cuStreamGetFlags(own, &flags));
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  OK(cuStreamCreate(&outside, CU_STREAM_DEFAULT));
  OK(cuCtxPushCurrent(context));
  OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT)); /* of the green context, since it is current */
  CUstream in[] = {own, stream, NULL, CU_STREAM_LEGACY};
  for (int i = 0; i < 4; i++) {
    OK(cuStreamGetCtx(in[i], &found));
    CHECK(found == context);
    OK(cuStreamGetCtx_v2(in[i], &found, &of));
    CHECK(found == primary && of == green);
    OK(cuStreamGetGreenCtx(in[i], &of));
    CHECK(of == green);
    OK(cuStreamGetDevice(in[i], &device));
    CHECK(device == 0);
    OK(cuStreamGetDevResource(in[i], &resource, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(resource.sm.smCount == SIZE);
    OK(cuStreamSynchronize(in[i]));
  }
  CHECK(id_of(NULL) != legacy && id_of(NULL) == id_of(CU_STREAM_LEGACY));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamGetCtx_v2(CU_STREAM_PER_THREAD, &found, &of)); /* there is none */
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(CU_STREAM_PER_THREAD));
  OK(cuStreamGetCtx_v2(outside, &found, &of));
  CHECK(found == primary && of == NULL);
  OK(cuStreamGetGreenCtx(outside, &of));
  CHECK(of == NULL);
  /* its default stream is a barrier in it, and in nothing else */
  count_running_words stuck = {0};
  OK(launch(function, NULL, 1, &stuck));
  CUevent event;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuLaunchHostFunc(stream, no_work, NULL));
  OK(cuEventRecord(event, stream));
  OK(cuStreamSynchronize(own));
  OK(cuCtxPopCurrent(NULL));
  count_running_words free_words = {.go = 1};
  OK(launch(function, NULL, 1, &free_words));
  OK(cuStreamSynchronize(NULL));
  OK(cuStreamSynchronize(outside));
  EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  atomic_store(&stuck.go, 1);
  OK(cuCtxSynchronize()); /* of the primary context: of its green ones as well */
  OK(cuEventQuery(event));
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(own));
  OK(cuStreamDestroy(stream));
  OK(cuStreamDestroy(outside));
}

/* No more blocks at once than the part has SMs; another part goes on meanwhile. */
static void limits(CUgreenCtx green, CUgreenCtx other) {
  CUstream stream = stream_of(green), apart = stream_of(other);
  count_running_words words = {.go = 1}, held = {0}, free_words = {.go = 1};
  OK(launch(function, stream, 3 * SIZE, &words));
  OK(cuStreamSynchronize(stream));
  CHECK(atomic_load(&words.all) == 3 * SIZE && atomic_load(&words.most) <= SIZE);
  OK(launch(function, stream, 2 * SIZE, &held)); /* more than there is room for, and none ends */
  EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  while (atomic_load(&held.all) < SIZE) sleep_ms(1);
  OK(launch(function, apart, 2 * SIZE, &free_words));
  OK(cuStreamSynchronize(apart));
  CHECK(atomic_load(&free_words.all) == 2 * SIZE && atomic_load(&held.all) == SIZE);
  atomic_store(&held.go, 1);
  OK(cuStreamSynchronize(stream));
  CHECK(atomic_load(&held.all) == 2 * SIZE && atomic_load(&held.most) == SIZE);
  count_running_words *p = &words;
  void *params[] = {&p};
  EXPECT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
         cuLaunchCooperativeKernel(function, SIZE + 1, 1, 1, 1, 1, 1, 0, stream, params));
  OK(cuLaunchCooperativeKernel(function, SIZE, 1, 1, 1, 1, 1, 0, stream, params));
  OK(cuStreamSynchronize(stream));
  OK(cuStreamDestroy(stream));
  OK(cuStreamDestroy(apart));
}

/* A record of all that a green context does, and a wait of all that it is given. */
static void events(CUgreenCtx green, CUgreenCtx other) {
  CUstream streams[] = {stream_of(green), stream_of(green)}, apart = stream_of(other);
  CUevent event, foreign;
  CUcontext context;
  count_running_words words[2] = {{0}, {0}}, after = {.go = 1};
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuGreenCtxRecordEvent(green, event)); /* nothing is there to be done */
  OK(cuEventSynchronize(event));
  for (int i = 0; i < 2; i++) OK(launch(function, streams[i], 1, &words[i]));
  OK(cuGreenCtxRecordEvent(green, event));
  OK(cuGreenCtxWaitEvent(other, event));
  CUstream late = stream_of(other);
  OK(launch(function, apart, 1, &after));
  OK(launch(function, late, 1, &after));
  atomic_store(&words[0].go, 1);
  OK(cuStreamSynchronize(streams[0]));
  EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(apart));
  sleep_ms(20);
  CHECK(atomic_load(&after.all) == 0);
  atomic_store(&words[1].go, 1);
  OK(cuStreamSynchronize(late));
  OK(cuStreamSynchronize(apart));
  CHECK(atomic_load(&after.all) == 2);
  OK(cuEventQuery(event));
  OK(cuCtxCreate(&context, NULL, 0, 1));
  OK(cuEventCreate(&foreign, CU_EVENT_DISABLE_TIMING));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGreenCtxRecordEvent(green, foreign));
  OK(cuGreenCtxWaitEvent(green, foreign)); /* of any context */
  OK(cuCtxDestroy(context));
  /* not while one of its streams captures, which the attempt spoils */
  CUgraph graph = NULL;
  OK(cuStreamBeginCapture(apart, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuGreenCtxRecordEvent(other, event));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(apart, &graph));
  OK(cuStreamBeginCapture(apart, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuGreenCtxWaitEvent(other, event));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(apart, &graph));
  OK(cuGreenCtxRecordEvent(other, event));
  OK(cuEventDestroy(event));
  for (int i = 0; i < 2; i++) OK(cuStreamDestroy(streams[i]));
  OK(cuStreamDestroy(apart));
  OK(cuStreamDestroy(late));
}

/* A graph captured in a green context's stream runs on its SMs, and ends with it. */
static void graphs(CUgreenCtx green) {
  CUstream stream = stream_of(green), outside;
  CUgraph graph, spoilt;
  CUgraphExec exec;
  count_running_words words = {.go = 1};
  OK(cuStreamCreate(&outside, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(launch(function, stream, 3 * SIZE, &words));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphLaunch(exec, outside));
  OK(cuStreamSynchronize(outside));
  CHECK(atomic_load(&words.all) == 3 * SIZE && atomic_load(&words.most) <= SIZE);
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuGreenCtxDestroy(green));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuGraphLaunch(exec, outside));
  EXPECT(CUDA_ERROR_STREAM_DETACHED, cuStreamEndCapture(stream, &spoilt));
  OK(cuStreamDestroy(stream));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  OK(cuStreamDestroy(outside));
}

static void *sets_current(void *arg) {
  CUdevice device;
  OK(cuCtxSetCurrent((CUcontext)arg));
  OK(cuCtxGetDevice(&device));
  return NULL;
}

/* Work is done before the end; streams stay, and can only be destroyed. */
static void destruction(CUdevResource *group) {
  CUgreenCtx green = make(group, 1), second;
  CUcontext context = context_of(green);
  CUstream stream = stream_of(green);
  CUdeviceptr memory;
  CUevent event;
  pthread_t thread;
  count_running_words words = {.go = 1};
  OK(cuCtxPushCurrent(context));
  OK(cuMemAlloc(&memory, 64));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(launch(function, stream, 1, &words));
  OK(pthread_create(&thread, NULL, sets_current, context));
  OK(pthread_join(thread, NULL));
  OK(cuGreenCtxDestroy(green));
  CHECK(atomic_load(&words.all) == 1);
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamSynchronize(NULL)); /* still current, which is no use */
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
  OK(cuCtxPopCurrent(NULL));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(context));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  EXPECT(CUDA_ERROR_STREAM_DETACHED, launch(function, stream, 1, &words));
  EXPECT(CUDA_ERROR_STREAM_DETACHED, cuStreamSynchronize(stream));
  EXPECT(CUDA_ERROR_STREAM_DETACHED, cuStreamQuery(stream));
  EXPECT(CUDA_ERROR_STREAM_DETACHED, cuEventRecord(event, stream));
  second = make(group, 1); /* may use the same place in the driver */
  EXPECT(CUDA_ERROR_STREAM_DETACHED, cuStreamQuery(stream));
  CHECK(context_of(second) != context && second != green);
  OK(cuStreamDestroy(stream));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(stream));
  OK(cuGreenCtxDestroy(second));
  OK(cuMemsetD8(memory, 0, 64)); /* memory and events are the primary context's */
  OK(cuEventRecord(event, NULL));
  OK(cuEventDestroy(event));
  OK(cuMemFree(memory));
}

/* It retains the primary context; a reset ends it all the same. */
static void and_the_primary(void) {
  CUdevResource all = whole(2), group;
  CUdevResourceDesc desc;
  CUgreenCtx green, again;
  CUcontext context, found;
  CUstream stream;
  unsigned int count = 1;
  OK(cuDevSmResourceSplitByCount(&group, &count, &all, NULL, 0, SIZE));
  OK(cuDevResourceGenerateDesc(&desc, &group, 1));
  CHECK(!is_active(2));
  OK(cuGreenCtxCreate(&green, desc, 2, CU_GREEN_CTX_DEFAULT_STREAM));
  CHECK(is_active(2));
  OK(cuGreenCtxDestroy(green));
  CHECK(!is_active(2));
  OK(cuGreenCtxCreate(&green, desc, 2, CU_GREEN_CTX_DEFAULT_STREAM));
  context = context_of(green);
  stream = stream_of(green);
  OK(cuDevicePrimaryCtxReset(2));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxFromGreenCtx(&found, green));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSetCurrent(context));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(stream));
  OK(cuGreenCtxCreate(&again, desc, 2, CU_GREEN_CTX_DEFAULT_STREAM));
  CHECK(is_active(2));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxFromGreenCtx(&found, green)); /* not revived */
  OK(cuGreenCtxDestroy(green));
  CHECK(is_active(2));
  OK(cuGreenCtxDestroy(again));
  CHECK(!is_active(2));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(2));
}

int main(void) {
  CUdevResource groups[3];
  CUmodule module;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxSetCurrent(primary));
  OK(softcudaModuleLoadImage(&module, &image));
  OK(cuModuleGetFunction(&function, module, "count_running"));
  resources();
  creation();
  split(groups, 3);
  CUgreenCtx green = make(groups, 1), other = make(groups + 1, 2);
  sharing(green, other);
  streams(green);
  limits(green, other);
  events(green, other);
  graphs(green);
  destruction(groups);
  OK(cuGreenCtxDestroy(other));
  and_the_primary();
  OK(cuDevicePrimaryCtxRelease(0));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
  return 0;
}
