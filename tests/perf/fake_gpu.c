// A driver for `perf constants` alone: memory of the host as a device's, and the kernels of
// examples/perf/constants/probes.ptx as threads that take some time. What a kernel is given wrong ends the program.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sched.h>

enum { ARGUMENTS = 4 };

struct stream {
  pthread_t thread;
  int busy;
  int kernel;
  uint64_t arguments[ARGUMENTS];
};

// Names, numbers of arguments, and which of them is the number of rounds.
static const struct { const char* name; int arguments, rounds; unsigned threads; } KERNELS[] = {
  {"nothing", 0, -1, 512}, {"loads", 4, 3, 512}, {"fences", 4, 2, 512}, {"looks", 2, 1, 1}, {"exchange", 4, 3, 1},
};

static void need(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "fake GPU: %s\n", what);
  _Exit(9);
}

static void nap(uint64_t nanoseconds) {
  struct timespec time = {(time_t)(nanoseconds / 1000000000), (long)(nanoseconds % 1000000000)};
  nanosleep(&time, NULL);
}

static void exchange(const uint64_t* a) {
  _Atomic uint64_t *said = (void*)a[0], *heard = (void*)a[1];
  need(said != heard && a[2] != a[0] && a[2] != a[1], "counters are one");
  // Some of the rounds, and the time of all.
  const uint64_t rounds = (uint32_t)a[3];
  for (uint64_t number = 1; number <= rounds && number <= 50; number++) {
    atomic_store(said, number);
    while (atomic_load(heard) < number) sched_yield();
  }
  nap(rounds * 5000);
}

static void* run(void* at) {
  struct stream* s = at;
  const uint64_t* a = s->arguments;
  if (s->kernel == 1) {
    need(((a[2] + 1) & a[2]) == 0 && a[2] > 8192, "the mask");
    for (uint64_t i = 0; i <= a[2]; i += 4096) need(*(uint32_t*)(a[0] + i) == 0, "no zeros to load");
    ((char*)a[1])[a[2]] = 1;
    nap((uint64_t)(uint32_t)a[3] * (a[2] > (64 << 20) ? 2000 : 1000));
  } else if (s->kernel == 2) {
    memset((void*)a[0], 1, 512 * 16);
    ((uint64_t*)a[1])[16] = a[3];
    need((uint32_t)a[3] <= 2, "the number of fences");
    nap((uint64_t)(uint32_t)a[2] * 3000 * (1 + (uint32_t)a[3]));
  } else if (s->kernel == 3) {
    need(*(uint64_t*)a[0] == 0, "the counter is not 0");
    nap((uint32_t)a[1] * 4000ull);
  } else if (s->kernel == 4) {
    exchange(a);
  }
  return NULL;
}

int cuInit(unsigned flags) { return (int)flags; }
int cuGetErrorName(int code, const char** name) { (void)code; *name = "FAKE"; return 0; }
int cuDeviceGetCount(int* n) { *n = 1; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal != 0; }
int cuDeviceGetName(char* name, int most, int device) { return snprintf(name, (size_t)most, "Fake #%d", device) < 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)8; return device; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
int cuCtxSetCurrent(void* context) { return context != (void*)8; }
int cuCtxSynchronize(void) { return 0; }
int cuCtxEnablePeerAccess(void* context, unsigned flags) { (void)context; (void)flags; return 217; }
int cuMemAlloc_v2(uint64_t* at, size_t bytes) {
  *at = (uint64_t)aligned_alloc(4096, (bytes + 4095) & ~4095ul);
  return !*at;
}
int cuMemFree_v2(uint64_t at) { free((void*)at); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) { memcpy((void*)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) { memcpy(to, (void*)from, bytes); return 0; }
int cuMemGetInfo_v2(size_t* left, size_t* all) { *left = *all = 1ul << 30; return 0; }
int cuMemsetD8_v2(uint64_t at, unsigned char byte, size_t bytes) { memset((void*)at, byte, bytes); return 0; }
int cuStreamCreate(struct stream** s, unsigned flags) { (void)flags; return !(*s = calloc(1, sizeof **s)); }
int cuStreamSynchronize(struct stream* s) {
  if (s && s->busy) pthread_join(s->thread, NULL);
  if (s) s->busy = 0;
  return 0;
}
int cuStreamDestroy_v2(struct stream* s) {
  cuStreamSynchronize(s);
  free(s);
  return 0;
}
int cuModuleLoadData(void** module, const char* image) {
  need(strstr(image, ".visible .entry exchange(") != NULL, "no PTX");
  *module = (void*)16;
  return 0;
}
int cuModuleUnload(void* module) { return module != (void*)16; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  need(module == (void*)16, "no module");
  for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
    if (!strcmp(name, KERNELS[i].name)) return *function = (void*)(i + 1), 0;
  return 500;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, struct stream* s, void** parameters, void** extra) {
  cuStreamSynchronize(s);
  s->kernel = (int)(uintptr_t)function - 1;
  need(gx * gy * gz * by * bz == 1 && bx == KERNELS[s->kernel].threads && !shared && !extra, "the launch");
  for (int i = 0; i < KERNELS[s->kernel].arguments; i++) s->arguments[i] = *(uint64_t*)parameters[i];
  s->busy = !pthread_create(&s->thread, NULL, run, s);
  return !s->busy;
}
