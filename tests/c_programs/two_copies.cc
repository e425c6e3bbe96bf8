// Two copies of the library in one process, as where a framework brings its own: two_copies FILE FILE. Each has its
// own state; both have communicators at the same time, and one is used after the other was closed.
#include <dlfcn.h>

#include "say.h"

constexpr int RANKS = 2;

struct Copy {
  void* library;
  decltype(&ncclCommInitAll) initAll;
  decltype(&ncclAllReduce) allReduce;
  decltype(&ncclGroupStart) groupStart;
  decltype(&ncclGroupEnd) groupEnd;
  decltype(&ncclCommDestroy) destroy;
  ncclComm_t comms[RANKS];
};

template<class F> static void find(void* library, const char* name, F& function) {
  function = (F)dlsym(library, name);
  if (!function) say_failed(name, dlerror());
}

static void open(Copy& c, const char* path, int first) {
  c.library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!c.library) say_failed(path, dlerror());
  find(c.library, "ncclCommInitAll", c.initAll);
  find(c.library, "ncclAllReduce", c.allReduce);
  find(c.library, "ncclGroupStart", c.groupStart);
  find(c.library, "ncclGroupEnd", c.groupEnd);
  find(c.library, "ncclCommDestroy", c.destroy);
  const int devices[RANKS] = {first, first + 1};
  if (c.initAll(c.comms, RANKS, devices) != ncclSuccess) say_failed(path, "ncclCommInitAll");
}

static size_t reduce(Copy& c, int first) {
  float* data[RANKS];
  for (int r = 0; r < RANKS; r++) {
    CUDA(cudaSetDevice(first + r));
    data[r] = filled(r);
  }
  c.groupStart();
  for (int r = 0; r < RANKS; r++)
    if (c.allReduce(data[r], data[r], COUNT, ncclFloat, ncclSum, c.comms[r], nullptr) != ncclSuccess)
      say_failed("two copies", "ncclAllReduce");
  if (c.groupEnd() != ncclSuccess) say_failed("two copies", "ncclGroupEnd");
  size_t wrong = 0;
  for (int r = 0; r < RANKS; r++) {
    CUDA(cudaSetDevice(first + r));
    CUDA(cudaDeviceSynchronize());
    wrong += count_wrong(data[r], RANKS * (RANKS + 1) / 2);
  }
  return wrong;
}

static void close(Copy& c) {
  for (ncclComm_t comm : c.comms)
    if (c.destroy(comm) != ncclSuccess) say_failed("two copies", "ncclCommDestroy");
  dlclose(c.library);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  Copy a, b;
  open(a, argv[1], 0);
  open(b, argv[2], 2);
  if (a.allReduce == b.allReduce) say_failed(argv[2], "is the same library");
  // The handles of one are garbage to the other, and are told so.
  if (b.destroy(a.comms[0]) != ncclInvalidArgument) say_failed("two copies", "a foreign communicator was accepted");
  size_t wrong = reduce(a, 0) + reduce(b, 2) + reduce(a, 0);
  close(a);
  wrong += reduce(b, 2);
  close(b);
  printf("two copies: %zu sums are wrong\n", wrong);
  return wrong != 0;
}
