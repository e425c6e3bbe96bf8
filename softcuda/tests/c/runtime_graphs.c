/* Captures and graphs by the runtime API, as a framework uses them. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdatomic.h>

#include "check.h"
#include "softcuda.h"

static void add(const softcudaBlock *block, void *const *params) {
  (void)block;
  **(uint64_t *const *)params[0] += *(const uint64_t *)params[1];
}
static const uint32_t sizes[] = {8, 8};
static const softcudaFunction functions[] = {{"add", add, 0, 1, 2, 0, sizes}};
static const softcudaImage image = {SOFTCUDA_IMAGE_MAGIC, SOFTCUDA_IMAGE_VERSION, 1, 0, functions};

enum { N = 4096 };
static uint64_t *words;
static const void *kernel;

static void count(void *data) { atomic_fetch_add((_Atomic int *)data, 1); }

static uint64_t word(int index) {
  uint64_t value;
  OK(cudaDeviceSynchronize());
  OK(cudaMemcpy(&value, words + index, 8, cudaMemcpyDeviceToHost));
  return value;
}
static void launch(cudaStream_t stream, int index, uint64_t value) {
  uint64_t *to = words + index;
  void *args[] = {&to, &value};
  dim3 one = {1, 1, 1};
  OK(cudaLaunchKernel(kernel, one, one, args, 0, stream));
}

/* Warm up, capture in a side stream with a fork, launch, throw away. */
static void framework(void) {
  cudaStream_t stream, side;
  cudaEvent_t fork, join;
  cudaGraph_t graph, same = NULL;
  cudaGraphExec_t exec;
  cudaUserObject_t object;
  enum cudaStreamCaptureStatus status;
  unsigned long long id = 0;
  size_t n = 0;
  _Atomic int gone = 0;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  OK(cudaMemset(words, 0, N));
  OK(cudaDeviceSynchronize());
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(cudaStreamGetCaptureInfo(stream, &status, &id, &same, NULL, NULL, NULL));
  CHECK(status == cudaStreamCaptureStatusActive && id != 0);
  /* a library that allocates in the midst of it says so */
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  void *buffer;
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  OK(cudaMalloc(&buffer, 1 << 20));
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  OK(cudaUserObjectCreate(&object, (void *)&gone, count, 1, cudaUserObjectNoDestructorSync));
  OK(cudaGraphRetainUserObject(same, object, 1, cudaGraphUserObjectMove));
  launch(stream, 0, 1);
  OK(cudaEventRecord(fork, stream));
  OK(cudaStreamWaitEvent(side, fork, 0));
  OK(cudaMemcpyAsync(words + 2, words, 8, cudaMemcpyDeviceToDevice, side));
  OK(cudaEventRecord(join, side));
  OK(cudaMemsetAsync(buffer, 7, 1 << 20, stream));
  OK(cudaStreamWaitEvent(stream, join, 0));
  launch(stream, 2, 10);
  OK(cudaStreamEndCapture(stream, &graph));
  CHECK(graph == same);
  OK(cudaGraphGetNodes(graph, NULL, &n));
  CHECK(n == 4);
  OK(cudaGraphInstantiateWithFlags(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphUpload(exec, stream));
  for (int i = 0; i < 20; i++) OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  CHECK(word(0) == 20 && word(2) == 30);
  CHECK(gone == 0);
  OK(cudaGraphExecDestroy(exec));
  CHECK(gone == 1);
  OK(cudaFree(buffer));
  OK(cudaEventDestroy(fork));
  OK(cudaEventDestroy(join));
  OK(cudaStreamDestroy(stream));
  OK(cudaStreamDestroy(side));
}

/* An error that a capture causes: reported, remembered, over. */
static void errors(void) {
  cudaStream_t stream;
  cudaGraph_t graph;
  void *buffer;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT(cudaErrorStreamCaptureUnsupported, cudaMalloc(&buffer, 64));
  EXPECT(cudaErrorStreamCaptureInvalidated, cudaMemsetAsync(words, 0, 8, stream));
  EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
  EXPECT(cudaErrorStreamCaptureInvalidated, cudaGetLastError());
  OK(cudaGetLastError());
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT(cudaErrorStreamCaptureUnsupported, cudaDeviceSynchronize());
  EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
  OK(cudaStreamDestroy(stream));
  (void)cudaGetLastError();
}

/* A drawing of a graph whose second node depends on its first. */
static void draw(cudaGraph_t graph) {
  char path[64], text[4096] = {0};
  snprintf(path, sizeof path, "/tmp/softcuda-graph-%d.dot", (int)getpid());
  OK(cudaGraphDebugDotPrint(graph, path, 0));
  FILE *drawing = fopen(path, "r");
  CHECK(drawing != NULL && fread(text, 1, sizeof text - 1, drawing) > 0);
  fclose(drawing);
  unlink(path);
  CHECK(strstr(text, "digraph") != NULL && strstr(text, "n0 -> n1;") != NULL);
  EXPECT(cudaErrorOperatingSystem, cudaGraphDebugDotPrint(graph, "/nowhere/at/all", 0));
}

/* Built by hand: every kind of node that the runtime's structs describe. */
static void by_hand(void) {
  cudaGraph_t graph;
  cudaGraphNode_t fill, kernel_node, copy, line, host, event_node, any[2];
  cudaGraphExec_t exec;
  cudaEvent_t event;
  enum cudaGraphNodeType type;
  _Atomic int calls = 0;
  uint64_t *to = words, value = 5, back[4] = {0};
  void *args[] = {&to, &value};
  OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  OK(cudaGraphCreate(&graph, 0));
  struct cudaMemsetParams sp = {.dst = words, .elementSize = 4, .value = 0, .width = 64, .height = 1};
  OK(cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &sp));
  struct cudaKernelNodeParams kp = {
      .func = (void *)kernel, .gridDim = {1, 1, 1}, .blockDim = {1, 1, 1}, .kernelParams = args};
  OK(cudaGraphAddKernelNode(&kernel_node, graph, &fill, 1, &kp));
  struct cudaMemcpy3DParms cp = {.srcPtr = {words, 8, 8, 2}, .dstPtr = {words + 8, 16, 8, 2}, .extent = {8, 2, 1},
      .kind = cudaMemcpyDeviceToDevice};
  OK(cudaGraphAddMemcpyNode(&copy, graph, &kernel_node, 1, &cp));
  OK(cudaGraphAddMemcpyNode1D(&line, graph, &copy, 1, back, words + 8, sizeof back, cudaMemcpyDeviceToHost));
  struct cudaHostNodeParams hp = {count, (void *)&calls};
  OK(cudaGraphAddHostNode(&host, graph, &line, 1, &hp));
  OK(cudaGraphAddEventRecordNode(&event_node, graph, &host, 1, event));
  struct cudaGraphNodeParams np;
  memset(&np, 0, sizeof np);
  np.type = cudaGraphNodeTypeMemcpy;
  np.memcpy.copyParams = cp;
  np.memcpy.copyParams.dstPtr.ptr = words + 16;
  OK(cudaGraphAddNode(&any[0], graph, &copy, NULL, 1, &np));
  memset(&np, 0, sizeof np);
  np.type = cudaGraphNodeTypeKernel;
  np.kernel.func = (void *)kernel;
  np.kernel.gridDim.x = np.kernel.gridDim.y = np.kernel.gridDim.z = 1;
  np.kernel.blockDim = np.kernel.gridDim;
  np.kernel.kernelParams = args;
  OK(cudaGraphAddNode(&any[1], graph, &any[0], NULL, 1, &np));
  OK(cudaGraphNodeGetType(any[1], &type));
  CHECK(type == cudaGraphNodeTypeKernel);
  OK(cudaGraphNodeSetParams(any[1], &np));
  EXPECT(cudaErrorInvalidValue, cudaGraphNodeSetParams(any[0], &np)); /* of another kind */
  OK(cudaGraphMemcpyNodeGetParams(copy, &cp));
  CHECK(cp.extent.width == 8 && cp.extent.height == 2 && cp.dstPtr.pitch == 16);
  kp.func = NULL;
  OK(cudaGraphKernelNodeGetParams(kernel_node, &kp));
  CHECK(kp.func == kernel && kp.gridDim.x == 1 && *(uint64_t *)kp.kernelParams[1] == 5);
  draw(graph);
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphLaunch(exec, 0));
  OK(cudaEventSynchronize(event));
  CHECK(calls == 1 && back[0] == 5 && back[1] == 0 && back[2] == 0);
  CHECK(word(16) == 5 && word(0) == 10);
  value = 9;
  kp.kernelParams = args;
  OK(cudaGraphExecKernelNodeSetParams(exec, kernel_node, &kp));
  OK(cudaGraphExecMemcpyNodeSetParams1D(exec, line, back + 1, words + 8, 8, cudaMemcpyDeviceToHost));
  OK(cudaGraphLaunch(exec, 0));
  CHECK(word(16) == 9 && word(0) == 14);
  CHECK(back[0] == 5 && back[1] == 9);
  kp.func = (void *)(uintptr_t)0x770;
  EXPECT(cudaErrorInvalidDeviceFunction, cudaGraphExecKernelNodeSetParams(exec, kernel_node, &kp));
  uint64_t used = 77;
  OK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
  CHECK(used == 0);
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  OK(cudaEventDestroy(event));
  (void)cudaGetLastError();
}

int main(void) {
  CUmodule module;
  CUfunction function;
  int before = 0;
  OK(cudaMalloc((void **)&words, N));
  OK(softcudaModuleLoadImage(&module, &image));
  OK(cuModuleGetFunction(&function, module, "add"));
  kernel = (const void *)function;
  for (int i = 0; i < 3; i++) {
    framework();
    errors();
    by_hand();
    if (i == 0) before = open_fds();
  }
  CHECK(open_fds() == before);
  OK(cudaFree(words));
  return 0;
}
