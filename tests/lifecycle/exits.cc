// Ways for a process with communicators to end, one for each word on the command line. The exit code is 42 in all of
// them, unless something went wrong before. Linked with the library, or (-DLOADED) opening it at run time.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "cuda_runtime.h"
#include "nccl.h"

namespace {

constexpr int DEVICES = 2;
constexpr size_t COUNT = 1000;
constexpr int CODE = 42;

struct Api {
  decltype(&ncclCommInitAll) init_all;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclGetUniqueId) unique_id;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  void *library;
} api;

ncclComm_t comms[DEVICES];
cudaStream_t streams[DEVICES];
float *buffers[DEVICES];
// What an exit handler or a destructor is to do with the communicators.
ncclResult_t (*last)(ncclComm_t) = nullptr;

void fail(const char *what, int code) {
  fprintf(stderr, "%s returned %d\n", what, code);
  _exit(1);
}

#define CHECK(call)                       \
  do {                                    \
    int result = static_cast<int>(call);  \
    if (result != 0) fail(#call, result); \
  } while (0)

#ifdef LOADED
template <typename F>
void find(F &function, const char *name) {
  function = reinterpret_cast<F>(dlsym(api.library, name));
  if (!function) fail(name, 1);
}

void load() {
  api.library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!api.library) fail(dlerror(), 1);
  find(api.init_all, "ncclCommInitAll");
  find(api.init_rank, "ncclCommInitRankConfig");
  find(api.unique_id, "ncclGetUniqueId");
  find(api.all_reduce, "ncclAllReduce");
  find(api.group_start, "ncclGroupStart");
  find(api.group_end, "ncclGroupEnd");
  find(api.destroy, "ncclCommDestroy");
  find(api.abort, "ncclCommAbort");
}
#else
void load() {
  api = {ncclCommInitAll, ncclCommInitRankConfig, ncclGetUniqueId, ncclAllReduce, ncclGroupStart, ncclGroupEnd,
         ncclCommDestroy, ncclCommAbort, nullptr};
}
#endif

void call(int first, int end) {
  CHECK(api.group_start());
  for (int d = first; d < end; d++) {
    CHECK(api.all_reduce(buffers[d], buffers[d], COUNT, ncclFloat32, ncclSum, comms[d], streams[d]));
  }
  CHECK(api.group_end());
}

// Communicators of all devices, and a sum by them.
void use() {
  CHECK(api.init_all(comms, DEVICES, nullptr));
  static float host[COUNT];
  for (int d = 0; d < DEVICES; d++) {
    CHECK(cudaSetDevice(d));
    if (!streams[d]) {
      CHECK(cudaStreamCreateWithFlags(&streams[d], cudaStreamNonBlocking));
      CHECK(cudaMalloc(reinterpret_cast<void **>(&buffers[d]), sizeof host));
    }
    for (float &x : host) x = static_cast<float>(d + 1);
    CHECK(cudaMemcpy(buffers[d], host, sizeof host, cudaMemcpyHostToDevice));
  }
  call(0, DEVICES);
  for (int d = 0; d < DEVICES; d++) {
    CHECK(cudaStreamSynchronize(streams[d]));
    CHECK(cudaMemcpy(host, buffers[d], sizeof host, cudaMemcpyDeviceToHost));
    for (float x : host) CHECK(x != 3.0f);
  }
}

// A kernel that waits for the other rank for good.
void hang() { call(0, 1); }

// A creation that waits for a peer that never comes.
void begin_in_vain() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId id;
  CHECK(api.unique_id(&id));
  ncclResult_t code = api.init_rank(&comms[0], 2, id, 0, &config);
  CHECK(code != ncclInProgress);
}

void end_all() {
  for (ncclComm_t comm : comms) {
    if (comm && last) printf("ended: %d\n", static_cast<int>(last(comm)));
  }
  fflush(stdout);
}

struct AtEnd {
  bool armed = false;
  ~AtEnd() {
    if (armed) end_all();
  }
} at_end;

bool is(const char *word, const char *name) { return strcmp(word, name) == 0; }

// How the process with communicators comes to its end; the result is that of main.
int leave(const char *how) {
  if (is(how, "thread")) {
    std::thread([] { exit(CODE); }).join();
  } else if (is(how, "quick")) {
    quick_exit(CODE);
  } else if (is(how, "at_quick")) {
    last = api.destroy;
    at_quick_exit(end_all);
    quick_exit(CODE);
  } else if (is(how, "atexit")) {
    last = api.destroy;
    atexit(end_all);
  } else if (is(how, "atexit_abort")) {
    last = api.abort;
    atexit(end_all);
    hang();
  } else if (is(how, "static")) {
    last = api.destroy;
    at_end.armed = true;
  } else if (is(how, "static_abort")) {
    last = api.abort;
    at_end.armed = true;
    hang();
  } else if (is(how, "hang")) {
    hang();
  } else if (is(how, "hang_waited")) {
    hang();
    std::thread([] { cudaStreamSynchronize(streams[0]); }).detach();
    usleep(50 * 1000);
  } else if (is(how, "destroying")) {
    hang();
    std::thread([] { api.destroy(comms[0]); }).detach();
    usleep(50 * 1000);
  } else if (!is(how, "return")) {
    fail(how, 2);
  }
  return CODE;
}

// The same for what the library alone can be asked for by who loads it.
int unload(const char *how) {
  if (is(how, "close")) {
    for (int round = 0; round < 3; round++) {
      for (ncclComm_t comm : comms) CHECK(api.destroy(comm));
      CHECK(dlclose(api.library));
      load();
      use();
    }
    for (ncclComm_t comm : comms) CHECK(api.destroy(comm));
    CHECK(dlclose(api.library));
  } else if (is(how, "close_live")) {
    CHECK(dlclose(api.library));
    usleep(20 * 1000);
  } else if (is(how, "close_and_use")) {
    // Closed with communicators, and opened again: they are as they were.
    CHECK(dlclose(api.library));
    load();
    call(0, DEVICES);
    for (cudaStream_t stream : streams) CHECK(cudaStreamSynchronize(stream));
    for (ncclComm_t comm : comms) CHECK(api.destroy(comm));
    CHECK(dlclose(api.library));
  } else if (is(how, "close_hang")) {
    hang();
    CHECK(dlclose(api.library));
    usleep(20 * 1000);
  } else {
    return leave(how);
  }
  return CODE;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  const char *how = argv[1];
  load();
  if (is(how, "creation") || is(how, "close_creation")) {
    begin_in_vain();
    usleep(20 * 1000);
    if (is(how, "close_creation")) CHECK(dlclose(api.library));
    usleep(20 * 1000);
    return CODE;
  }
#ifdef LOADED
  if (is(how, "close_thread")) {
    // Nothing of the thread that has used it keeps the library, but its kernel still runs.
    std::thread([] {
      use();
      hang();
    }).join();
    CHECK(dlclose(api.library));
    usleep(50 * 1000);
    if (!dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_NOW)) fail("the library is gone: dlopen", 1);
    return CODE;
  }
#endif
  use();
  return unload(how);
}
