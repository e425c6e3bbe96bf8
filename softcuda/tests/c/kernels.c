/* Kernels as host code: one thread, many blocks and threads with barriers, arguments, limits, bad input. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sched.h>
#include <softcuda.h>
#include <stdatomic.h>

#include "check.h"

/* out[i] = in[i] * factor, one thread for all. */
static void scale(const softcudaBlock *block, void *const *params) {
  int *out = *(int **)params[0];
  const int *in = *(int **)params[1];
  int factor = *(int *)params[2], n = *(int *)params[3];
  CHECK(block->gridDim[0] == 1 && block->blockDim[0] == 1 && block->threadIdx[0] == 0);
  for (int i = 0; i < n; i++) out[i] = in[i] * factor;
}

static void barrier(const softcudaBlock *block) {
  typedef struct { atomic_uint arrived, round; } state;
  state *s = (state *)block->barrier;
  unsigned int threads = block->blockDim[0] * block->blockDim[1] * block->blockDim[2];
  unsigned int round = atomic_load(&s->round);
  if (atomic_fetch_add(&s->arrived, 1) + 1 == threads) {
    atomic_store(&s->arrived, 0);
    atomic_fetch_add(&s->round, 1);
  } else {
    while (atomic_load(&s->round) == round) sched_yield();
  }
}

/* Each block adds up its threads' numbers in shared memory; block i then waits for block i - 1, and the last for none:
 * it only ends where all blocks are resident. */
static void sums(const softcudaBlock *block, void *const *params) {
  int *out = *(int **)params[0];
  atomic_int *ready = *(atomic_int **)params[1];
  atomic_int *shared = (atomic_int *)block->shared;
  int *extra = (int *)block->shared + 4; /* the launch's dynamic bytes come after the 16 static ones */
  unsigned int b = block->blockIdx[0], grid = block->gridDim[0], t = block->threadIdx[0];
  CHECK((uintptr_t)block->shared % 64 == 0 && (uintptr_t)block->barrier % 64 == 0);
  if (t == 0) atomic_store(&shared[0], 0);
  barrier(block);
  atomic_fetch_add(&shared[0], (int)(b * 100 + t));
  extra[t] = (int)t;
  barrier(block);
  if (t != 0) return;
  for (unsigned int i = 0; i < block->blockDim[0]; i++) CHECK(extra[i] == (int)i);
  atomic_fetch_add(ready, 1);
  while (atomic_load(ready) < (int)grid) sched_yield();
  out[b] = atomic_load(&shared[0]);
}

static const uint32_t scale_sizes[] = {8, 8, 4, 4}, sums_sizes[] = {8, 8};
static const softcudaFunction functions[] = {
    {"scale", scale, 0, 1, 4, 0, scale_sizes},
    {"sums", sums, 16, 8, 2, 0, sums_sizes},
};
static const softcudaImage image = {SOFTCUDA_IMAGE_MAGIC, SOFTCUDA_IMAGE_VERSION, 2, 0, functions};

static void one_thread(CUmodule module, CUstream stream) {
  CUfunction function;
  CUdeviceptr in, out;
  int numbers[1000], factor = 3, n = 1000;
  void *params[] = {&out, &in, &factor, &n};
  OK(cuModuleGetFunction(&function, module, "scale"));
  OK(cuMemAlloc(&in, sizeof numbers));
  OK(cuMemAlloc(&out, sizeof numbers));
  for (int i = 0; i < n; i++) numbers[i] = i;
  OK(cuMemcpyHtoDAsync(in, numbers, sizeof numbers, stream));
  OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
  factor = 1000; /* arguments are copied when the launch is made */
  OK(cuMemcpyDtoHAsync(numbers, out, sizeof numbers, stream));
  OK(cuStreamSynchronize(stream));
  for (int i = 0; i < n; i++) CHECK(numbers[i] == 3 * i);
  OK(cuMemFree(in));
  OK(cuMemFree(out));
}

static void many_threads(CUmodule module, CUstream stream) {
  enum { BLOCKS = 6, THREADS = 8 };
  CUfunction function;
  CUdeviceptr out, ready;
  int got[BLOCKS], value = 0;
  void *params[] = {&out, &ready};
  OK(cuModuleGetFunction(&function, module, "sums"));
  OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
  CHECK(value == THREADS);
  OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function));
  CHECK(value == 16);
  OK(cuMemAlloc(&out, sizeof got));
  OK(cuMemAlloc(&ready, sizeof(int)));
  for (int round = 0; round < 5; round++) {
    OK(cuMemsetD32Async(ready, 0, 1, stream));
    OK(cuLaunchKernel(function, BLOCKS, 1, 1, THREADS, 1, 1, THREADS * 4, stream, params, NULL));
    OK(cuMemcpyDtoHAsync(got, out, sizeof got, stream));
    OK(cuStreamSynchronize(stream));
    for (int b = 0; b < BLOCKS; b++) CHECK(got[b] == THREADS * 100 * b + THREADS * (THREADS - 1) / 2);
  }
  OK(cuMemFree(out));
  OK(cuMemFree(ready));
}

/* The runtime takes the driver's function where it takes a kernel. */
static void through_the_runtime(CUmodule module, CUstream stream) {
  CUfunction function;
  int *p, numbers[4] = {1, 2, 3, 4}, factor = 7, n = 4, blocks = 0;
  void *params[] = {&p, &p, &factor, &n};
  dim3 one = {1, 1, 1}, two = {2, 1, 1};
  struct cudaFuncAttributes attributes;
  cudaLaunchConfig_t config;
  OK(cuModuleGetFunction(&function, module, "scale"));
  OK(cudaMalloc((void **)&p, sizeof numbers));
  OK(cudaMemcpyAsync(p, numbers, sizeof numbers, cudaMemcpyHostToDevice, stream));
  OK(cudaLaunchKernel(function, one, one, params, 0, stream));
  memset(&config, 0, sizeof config);
  config.gridDim = config.blockDim = one;
  config.stream = stream;
  OK(cudaLaunchKernelExC(&config, function, params));
  OK(cudaLaunchCooperativeKernel(function, one, one, params, 0, stream));
  OK(cudaMemcpyAsync(numbers, p, sizeof numbers, cudaMemcpyDeviceToHost, stream));
  OK(cudaStreamSynchronize(stream));
  for (int i = 0; i < 4; i++) CHECK(numbers[i] == 343 * (i + 1));
  OK(cuModuleGetFunction(&function, module, "sums"));
  OK(cudaFuncGetAttributes(&attributes, function));
  CHECK(attributes.maxThreadsPerBlock == 8 && attributes.sharedSizeBytes == 16);
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 8, 0));
  CHECK(blocks >= 1);
  config.blockDim.x = 9;
  EXPECT(cudaErrorInvalidValue, cudaLaunchKernelExC(&config, function, params));
  EXPECT(cudaErrorInvalidValue, cudaLaunchKernel(function, one, two, NULL, 0, stream));
  EXPECT(cudaErrorInvalidResourceHandle,
         cudaLaunchKernel(function, one, one, params, 0, (cudaStream_t)(uintptr_t)0x123450));
  EXPECT(cudaErrorInvalidValue, cudaLaunchKernel(function, one, one, params, (size_t)1 << 33, stream));
  cudaGetLastError();
  OK(cudaFree(p));
}

/* Memory synchronisation domains: there are two. */
static void in_domains(CUmodule module, CUstream stream) {
  CUfunction function;
  CUdeviceptr p;
  int number = 1, factor = 5, n = 1;
  void *params[] = {&p, &p, &factor, &n};
  OK(cuModuleGetFunction(&function, module, "scale"));
  OK(cuMemAlloc(&p, sizeof number));
  OK(cuMemcpyHtoDAsync(p, &number, sizeof number, stream));
  for (unsigned domain = 0; domain < 3; domain++) {
    CUlaunchAttribute attribute;
    CUlaunchConfig config;
    memset(&attribute, 0, sizeof attribute);
    memset(&config, 0, sizeof config);
    attribute.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
    memcpy(attribute.value.pad, &domain, sizeof domain);
    config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    EXPECT(domain < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(&config, function, params, NULL));
  }
  OK(cuMemcpyDtoHAsync(&number, p, sizeof number, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(number == 25);
  OK(cuMemFree(p));
}

static void bad_input(CUmodule module, CUstream stream) {
  CUfunction function;
  CUmodule none;
  softcudaImage wrong = image;
  CUdeviceptr p = 0;
  void *params[] = {&p, &p};
  EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "nothing"));
  EXPECT(CUDA_ERROR_INVALID_VALUE, softcudaModuleLoadImage(&none, NULL));
  EXPECT(CUDA_ERROR_INVALID_VALUE, softcudaModuleLoadImage(NULL, &image));
  wrong.magic = 1;
  EXPECT(CUDA_ERROR_INVALID_IMAGE, softcudaModuleLoadImage(&none, &wrong));
  wrong = image;
  wrong.version = 99;
  EXPECT(CUDA_ERROR_INVALID_IMAGE, softcudaModuleLoadImage(&none, &wrong));
  CHECK(cuModuleLoadData(&none, "this is no cubin, nor PTX") != CUDA_SUCCESS);
  OK(cuModuleGetFunction(&function, module, "sums"));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(function, 1, 1, 1, 9, 1, 1, 0, stream, params, NULL));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, stream, params, NULL));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(function, 1, 1, 1, 1, 0, 1, 0, stream, params, NULL));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

int main(void) {
  CUcontext context;
  CUmodule module;
  CUstream stream;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(softcudaModuleLoadImage(&module, &image));
  one_thread(module, stream);
  many_threads(module, stream);
  int before = open_fds();
  for (int i = 0; i < 10; i++) one_thread(module, stream);
  many_threads(module, stream);
  through_the_runtime(module, stream);
  in_domains(module, stream);
  bad_input(module, stream);
  CHECK(open_fds() == before);
  OK(cuModuleUnload(module));
  CHECK(cuModuleUnload(module) != CUDA_SUCCESS);
  OK(cuStreamDestroy(stream));
  return 0;
}
