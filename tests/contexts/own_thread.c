/* The first call on a thread's own default stream, of a communicator that does not block, while its peer cannot
 * answer: nobody but that thread can enqueue it.
 *
 *   own_thread CASE     CASE: p another thread polls, e the thread ends, c its capture ends too early, a another thread
 *                             aborts, g a group with a split, f the process forks */
#include <cuda.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 512, BYTES = COUNT * sizeof(float), PATIENCE = 60, POLLS = 200, AT_ONCE_MS = 5000, PAUSE_US = 1000 };

static char kind;
static pid_t peer;
static int orders[2], ready[2];
static ncclComm_t comm, child;
static CUdeviceptr data;

static void fail(const char *what, int code) {
  printf("FAILED %c: %s (%d) %s\n", kind, what, code, ncclGetLastError(NULL));
  fflush(stdout);
  if (peer) kill(peer, SIGKILL);
  _exit(1);
}

static ncclResult_t state(void) {
  ncclResult_t code = ncclSystemError, asked = ncclCommGetAsyncError(comm, &code);
  return asked == ncclSuccess ? code : asked;
}

static ncclResult_t settle(void) {
  ncclResult_t code;
  while ((code = state()) == ncclInProgress) usleep(PAUSE_US);
  return code;
}

static long now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static void begin(ncclUniqueId id, int rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (cudaSetDevice(rank) != cudaSuccess || cuMemAlloc(&data, BYTES) != CUDA_SUCCESS) fail("no device", rank);
  ncclCommInitRankConfig(&comm, 2, id, rank, &config);
  if (settle() != ncclSuccess) fail("no communicator", rank);
}

static void give(int rank) {
  float values[COUNT];
  for (int i = 0; i < COUNT; i++) values[i] = (float)(rank + 1);
  if (cuMemcpyHtoDAsync(data, values, BYTES, CU_STREAM_PER_THREAD) != CUDA_SUCCESS) fail("copy", rank);
}

static ncclResult_t call(int splits) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  long start = now_ms();
  ncclGroupStart();
  if (splits) ncclCommSplit(comm, 0, 0, &child, &config);
  ncclAllReduce((void *)data, (void *)data, COUNT, ncclFloat, ncclSum, comm, cudaStreamPerThread);
  ncclResult_t code = ncclGroupEnd();
  if (now_ms() - start > AT_ONCE_MS) fail("the call has waited", (int)(now_ms() - start));
  return code;
}

static void check(void) {
  float values[COUNT];
  int wrong = 0;
  cuMemcpyDtoHAsync(values, data, BYTES, CU_STREAM_PER_THREAD);
  if (cuStreamSynchronize(CU_STREAM_PER_THREAD) != CUDA_SUCCESS) fail("synchronize", 0);
  for (int i = 0; i < COUNT; i++) wrong += values[i] != 3.0F;
  if (wrong) fail("wrong values", wrong);
}

static void expect_words(ncclResult_t code, ncclResult_t wanted, const char *words) {
  if (code != wanted || !strstr(ncclGetLastError(comm), words)) fail(words, code);
}

static void order(char what) {
  kill(peer, SIGCONT);
  if (write(orders[1], &what, 1) != 1) fail("order", 0);
}

/* ---- Rank 0 ---- */

static void *call_elsewhere(void *unused) {
  (void)unused;
  cudaSetDevice(0);
  give(0);
  if (call(0) != ncclInProgress) fail("not in progress", 0);
  return NULL;
}

static void *poll_elsewhere(void *unused) {
  (void)unused;
  for (int i = 0; i < POLLS; i++) {
    if (state() != ncclInProgress) fail("another thread has enqueued it", state());
    usleep(PAUSE_US);
  }
  return NULL;
}

static void in_a_thread(void *(*what)(void *)) {
  pthread_t thread;
  pthread_create(&thread, NULL, what, NULL);
  pthread_join(thread, NULL);
}

static void finish(char what) {
  order(what);
  if (settle() != ncclSuccess) fail("an error", state());
  check();
}

static void polled_by_another(void) {
  call_elsewhere(NULL);
  in_a_thread(poll_elsewhere);
  order('r');
  in_a_thread(poll_elsewhere);
  if (settle() != ncclSuccess) fail("an error", state());
  check();
}

static void thread_ends(void) {
  in_a_thread(call_elsewhere);
  order('x');
  expect_words(settle(), ncclInvalidUsage, "the thread that made a call on its default stream has ended");
}

static void capture_ends(void) {
  CUgraph graph;
  cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  if (call(0) != ncclInProgress) fail("not in progress", 0);
  cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph);
  /* The peer's library answers; its program does nothing. */
  kill(peer, SIGCONT);
  expect_words(settle(), ncclInvalidUsage, "capture of stream 0x2");
  order('x');
  cuGraphDestroy(graph);
}

static void *abort_it(void *unused) {
  (void)unused;
  long start = now_ms();
  if (ncclCommAbort(comm) != ncclSuccess) fail("abort", 0);
  if (now_ms() - start > 2 * AT_ONCE_MS) fail("abort has waited", (int)(now_ms() - start));
  return NULL;
}

static void aborted_by_another(void) {
  call_elsewhere(NULL);
  in_a_thread(abort_it);
  if (state() != ncclInvalidArgument) fail("a handle after its end", state());
  order('x');
}

static void in_a_group(void) {
  give(0);
  if (call(1) != ncclInProgress) fail("not in progress", 0);
  finish('s');
  if (!child || ncclCommAbort(child) != ncclSuccess) fail("no child", 0);
}

static void with_a_fork(void) {
  int status;
  call_elsewhere(NULL);
  pid_t forked = fork();
  if (forked == 0) _exit(state() == ncclInvalidUsage ? 0 : 1);
  waitpid(forked, &status, 0);
  if (status) fail("a forked child", status);
  finish('r');
}

static void rank_0(void) {
  switch (kind) {
  case 'p': polled_by_another(); break;
  case 'e': thread_ends(); break;
  case 'c': capture_ends(); break;
  case 'a': aborted_by_another(); return;
  case 'g': in_a_group(); break;
  default: with_a_fork(); break;
  }
  ncclCommAbort(comm);
}

/* ---- Rank 1 ---- */

static int rank_1(ncclUniqueId id) {
  char what = 0;
  begin(id, 1);
  if (write(ready[1], &what, 1) != 1 || read(orders[0], &what, 1) != 1) return 1;
  if (what != 'x') {
    give(1);
    call(what == 's');
    if (settle() != ncclSuccess) fail("an error of rank 1", state());
    check();
  }
  if (child) ncclCommAbort(child);
  return ncclCommAbort(comm);
}

int main(int count, char **arguments) {
  int ids[2], status;
  char byte;
  ncclUniqueId id;
  kind = count > 1 ? *arguments[1] : 'p';
  alarm(PATIENCE);
  if (pipe(ids) || pipe(orders) || pipe(ready)) return 2;
  pid_t other = fork();
  if (other == 0) {
    alarm(PATIENCE);
    return read(ids[0], &id, sizeof id) == sizeof id ? rank_1(id) : 6;
  }
  peer = other;
  if (ncclGetUniqueId(&id) != ncclSuccess || write(ids[1], &id, sizeof id) != sizeof id) return 6;
  begin(id, 0);
  if (read(ready[0], &byte, 1) != 1) fail("no peer", 0);
  kill(peer, SIGSTOP);
  waitpid(peer, &status, WUNTRACED);
  rank_0();
  waitpid(peer, &status, 0);
  printf("%c done, rank 1 %d\n", kind, status);
  return status != 0;
}
