/* SOFTCUDA_STRICT_IPC=1: what IPC of memory does on a GPU where a program is careless. Two processes, each this
 * program. It prints what the driver had to say of it. */
#include <cuda.h>
#include <signal.h>
#include <sys/wait.h>

#include "check.h"

enum { SMALL = 4096, LARGE = 2 << 20 };

typedef struct message {
  CUipcMemHandle small, other, large;
  size_t apart; /* from the small allocation to its neighbour */
} message;

static void context(void) {
  CUcontext context;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
}

static void put(int fd, const void *data, size_t size) { CHECK(write(fd, data, size) == (ssize_t)size); }

static void get(int fd, void *data, size_t size) {
  for (size_t got = 0; got < size;) {
    ssize_t n = read(fd, (char *)data + got, size - got);
    CHECK(n > 0);
    got += (size_t)n;
  }
}

/* Opens what the parent exports, and reaches beyond it. */
static int child(int in, int out) {
  message m;
  CUdeviceptr small, large, again, base;
  size_t size;
  unsigned char seen;
  char word = 'c';
  context();
  get(in, &m, sizeof m);
  OK(cuIpcOpenMemHandle(&small, m.small, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuMemGetAddressRange(&base, &size, small));
  CHECK(size == LARGE);
  /* the neighbour, which nobody has handed over */
  OK(cuMemcpyDtoH(&seen, small + m.apart, 1));
  CHECK(seen == 0x22);
  OK(cuMemsetD8(small + m.apart, 0x33, 1));
  OK(cuCtxSynchronize());
  /* the same memory once more, and another piece of the same block */
  EXPECT(CUDA_ERROR_ALREADY_MAPPED, cuIpcOpenMemHandle(&again, m.small, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT(CUDA_ERROR_ALREADY_MAPPED, cuIpcOpenMemHandle(&again, m.other, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuIpcOpenMemHandle(&large, m.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  put(out, &word, 1);
  get(in, &word, 1); /* the parent has freed something else */
  OK(cuIpcCloseMemHandle(small));
  OK(cuIpcOpenMemHandle(&again, m.other, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuMemcpyDtoH(&seen, again, 1));
  CHECK(seen == 0x33);
  OK(cuIpcCloseMemHandle(again));
  put(out, &word, 1);
  get(in, &word, 1); /* the parent has freed what is open here */
  return 0;
}

static void parent(int to, int from) {
  message m;
  CUdeviceptr small, other, large, alone;
  unsigned char seen;
  char word = 'p';
  size_t before, after, total;
  OK(cuMemGetInfo(&before, &total));
  OK(cuMemAlloc(&small, SMALL));
  OK(cuMemAlloc(&other, SMALL));
  OK(cuMemGetInfo(&after, &total));
  CHECK(before - after == LARGE && small % 512 == 0 && other % 512 == 0);
  OK(cuMemAlloc(&large, LARGE));
  OK(cuMemAlloc(&alone, LARGE));
  OK(cuMemsetD8(small, 0x11, SMALL));
  OK(cuMemsetD8(other, 0x22, SMALL));
  OK(cuCtxSynchronize());
  m.apart = (size_t)(other - small);
  CHECK(m.apart < LARGE);
  OK(cuIpcGetMemHandle(&m.small, small));
  OK(cuIpcGetMemHandle(&m.other, other));
  OK(cuIpcGetMemHandle(&m.large, large));
  put(to, &m, sizeof m);
  get(from, &word, 1);
  OK(cuMemcpyDtoH(&seen, other, 1));
  CHECK(seen == 0x33);
  OK(cuMemFree(alone)); /* never exported */
  put(to, &word, 1);
  get(from, &word, 1);
  OK(cuMemFree(small)); /* closed */
  OK(cuMemFree(other));
  OK(cuMemFree(large)); /* open in the child */
  EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&large, SMALL));
  EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  put(to, &word, 1);
}

int main(int argc, char **argv) {
  int to[2], from[2], status;
  if (argc > 1) return child(0, 3);
  signal(SIGPIPE, SIG_IGN);
  OK(pipe(to));
  OK(pipe(from));
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    dup2(to[0], 0);
    dup2(from[1], 3);
    closefrom(4);
    execl(argv[0], argv[0], "child", (char *)NULL);
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  context();
  parent(to[1], from[0]);
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return 0;
}
