/* Captures: what belongs to one, what is forbidden meanwhile, and how each mistake ends. */
#include <cuda.h>
#include <pthread.h>

#include "check.h"

enum { N = 4096 };
static CUcontext context;
static CUdeviceptr p;

static CUstream new_stream(unsigned int flags) {
  CUstream stream;
  OK(cuStreamCreate(&stream, flags));
  return stream;
}
static CUevent new_event(void) {
  CUevent event;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}
static CUstreamCaptureStatus status_of(CUstream stream) {
  CUstreamCaptureStatus status;
  OK(cuStreamIsCapturing(stream, &status));
  return status;
}
/* Ends a capture that was spoilt: no graph, and the stream works again. */
static void end_spoilt(CUstream stream) {
  CUgraph graph = (CUgraph)(uintptr_t)1;
  CHECK(status_of(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuMemsetD8Async(p, 1, N, stream));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
  CHECK(graph == NULL);
  CHECK(status_of(stream) == CU_STREAM_CAPTURE_STATUS_NONE);
  OK(cuMemsetD8Async(p, 1, N, stream));
  OK(cuStreamSynchronize(stream));
}
static void nothing(void *data) { (void)data; }
static void callback(CUstream stream, CUresult status, void *data) { (void)stream, (void)status, (void)data; }

/* Begin and end where they must not be. */
static void brackets(void) {
  CUstream s = new_stream(CU_STREAM_NON_BLOCKING), other = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent event = new_event();
  CUgraph graph;
  EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(s, &graph));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamBeginCapture(s, (CUstreamCaptureMode)7));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemsetD8Async(p, 1, N, CU_STREAM_PER_THREAD));
  OK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(event, s));
  OK(cuStreamWaitEvent(other, event, 0));
  EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other, &graph));
  end_spoilt(s);
  /* an empty capture is a graph without nodes */
  CUgraphExec exec;
  size_t n = 9;
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuStreamEndCapture(s, &graph));
  OK(cuGraphGetNodes(graph, NULL, &n));
  CHECK(n == 0);
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphLaunch(exec, s));
  OK(cuStreamSynchronize(s));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(s));
  OK(cuStreamDestroy(other));
}

/* Asking or waiting for what has not been executed. */
static void progress(void) {
  CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent event = new_event(), timed;
  float ms;
  OK(cuEventCreate(&timed, CU_EVENT_DEFAULT));
  for (int what = 0; what < 7; what++) {
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD8Async(p, 1, N, s));
    OK(cuEventRecord(event, s));
    OK(cuEventRecord(timed, s));
    switch (what) {
      case 0: EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(s)); break;
      case 1: EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(s)); break;
      case 2: EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize(event)); break;
      case 3: EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(event)); break;
      case 4: EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize()); break;
      case 5: EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamAddCallback(s, callback, NULL, 0)); break;
      default:
        EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuEventElapsedTime(&ms, timed, timed));
        OK(cuLaunchHostFunc(s, nothing, NULL));
        EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(s));
    }
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamSynchronize(s));
    end_spoilt(s);
    /* the event still stands for a place in a graph, until it is recorded again */
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(event));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuStreamWaitEvent(s, event, 0));
    OK(cuEventRecord(event, s));
    OK(cuEventSynchronize(event));
  }
  OK(cuEventDestroy(event));
  OK(cuEventDestroy(timed));
  OK(cuStreamDestroy(s));
}

/* One of ten unsafe calls; `expected` is what it answers. */
static void unsafe_call(int which, CUresult expected) {
  CUdeviceptr fresh = 0;
  CUevent event;
  static CUdeviceptr spare;
  static void *pinned;
  CUstream s;
  char host[8];
  switch (which) {
    case 0: EXPECT(expected, cuMemAlloc(&spare, 64)); break;
    case 1:
      EXPECT(expected, cuMemFree(spare));
      spare = 0;
      break;
    case 2: EXPECT(expected, cuMemHostAlloc(&pinned, 64, 0)); break;
    case 3:
      EXPECT(expected, cuMemFreeHost(pinned));
      pinned = NULL;
      break;
    case 4: EXPECT(expected, cuMemAllocManaged(&fresh, 64, CU_MEM_ATTACH_GLOBAL)); break;
    case 5:
      s = new_stream(CU_STREAM_NON_BLOCKING);
      EXPECT(expected, cuStreamSynchronize(s));
      OK(cuStreamDestroy(s));
      break;
    case 6:
      s = new_stream(CU_STREAM_NON_BLOCKING);
      EXPECT(expected, cuStreamQuery(s));
      OK(cuStreamDestroy(s));
      break;
    case 7:
      event = new_event();
      EXPECT(expected, cuEventQuery(event));
      OK(cuEventDestroy(event));
      break;
    case 8:
      event = new_event();
      EXPECT(expected, cuEventSynchronize(event));
      OK(cuEventDestroy(event));
      break;
    default: EXPECT(expected, cuMemcpyDtoH(host, p, 8)); break;
  }
  if (fresh != 0) OK(cuMemFree(fresh));
}

static void unsafe_calls(void) {
  CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
  CUgraph graph;
  for (int which = 0; which < 10; which++) {
    if (which == 1 || which == 3) continue; /* frees what the calls before would have allocated */
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    unsafe_call(which, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_spoilt(s);
  }
  CUdeviceptr kept;
  OK(cuMemAlloc(&kept, 64));
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemFree(kept));
  end_spoilt(s);
  OK(cuMemFree(kept));
  /* a relaxed capture forbids nothing, and neither does a global one to a thread that says so */
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (int which = 0; which < 10; which++) unsafe_call(which, CUDA_SUCCESS);
  OK(cuStreamEndCapture(s, &graph));
  OK(cuGraphDestroy(graph));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
  for (int which = 0; which < 10; which++) unsafe_call(which, CUDA_SUCCESS);
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
  OK(cuStreamEndCapture(s, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuStreamDestroy(s));
}

/* Modes as other threads see them. */
typedef struct job {
  CUstream stream;
  CUstreamCaptureMode mode;
  CUresult expected, end;
} job;

static void *elsewhere(void *arg) {
  job *j = arg;
  CUgraph graph = NULL;
  CUdeviceptr fresh;
  OK(cuCtxSetCurrent(context));
  OK(cuThreadExchangeStreamCaptureMode(&j->mode));
  EXPECT(j->expected, cuMemAlloc(&fresh, 64));
  if (j->expected == CUDA_SUCCESS) OK(cuMemFree(fresh));
  EXPECT(j->end, cuStreamEndCapture(j->stream, &graph));
  if (graph != NULL) OK(cuGraphDestroy(graph));
  return NULL;
}

static void other_thread(CUstreamCaptureMode capture, CUstreamCaptureMode own, CUresult expected, CUresult end) {
  CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
  CUgraph graph;
  pthread_t thread;
  job j = {s, own, expected, end};
  OK(cuStreamBeginCapture(s, capture));
  OK(cuMemsetD8Async(p, 1, N, s));
  CHECK(pthread_create(&thread, NULL, elsewhere, &j) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  if (end == CUDA_SUCCESS) {
    CHECK(status_of(s) == CU_STREAM_CAPTURE_STATUS_NONE);
  } else if (expected != CUDA_SUCCESS) {
    end_spoilt(s);
  } else {
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphDestroy(graph));
  }
  OK(cuStreamDestroy(s));
}

static void threads(void) {
  const CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL, local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                            relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  const CUresult wrong = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, no = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  other_thread(global, global, no, wrong);
  other_thread(global, local, CUDA_SUCCESS, wrong);
  other_thread(global, relaxed, CUDA_SUCCESS, wrong);
  other_thread(local, global, CUDA_SUCCESS, wrong);
  other_thread(relaxed, global, CUDA_SUCCESS, CUDA_SUCCESS);
}

/* The legacy stream while a blocking stream captures. */
static void legacy(void) {
  CUstream blocking = new_stream(CU_STREAM_DEFAULT), free_one = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent event = new_event();
  CUgraph graph;
  CUstreamCaptureStatus status;
  OK(cuStreamBeginCapture(free_one, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemsetD8Async(p, 1, N, NULL)); /* knows nothing of it */
  OK(cuEventRecord(event, free_one));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamWaitEvent(NULL, event, 0));
  end_spoilt(free_one);
  for (int what = 0; what < 6; what++) {
    OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
    CHECK(status_of(blocking) == CU_STREAM_CAPTURE_STATUS_ACTIVE); /* asking does no harm */
    switch (what) {
      case 0: EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD8Async(p, 1, N, NULL)); break;
      case 1: EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemcpyDtoD(p, p + 64, 64)); break;
      case 2: EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuLaunchHostFunc(CU_STREAM_LEGACY, nothing, NULL)); break;
      case 3: EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuEventRecord(event, NULL)); break;
      case 4: EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamSynchronize(NULL)); break;
      default: EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamQuery(NULL)); break;
    }
    end_spoilt(blocking);
    OK(cuMemsetD8Async(p, 1, N, NULL));
    OK(cuStreamSynchronize(NULL));
  }
  OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuStreamEndCapture(blocking, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(blocking));
  OK(cuStreamDestroy(free_one));
}

/* Forks that are wrong. */
static void forks(void) {
  CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent event = new_event(), second = new_event();
  CUgraph graph = (CUgraph)(uintptr_t)1;
  /* work of another stream that is not joined */
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemsetD8Async(p, 1, N, a));
  OK(cuEventRecord(event, a));
  OK(cuStreamWaitEvent(b, event, 0));
  OK(cuMemsetD8Async(p, 2, N, b));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(a, &graph));
  CHECK(graph == NULL && status_of(a) == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(status_of(b) == CU_STREAM_CAPTURE_STATUS_NONE);
  /* joined in part: what came after the event is left over */
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuEventRecord(event, a));
  OK(cuStreamWaitEvent(b, event, 0));
  OK(cuMemsetD8Async(p, 2, N, b));
  OK(cuEventRecord(second, b));
  OK(cuMemsetD8Async(p, 3, N, b));
  OK(cuStreamWaitEvent(a, second, 0));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(a, &graph));
  /* a stream that joined and did nothing needs no join */
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemsetD8Async(p, 1, N, a));
  OK(cuEventRecord(event, a));
  OK(cuStreamWaitEvent(b, event, 0));
  OK(cuStreamEndCapture(a, &graph));
  OK(cuGraphDestroy(graph));
  /* an event from outside */
  OK(cuEventRecord(event, b));
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(a, event, 0));
  end_spoilt(a);
  /* two captures */
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuStreamBeginCapture(b, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(event, a));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent(b, event, 0));
  end_spoilt(a);
  end_spoilt(b);
  /* an event of a capture that is spoilt */
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(event, a));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(a));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamWaitEvent(b, event, 0));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuEventRecord(event, a));
  end_spoilt(a);
  /* streams that go while they capture */
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuEventRecord(event, a));
  OK(cuStreamWaitEvent(b, event, 0));
  OK(cuStreamDestroy(a));
  CHECK(status_of(b) == CU_STREAM_CAPTURE_STATUS_NONE);
  a = new_stream(CU_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuEventRecord(event, a));
  OK(cuStreamWaitEvent(b, event, 0));
  OK(cuMemsetD8Async(p, 3, N, b));
  OK(cuStreamDestroy(b));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(a, &graph));
  OK(cuEventDestroy(event));
  OK(cuEventDestroy(second));
  OK(cuStreamDestroy(a));
}

/* What a library asks of a capture, and changes in it. */
static void dependencies(void) {
  CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
  CUstreamCaptureStatus status;
  CUgraph graph = NULL, end;
  CUgraphNode own, other, nodes[2];
  const CUgraphNode *tail = NULL;
  const CUgraphEdgeData *edges = NULL;
  size_t n = 9;
  cuuint64_t id = 0, second = 0;
  OK(cuStreamGetCaptureInfo(s, &status, &id, &graph, &tail, &edges, &n));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuStreamUpdateCaptureDependencies(s, NULL, NULL, 0, 0));
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuStreamGetCaptureInfo(s, &status, &id, &graph, &tail, &edges, &n));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0 && graph != NULL && n == 0);
  OK(cuMemsetD8Async(p, 1, N, s));
  OK(cuStreamGetCaptureInfo(s, &status, &second, &graph, &tail, &edges, &n));
  CHECK(second == id && n == 1 && edges[0].type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
  own = tail[0];
  CUDA_HOST_NODE_PARAMS hp = {.fn = nothing};
  OK(cuGraphAddHostNode(&other, graph, tail, n, &hp));
  OK(cuStreamUpdateCaptureDependencies(s, &other, NULL, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  OK(cuStreamGetCaptureInfo(s, &status, NULL, NULL, &tail, NULL, &n));
  CHECK(n == 2 && tail[0] == own && tail[1] == other);
  OK(cuStreamUpdateCaptureDependencies(s, &other, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  OK(cuMemsetD8Async(p, 2, N, s));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamUpdateCaptureDependencies(s, (CUgraphNode *)&graph, NULL, 1, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamUpdateCaptureDependencies(s, NULL, NULL, 0, 5));
  OK(cuStreamGetCaptureInfo(s, &status, NULL, NULL, &tail, NULL, &n));
  CHECK(n == 1);
  n = 2;
  OK(cuGraphNodeGetDependencies(tail[0], nodes, NULL, &n));
  CHECK(n == 1 && nodes[0] == other && nodes[1] == NULL);
  OK(cuStreamEndCapture(s, &end));
  CHECK(end == graph);
  /* on into the same graph */
  OK(cuGraphGetRootNodes(graph, NULL, &n));
  CHECK(n == 1);
  OK(cuStreamBeginCaptureToGraph(s, graph, &other, NULL, 1, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemsetD8Async(p, 3, N, s));
  OK(cuStreamEndCapture(s, &end));
  CHECK(end == graph);
  OK(cuGraphNodeGetDependentNodes(other, NULL, NULL, &n));
  CHECK(n == 2);
  /* a graph that was there before outlives a capture that fails */
  OK(cuStreamBeginCaptureToGraph(s, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(s));
  end_spoilt(s);
  OK(cuGraphDestroy(graph));
  EXPECT(CUDA_ERROR_INVALID_VALUE,
         cuStreamBeginCaptureToGraph(s, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK(status_of(s) == CU_STREAM_CAPTURE_STATUS_NONE);
  OK(cuStreamDestroy(s));
}

int main(void) {
  int before = 0;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuMemAlloc(&p, N));
  for (int i = 0; i < 3; i++) {
    brackets();
    progress();
    unsafe_calls();
    threads();
    legacy();
    forks();
    dependencies();
    if (i == 0) before = open_fds();
  }
  CHECK(open_fds() == before);
  OK(cuMemFree(p));
  return 0;
}
