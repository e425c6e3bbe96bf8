/* Graphs: captured and built by hand, launched, changed, destroyed. */
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"
#include "softcuda.h"

/* ---- Kernels ---- */
static void add(const softcudaBlock *block, void *const *params) {
  uint64_t *to = *(uint64_t *const *)params[0];
  (void)block;
  *to += *(const uint64_t *)params[1];
}
static void set(const softcudaBlock *block, void *const *params) {
  (void)block;
  atomic_store(*(_Atomic uint32_t *const *)params[0], *(const uint32_t *)params[1]);
}
static void wait_for(const softcudaBlock *block, void *const *params) {
  (void)block;
  while (atomic_load(*(_Atomic uint32_t *const *)params[0]) != *(const uint32_t *)params[1]) sleep_ms(0);
}
static const uint32_t sizes_add[] = {8, 8}, sizes_word[] = {8, 4};
static const softcudaFunction functions[] = {{"add", add, 0, 1, 2, 0, sizes_add},
                                             {"set", set, 0, 1, 2, 0, sizes_word},
                                             {"wait_for", wait_for, 0, 1, 2, 0, sizes_word}};
static const softcudaImage image = {SOFTCUDA_IMAGE_MAGIC, SOFTCUDA_IMAGE_VERSION, 3, 0, functions};

static CUfunction add_function, set_function, wait_function;
static CUcontext context;
static CUdeviceptr words;
enum { BYTES = 4096 };

static void launch_add(CUstream stream, CUdeviceptr to, uint64_t value) {
  void *params[] = {&to, &value};
  OK(cuLaunchKernel(add_function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}
static void launch_word(CUfunction function, CUstream stream, CUdeviceptr to, uint32_t value) {
  void *params[] = {&to, &value};
  OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}
static uint64_t read_word(CUdeviceptr from) {
  uint64_t value;
  OK(cuCtxSynchronize());
  OK(cuMemcpyDtoH(&value, from, 8));
  return value;
}
static void clear(void) {
  OK(cuMemsetD8(words, 0, BYTES));
  OK(cuCtxSynchronize());
}
static void count(void *data) { atomic_fetch_add((_Atomic int *)data, 1); }

static CUstream new_stream(unsigned int flags) {
  CUstream stream;
  OK(cuStreamCreate(&stream, flags));
  return stream;
}

/* ---- Captured in one stream, launched 1,000 times ---- */
static void replay(void) {
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUgraph graph;
  CUgraphExec exec;
  _Atomic int calls = 0;
  size_t n = 0;
  uint64_t *pinned;
  clear();
  OK(cuMemAllocHost((void **)&pinned, 8));
  *pinned = 5;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  launch_add(stream, words, 1);
  OK(cuMemcpyDtoDAsync(words + 8, words, 8, stream));
  OK(cuMemsetD32Async(words + 16, 7, 2, stream));
  OK(cuLaunchHostFunc(stream, count, (void *)&calls));
  OK(cuMemcpyHtoDAsync(words + 24, pinned, 8, stream));
  launch_add(stream, words + 8, 100);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphGetNodes(graph, NULL, &n));
  CHECK(n == 6);
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphUpload(exec, stream));
  sleep_ms(2);
  CHECK(calls == 0 && read_word(words) == 0); /* nothing was executed */
  const char *delay = getenv("SOFTCUDA_DELAY_US");
  const int rounds = delay != NULL && atoi(delay) > 0 ? 100 : 1000;
  for (int i = 0; i < rounds; i++) {
    OK(cuGraphLaunch(exec, stream));
    if (i % 100 == 0) OK(cuStreamSynchronize(stream));
  }
  OK(cuStreamSynchronize(stream));
  CHECK(calls == rounds && read_word(words) == (uint64_t)rounds && read_word(words + 8) == (uint64_t)rounds + 100);
  CHECK(read_word(words + 16) == 0x700000007 && read_word(words + 24) == 5);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  OK(cuMemFreeHost(pinned));
  OK(cuStreamDestroy(stream));
}

/* ---- Fork and join by events; what the graph looks like ---- */
static void fork_and_join(void) {
  CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent fork, join;
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode nodes[4], roots[2], from[4], to[4], near[2];
  CUgraphNodeType type;
  CUstreamCaptureStatus status;
  size_t n = 4;
  clear();
  OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  launch_word(set_function, a, words, 1);
  OK(cuEventRecord(fork, a));
  OK(cuStreamIsCapturing(b, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  OK(cuStreamWaitEvent(b, fork, 0));
  OK(cuStreamIsCapturing(b, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  launch_word(wait_function, a, words + 4, 9); /* each branch waits for the other */
  launch_word(set_function, b, words + 4, 9);
  OK(cuEventRecord(join, b));
  OK(cuStreamWaitEvent(a, join, 0));
  launch_add(a, words + 8, 3);
  OK(cuStreamEndCapture(a, &graph));
  OK(cuStreamIsCapturing(b, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  OK(cuGraphGetNodes(graph, nodes, &n));
  CHECK(n == 4);
  n = 2;
  OK(cuGraphGetRootNodes(graph, roots, &n));
  CHECK(n == 1 && roots[0] == nodes[0] && roots[1] == NULL);
  n = 4;
  OK(cuGraphGetEdges(graph, from, to, NULL, &n));
  CHECK(n == 4 && from[0] == nodes[0] && to[0] == nodes[1] && to[3] == nodes[3]);
  n = 2;
  OK(cuGraphNodeGetDependencies(nodes[3], near, NULL, &n));
  CHECK(n == 2 && near[0] == nodes[1] && near[1] == nodes[2]);
  OK(cuGraphNodeGetDependentNodes(nodes[0], near, NULL, &n));
  CHECK(n == 2 && near[0] == nodes[1] && near[1] == nodes[2]);
  OK(cuGraphNodeGetType(nodes[3], &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_KERNEL);
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphDestroy(graph));
  for (int i = 0; i < 50; i++) {
    OK(cuMemsetD32Async(words + 4, 0, 1, a));
    OK(cuGraphLaunch(exec, a));
  }
  OK(cuStreamSynchronize(a));
  CHECK(read_word(words + 8) == 150);
  OK(cuGraphExecDestroy(exec));
  OK(cuEventDestroy(fork));
  OK(cuEventDestroy(join));
  OK(cuStreamDestroy(a));
  OK(cuStreamDestroy(b));
}

/* ---- Built by hand: a kernel and a host function in a child graph, a memset before it, a copy after it ---- */
typedef struct parts {
  CUgraph graph, inner;
  CUgraphNode fill, nest, empty, copy, kernel, host; /* the last two are the child graph's */
  CUDA_KERNEL_NODE_PARAMS kp;
  CUDA_MEMSET_NODE_PARAMS sp;
  CUdeviceptr to;
  uint64_t value;
  void *params[2];
  _Atomic int calls;
} parts;

static void make(parts *b) {
  CUgraph child;
  CUgraphNode in[2];
  size_t n = 2;
  memset(b, 0, sizeof *b);
  clear();
  b->to = words;
  b->value = 11;
  b->params[0] = &b->to;
  b->params[1] = &b->value;
  b->kp = (CUDA_KERNEL_NODE_PARAMS){.func = add_function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
      .blockDimY = 1, .blockDimZ = 1, .kernelParams = b->params};
  b->sp = (CUDA_MEMSET_NODE_PARAMS){.dst = words + 8, .value = 0x21, .elementSize = 1, .width = 8, .height = 1};
  CUDA_MEMCPY3D cp = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = words, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
      .dstDevice = words + 16, .WidthInBytes = 16, .Height = 1, .Depth = 1};
  CUDA_HOST_NODE_PARAMS hp = {.fn = count, .userData = (void *)&b->calls};
  OK(cuGraphCreate(&child, 0));
  OK(cuGraphAddKernelNode(&b->kernel, child, NULL, 0, &b->kp));
  OK(cuGraphAddHostNode(&b->host, child, &b->kernel, 1, &hp));
  OK(cuGraphCreate(&b->graph, 0));
  OK(cuGraphAddMemsetNode(&b->fill, b->graph, NULL, 0, &b->sp, context));
  OK(cuGraphAddChildGraphNode(&b->nest, b->graph, &b->fill, 1, child));
  OK(cuGraphDestroy(child)); /* the node has a copy */
  OK(cuGraphChildGraphNodeGetGraph(b->nest, &b->inner));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(b->inner));
  OK(cuGraphGetNodes(b->inner, in, &n));
  CHECK(n == 2 && in[0] != b->kernel);
  b->kernel = in[0];
  b->host = in[1];
  OK(cuGraphAddMemcpyNode(&b->copy, b->graph, NULL, 0, &cp, context));
  OK(cuGraphAddEmptyNode(&b->empty, b->graph, &b->nest, 1));
  OK(cuGraphAddDependencies(b->graph, &b->empty, &b->copy, NULL, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(b->graph, &b->empty, &b->copy, NULL, 1));
}

static void by_hand(void) {
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUgraph clone;
  CUgraphNode found;
  CUgraphExec exec;
  parts b;
  size_t n = 9;
  make(&b);
  OK(cuGraphClone(&clone, b.graph));
  OK(cuGraphNodeFindInClone(&found, b.copy, clone));
  CHECK(found != NULL && found != b.copy);
  OK(cuGraphInstantiate(&exec, clone, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
  OK(cuGraphLaunch(exec, stream));
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(b.calls == 2 && read_word(words) == 22 && read_word(words + 16) == 22);
  CHECK(read_word(words + 24) == 0x2121212121212121);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(clone));
  OK(cuGraphDestroyNode(b.empty)); /* its edges go too */
  OK(cuGraphNodeGetDependencies(b.copy, NULL, NULL, &n));
  CHECK(n == 0);
  OK(cuGraphDestroy(b.graph));
  OK(cuStreamDestroy(stream));
}

/* What nodes say of themselves, and what they are told. */
static void parameters(void) {
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUgraphExec exec;
  CUDA_MEMCPY3D cp;
  CUDA_MEMSET_NODE_PARAMS sp;
  CUDA_HOST_NODE_PARAMS hp;
  CUDA_KERNEL_NODE_PARAMS kp;
  parts b;
  make(&b);
  OK(cuGraphKernelNodeGetParams(b.kernel, &kp));
  CHECK(kp.func == add_function && kp.gridDimX == 1 && *(uint64_t *)kp.kernelParams[1] == 11);
  OK(cuGraphHostNodeGetParams(b.host, &hp));
  CHECK(hp.fn == count && hp.userData == (void *)&b.calls);
  OK(cuGraphMemsetNodeGetParams(b.fill, &sp));
  CHECK(sp.dst == words + 8 && sp.value == 0x21 && sp.elementSize == 1 && sp.width == 8 && sp.height == 1);
  OK(cuGraphMemcpyNodeGetParams(b.copy, &cp));
  CHECK(cp.WidthInBytes == 16 && cp.Height == 1 && cp.Depth == 1);
  OK(cuGraphMemcpyNodeSetParams(b.copy, &cp));
  b.value = 1;
  OK(cuGraphKernelNodeSetParams(b.kernel, &b.kp));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeSetParams(b.fill, &b.kp));
  OK(cuGraphInstantiate(&exec, b.graph, 0));
  OK(cuGraphLaunch(exec, stream));
  b.value = 1000; /* from now on, in the exec alone */
  OK(cuGraphExecKernelNodeSetParams(exec, b.kernel, &b.kp));
  b.sp.value = 0x42;
  OK(cuGraphExecMemsetNodeSetParams(exec, b.fill, &b.sp, context));
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(b.calls == 2 && read_word(words + 16) == 1001 && read_word(words + 24) == 0x4242424242424242);
  unsigned int enabled = 9;
  OK(cuGraphNodeSetEnabled(exec, b.kernel, 0));
  OK(cuGraphNodeGetEnabled(exec, b.kernel, &enabled));
  CHECK(enabled == 0);
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(b.calls == 3 && read_word(words) == 1001);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(b.graph));
  OK(cuStreamDestroy(stream));
}

/* ---- cuGraphAddNode, and cycles ---- */
static void generic(void) {
  CUgraph graph;
  CUgraphNode a, b;
  CUgraphExec exec = NULL;
  CUevent event;
  CUgraphNodeParams np;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuGraphCreate(&graph, 0));
  memset(&np, 0, sizeof np);
  np.type = CU_GRAPH_NODE_TYPE_MEMSET;
  np.memset.dst = words;
  np.memset.elementSize = 4;
  np.memset.width = np.memset.height = 1;
  OK(cuGraphAddNode(&a, graph, NULL, NULL, 0, &np));
  memset(&np, 0, sizeof np);
  np.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  np.eventRecord.event = event;
  OK(cuGraphAddNode(&b, graph, &a, NULL, 1, &np));
  CUevent back = NULL;
  OK(cuGraphEventRecordNodeGetEvent(b, &back));
  CHECK(back == event);
  np.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddNode(&b, graph, &a, NULL, 1, &np));
  OK(cuGraphAddDependencies(graph, &b, &a, NULL, 1)); /* a cycle: found when it is instantiated */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, graph, 0));
  CUDA_GRAPH_INSTANTIATE_PARAMS ip = {0};
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithParams(&exec, graph, &ip));
  CHECK(ip.result_out == CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
  OK(cuGraphRemoveDependencies(graph, &b, &a, NULL, 1));
  OK(cuGraphInstantiateWithParams(&exec, graph, &ip));
  CHECK(ip.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
  OK(cuGraphLaunch(exec, NULL));
  OK(cuEventSynchronize(event));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, NULL));
  OK(cuEventDestroy(event));
}

/* ---- Updates ---- */
static CUgraph adds(uint64_t first, uint64_t second, int more) {
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUgraph graph;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  launch_add(stream, words, first);
  if (more == 2) OK(cuMemsetD8Async(words, 0, 1, stream));
  else launch_add(stream, words, second);
  if (more == 1) launch_add(stream, words, 1);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuStreamDestroy(stream));
  return graph;
}

static void update(void) {
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUgraph first = adds(1, 2, 0), second = adds(10, 20, 0), longer = adds(1, 1, 1), other = adds(1, 1, 2);
  CUgraphExec exec;
  CUgraphExecUpdateResultInfo info;
  clear();
  OK(cuGraphInstantiate(&exec, first, 0));
  OK(cuGraphLaunch(exec, stream));
  OK(cuGraphExecUpdate(exec, second, &info));
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  OK(cuGraphLaunch(exec, stream));
  EXPECT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, longer, &info));
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  EXPECT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, other, &info));
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED && info.errorNode != NULL);
  OK(cuGraphLaunch(exec, stream)); /* as it was */
  OK(cuStreamSynchronize(stream));
  CHECK(read_word(words) == 63);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(first));
  OK(cuGraphDestroy(second));
  OK(cuGraphDestroy(longer));
  OK(cuGraphDestroy(other));
  OK(cuStreamDestroy(stream));
}

/* ---- Several graphs and streams, the same exec in two streams, a graph within a capture ---- */
static void several(void) {
  CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_DEFAULT);
  CUgraph graph = adds(1, 2, 0), outer;
  CUgraphExec exec, whole;
  CUgraphNode node;
  CUgraphNodeType type;
  size_t n = 1;
  clear();
  OK(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 100; i++) { /* not atomic: right only if one launch follows the other */
    OK(cuGraphLaunch(exec, a));
    OK(cuGraphLaunch(exec, b));
    OK(cuGraphLaunch(exec, NULL));
  }
  CHECK(read_word(words) == 900);
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuGraphLaunch(exec, a));
  OK(cuStreamEndCapture(a, &outer));
  OK(cuGraphGetNodes(outer, &node, &n));
  OK(cuGraphNodeGetType(node, &type));
  CHECK(n == 1 && type == CU_GRAPH_NODE_TYPE_GRAPH);
  OK(cuGraphInstantiate(&whole, outer, 0));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphLaunch(whole, a));
  OK(cuGraphExecDestroy(whole)); /* while it may still run */
  CHECK(read_word(words) == 903);
  OK(cuGraphDestroy(outer));
  OK(cuGraphDestroy(graph));
  OK(cuStreamDestroy(a));
  OK(cuStreamDestroy(b));
}

/* ---- Events that graphs record and wait for, outside of the capture's own ---- */
static void external_events(void) {
  CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent begin, end;
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode nodes[3];
  CUgraphNodeType type;
  size_t n = 3;
  clear();
  OK(cuEventCreate(&begin, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&end, CU_EVENT_DEFAULT));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventRecordWithFlags(end, a, CU_EVENT_RECORD_EXTERNAL));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWaitEvent(a, end, CU_EVENT_WAIT_EXTERNAL));
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuStreamWaitEvent(a, begin, CU_EVENT_WAIT_EXTERNAL));
  launch_add(a, words, 1);
  OK(cuEventRecordWithFlags(end, a, CU_EVENT_RECORD_EXTERNAL));
  OK(cuStreamEndCapture(a, &graph));
  OK(cuGraphGetNodes(graph, nodes, &n));
  OK(cuGraphNodeGetType(nodes[0], &type));
  CHECK(n == 3 && type == CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  OK(cuGraphNodeGetType(nodes[2], &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  OK(cuGraphInstantiate(&exec, graph, 0));
  for (uint32_t i = 1; i <= 20; i++) {
    launch_word(wait_function, b, words + 16, i); /* holds the graph up */
    launch_add(b, words, 100);
    OK(cuEventRecord(begin, b));
    OK(cuGraphLaunch(exec, a));
    OK(cuEventQuery(end)); /* tells of the record before, until the graph has come to its own */
    OK(cuStreamWaitEvent(b, end, 0));
    OK(cuMemsetD32Async(words + 16, i, 1, NULL));
    OK(cuEventSynchronize(end));
  }
  CHECK(read_word(words) == 2020);
  OK(cuEventDestroy(end));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(exec, a)); /* its event is gone */
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  OK(cuEventDestroy(begin));
  OK(cuStreamDestroy(a));
  OK(cuStreamDestroy(b));
}

/* ---- User objects ---- */
static void user_objects(void) {
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  CUuserObject object, second;
  CUgraph graph, clone;
  CUgraphExec exec;
  _Atomic int gone = 0, gone_second = 0;
  clear();
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&object, (void *)&gone, count, 1, 0));
  OK(cuUserObjectCreate(&object, (void *)&gone, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(cuUserObjectRetain(object, 2));
  OK(cuUserObjectRelease(object, 2));
  CHECK(gone == 0);
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  launch_word(wait_function, stream, words, 1);
  /* while it is captured, as a library does that needs its memory for as long as the graph lives */
  CUstreamCaptureStatus status;
  OK(cuStreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL, NULL));
  OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuUserObjectCreate(&second, (void *)&gone_second, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(cuGraphRetainUserObject(graph, second, 3, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphReleaseUserObject(graph, second, 4));
  OK(cuUserObjectRelease(second, 1));
  OK(cuGraphReleaseUserObject(graph, second, 2));
  CHECK(gone_second == 0);
  OK(cuGraphReleaseUserObject(graph, second, 1));
  CHECK(gone_second == 1);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuUserObjectRetain(second, 1));
  OK(cuGraphClone(&clone, graph));
  OK(cuGraphDestroy(graph));
  CHECK(gone == 0);
  OK(cuGraphInstantiate(&exec, clone, 0));
  OK(cuGraphDestroy(clone));
  CHECK(gone == 0);
  OK(cuGraphLaunch(exec, stream));
  OK(cuGraphExecDestroy(exec));
  sleep_ms(10);
  CHECK(gone == 0); /* still running */
  OK(cuMemsetD32Async(words, 1, 1, NULL));
  OK(cuStreamSynchronize(stream));
  CHECK(gone == 1);
  OK(cuStreamDestroy(stream));
}

/* ---- Memory: what is made and thrown away leaves nothing behind ---- */
static long resident_kb(void) {
  long pages = 0, resident = 0;
  FILE *statm = fopen("/proc/self/statm", "r");
  CHECK(statm != NULL && fscanf(statm, "%ld %ld", &pages, &resident) == 2);
  fclose(statm);
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void cycle(CUstream a, CUstream b, CUevent event) {
  CUgraph graph, clone;
  CUgraphExec exec;
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (int i = 0; i < 8; i++) {
    launch_add(a, words, 1);
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    launch_add(b, words + 8, 1);
    OK(cuEventRecord(event, b));
    OK(cuStreamWaitEvent(a, event, 0));
  }
  OK(cuStreamEndCapture(a, &graph));
  OK(cuGraphClone(&clone, graph));
  OK(cuGraphInstantiate(&exec, clone, 0));
  OK(cuGraphLaunch(exec, a));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  OK(cuGraphDestroy(clone));
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED)); /* one that fails */
  launch_add(a, words, 1);
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(a));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(a, &graph));
  OK(cuStreamSynchronize(a));
}

static void nothing_leaks(void) {
  CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent event;
  const char *delay = getenv("SOFTCUDA_DELAY_US");
  const int rounds = delay != NULL && atoi(delay) > 0 ? 20 : 2000;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (int i = 0; i < rounds / 4; i++) cycle(a, b, event);
  long before = resident_kb();
  for (int i = 0; i < rounds; i++) cycle(a, b, event);
  CHECK(resident_kb() - before < 4096); /* 2 KB a round would be 4 MB */
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(a));
  OK(cuStreamDestroy(b));
}

int main(void) {
  CUmodule module;
  int before = 0;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(softcudaModuleLoadImage(&module, &image));
  OK(cuModuleGetFunction(&add_function, module, "add"));
  OK(cuModuleGetFunction(&set_function, module, "set"));
  OK(cuModuleGetFunction(&wait_function, module, "wait_for"));
  OK(cuMemAlloc(&words, BYTES));
  for (int i = 0; i < 2; i++) {
    replay();
    fork_and_join();
    by_hand();
    parameters();
    generic();
    update();
    several();
    external_events();
    user_objects();
    nothing_leaks();
    if (i == 0) before = open_fds();
  }
  CHECK(open_fds() == before);
  OK(cuMemFree(words));
  OK(cuModuleUnload(module));
  return 0;
}
