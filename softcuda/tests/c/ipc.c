/* Memory and events shared by two processes, each of which is this program. */
#include <cuda.h>
#include <signal.h>
#include <sys/wait.h>

#include "check.h"

enum { N = 1 << 20 };

/* What the two tell each other over a pipe. */
typedef struct message {
  CUipcMemHandle memory;
  CUipcEventHandle event;
} message;

static void send_all(int fd, const void *data, size_t size) {
  CHECK(write(fd, data, size) == (ssize_t)size); /* less than PIPE_BUF: at once or not at all */
}

static void receive_all(int fd, void *data, size_t size) {
  for (size_t got = 0; got < size;) {
    ssize_t n = read(fd, (char *)data + got, size - got);
    CHECK(n > 0);
    got += (size_t)n;
  }
}

static void context_of_device(int device) {
  CUcontext context;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
}

/* A small device allocation, exported by a process that is about to die. */
static int child_that_dies(int out) {
  message m;
  CUdeviceptr p;
  memset(&m, 0, sizeof m);
  context_of_device(1);
  OK(cuMemAlloc(&p, 4096));
  OK(cuIpcGetMemHandle(&m.memory, p));
  send_all(out, &m, sizeof m);
  _exit(0);
}

/* Opens the parent's memory as another device would, checks, writes, answers. */
static int child(int in, int out) {
  message m;
  CUdeviceptr p, again;
  CUevent event;
  CUstream stream;
  char word = 'd';
  unsigned char *seen = malloc(N);
  context_of_device(1);
  int before = open_fds();
  receive_all(in, &m, sizeof m);
  OK(cuIpcOpenMemHandle(&p, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuIpcOpenEventHandle(&event, m.event));
  OK(cuStreamWaitEvent(stream, event, 0)); /* the parent's fill */
  OK(cuMemcpyDtoHAsync(seen, p, N, stream));
  OK(cuStreamSynchronize(stream));
  for (int i = 0; i < N; i++) CHECK(seen[i] == 0x5a);
  OK(cuMemsetD8(p + N / 2, 0xa5, N / 2));
  OK(cuCtxSynchronize()); /* a fill of device memory does not wait by itself */
  OK(cuIpcOpenMemHandle(&again, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuIpcCloseMemHandle(again));
  send_all(out, &word, 1);
  /* the memory outlives its owner's cuMemFree as long as it is open here */
  receive_all(in, &word, 1);
  OK(cuMemcpyDtoH(seen, p + N - 1, 1));
  CHECK(seen[0] == 0xa5);
  OK(cuIpcCloseMemHandle(p));
  CHECK(cuIpcCloseMemHandle(p) != CUDA_SUCCESS);
  CHECK(cuMemcpyDtoH(seen, p, 1) != CUDA_SUCCESS);
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(stream));
  CHECK(open_fds() == before);
  send_all(out, &word, 1);
  return 0;
}

static pid_t start(const char *self, const char *role, int to_child[2], int from_child[2]) {
  OK(pipe(to_child));
  OK(pipe(from_child));
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    dup2(to_child[0], 0);
    dup2(from_child[1], 3);
    closefrom(4);
    execl(self, self, role, (char *)NULL);
    _exit(127);
  }
  close(to_child[0]);
  close(from_child[1]);
  return pid;
}

static void stop(pid_t pid, int to_child[2], int from_child[2]) {
  int status;
  close(to_child[1]);
  close(from_child[0]);
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void share(const char *self) {
  int to[2], from[2];
  message m;
  CUdeviceptr p, q;
  CUevent event;
  CUstream stream;
  char word = 'p';
  unsigned char seen[2];
  pid_t pid = start(self, "child", to, from);
  OK(cuMemAlloc(&p, N));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
  OK(cuIpcGetMemHandle(&m.memory, p));
  OK(cuIpcGetEventHandle(&m.event, event));
  OK(cuMemsetD8Async(p, 0x5a, N, stream));
  OK(cuEventRecord(event, stream));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle(&q, m.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  send_all(to[1], &m, sizeof m);
  receive_all(from[0], &word, 1);
  OK(cuMemcpyDtoH(seen, p + N / 2 - 1, 2));
  CHECK(seen[0] == 0x5a && seen[1] == 0xa5);
  OK(cuMemFree(p));
  send_all(to[1], &word, 1);
  receive_all(from[0], &word, 1);
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(stream));
  stop(pid, to, from);
}

static void bad_input(const char *self) {
  int to[2], from[2];
  message dead, garbage;
  CUdeviceptr p;
  CUevent event;
  pid_t pid = start(self, "dies", to, from);
  receive_all(from[0], &dead, sizeof dead);
  stop(pid, to, from);
  CHECK(cuIpcOpenMemHandle(&p, dead.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
  memset(&garbage, 0x5b, sizeof garbage);
  CHECK(cuIpcOpenMemHandle(&p, garbage.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
  CHECK(cuIpcOpenEventHandle(&event, garbage.event) != CUDA_SUCCESS);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&garbage.memory, 0x1000));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CHECK(cuIpcGetEventHandle(&garbage.event, event) != CUDA_SUCCESS); /* not made for it */
  OK(cuEventDestroy(event));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&event, CU_EVENT_INTERPROCESS)); /* with timing */
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "child") == 0) return child(0, 3);
  if (argc > 1) return child_that_dies(3);
  signal(SIGPIPE, SIG_IGN);
  context_of_device(0);
  share(argv[0]);
  int before = open_fds();
  for (int i = 0; i < 3; i++) share(argv[0]);
  bad_input(argv[0]);
  CHECK(open_fds() == before);
  return 0;
}
