/* Calls on every kind of stream, in every kind of context, and what comes of them: right values, or an error with
 * words.
 *
 *   table CONTEXT [STREAMS [DEVICES]]     CONTEXT: p the primary one, c one of cuCtxCreate, g a green one
 *                                         STREAMS: 0 1 2 the default streams, o one of the context, x one of another
 *                                         context
 *                                         DEVICES: 1 or 2
 *
 * Two ranks are threads of this process, each with a context of its own. For communicators that block and that do not,
 * and for one user thread or two that take turns on a communicator, each with streams of its own, steps are done in
 * several orders, since the first one connects. Built with -DPER_THREAD, copies and waits mean the per-thread default
 * stream by 0, as in a program that was built for it. */
#include <cuda.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef PER_THREAD
CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data);
CUresult cuEventRecord_ptsz(CUevent event, CUstream stream);
CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream);
#define copy_in cuMemcpyHtoDAsync_v2_ptsz
#define copy_out cuMemcpyDtoHAsync_v2_ptsz
#define synchronize cuStreamSynchronize_ptsz
#define call_host cuLaunchHostFunc_ptsz
#define launch_graph cuGraphLaunch_ptsz
#define record cuEventRecord_ptsz
#else
#define copy_in cuMemcpyHtoDAsync
#define copy_out cuMemcpyDtoHAsync
#define synchronize cuStreamSynchronize
#define call_host cuLaunchHostFunc
#define launch_graph cuGraphLaunch
#define record cuEventRecord
#endif

enum { RANKS = 2, THREADS = 2, COUNT = 256, BYTES = COUNT * sizeof(float), LAUNCHES = 3, LARGE = 1 << 20 };
enum kind { CALL, GROUP, MESSAGE, CAPTURE, CHILD, SPLIT_AND_CALL, SPLIT_AND_CALL_OTHER, INIT_AND_CALL, OWN_MEMORY };
static const char *const NAMES[] = {
    "call", "group", "message", "capture", "child", "split+call", "split+call on another", "init+call", "ncclMemAlloc"};
/* A first step connects in another way. */
static const char *const ORDERS[] = {"001235678", "101", "202", "330", "7", "60", "80"};

struct rank {
  int rank, device, blocking, threads;
  char context_kind, stream_kind;
  const char *order;
  CUcontext home, other;
  ncclComm_t comm, second;
  pthread_barrier_t turns;
};
struct user {
  struct rank *rank;
  int number;
  CUstream stream;
  CUdeviceptr data, more;
  float value;
};

static pthread_barrier_t ranks;
static ncclUniqueId ids[4];
static int failures, steps;
/* The last error is the process's. */
static pthread_mutex_t last_error = PTHREAD_MUTEX_INITIALIZER;

#define CUDA(call) cuda(call, #call, __LINE__)
static void cuda(CUresult code, const char *call, int line) {
  if (code == CUDA_SUCCESS) return;
  const char *name = NULL;
  cuGetErrorName(code, &name);
  printf("line %d: %s: %d %s\n", line, call, code, name ? name : "?");
  exit(2);
}

static void fail(struct user *user, enum kind kind, const char *what, int code) {
  struct rank *rank = user->rank;
  printf("FAILED rank %d context %c stream %c blocking %d threads %d user %d order %s, %s: %s (%d) %s\n", rank->rank,
         rank->context_kind, rank->stream_kind, rank->blocking, rank->threads, user->number, rank->order, NAMES[kind],
         what, code, code ? ncclGetLastError(rank->comm) : "");
  __sync_fetch_and_add(&failures, 1);
}

static ncclResult_t settle(ncclComm_t comm, ncclResult_t code) {
  while (code == ncclInProgress) {
    ncclResult_t asked = ncclCommGetAsyncError(comm, &code);
    if (asked != ncclSuccess) return asked;
  }
  return code;
}

/* Whoever does not wait for it is too early by far. */
static void slowly(void *unused) {
  (void)unused;
  usleep(2000);
}

/* ---- What is done on the stream before and after a call ---- */

static void give(struct user *user, CUdeviceptr to, float base) {
  float values[COUNT];
  for (int i = 0; i < COUNT; i++) values[i] = base + (float)(i % 8);
  CUDA(call_host(user->stream, slowly, NULL));
  CUDA(copy_in(to, values, BYTES, user->stream));
}

static void expect(struct user *user, enum kind kind, CUdeviceptr at, float factor, float base) {
  float values[COUNT];
  int wrong = 0;
  CUDA(copy_out(values, at, BYTES, user->stream));
  CUDA(synchronize(user->stream));
  for (int i = 0; i < COUNT; i++) wrong += values[i] != base + factor * (float)(i % 8);
  if (wrong) fail(user, kind, "wrong values", wrong);
}

/* The same for who waits for an event behind the call, on another stream. */
static void expect_behind(struct user *user, enum kind kind, CUdeviceptr at, float factor, float base) {
  CUstream before = user->stream, behind;
  CUevent event;
  CUDA(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CUDA(record(event, before));
  CUDA(cuStreamCreate(&behind, CU_STREAM_NON_BLOCKING));
  CUDA(cuStreamWaitEvent(behind, event, 0));
  user->stream = behind;
  expect(user, kind, at, factor, base);
  user->stream = before;
  CUDA(cuStreamDestroy(behind));
  CUDA(cuEventDestroy(event));
}

static float own(struct user *user) { return user->value + (float)user->rank->rank; }
static float sum(struct user *user) { return 2 * user->value + 1; }
static float theirs(struct user *user) { return user->value + (float)(1 - user->rank->rank); }

static ncclResult_t reduce(struct user *user, ncclComm_t comm, CUdeviceptr data) {
  return ncclAllReduce((void *)data, (void *)data, COUNT, ncclFloat, ncclSum, comm, (cudaStream_t)user->stream);
}

static ncclConfig_t config(struct user *user) {
  ncclConfig_t made = NCCL_CONFIG_INITIALIZER;
  made.blocking = user->rank->blocking;
  return made;
}

/* ---- The steps ---- */

static ncclResult_t group(struct user *user) {
  ncclGroupStart();
  reduce(user, user->rank->comm, user->data);
  reduce(user, user->rank->second, user->more);
  ncclResult_t code = settle(user->rank->comm, ncclGroupEnd());
  return code == ncclSuccess ? settle(user->rank->second, ncclInProgress) : code;
}

static ncclResult_t message(struct user *user) {
  ncclComm_t comm = user->rank->comm;
  int peer = 1 - user->rank->rank;
  ncclGroupStart();
  ncclSend((void *)user->data, COUNT, ncclFloat, peer, comm, (cudaStream_t)user->stream);
  ncclRecv((void *)user->more, COUNT, ncclFloat, peer, comm, (cudaStream_t)user->stream);
  return settle(comm, ncclGroupEnd());
}

static ncclResult_t child(struct user *user) {
  ncclComm_t made = NULL;
  ncclConfig_t with = config(user);
  ncclResult_t code = settle(user->rank->comm, ncclCommSplit(user->rank->comm, 0, user->rank->rank, &made, &with));
  if (code == ncclSuccess) code = settle(made, reduce(user, made, user->data));
  if (code == ncclSuccess) expect(user, CHILD, user->data, 2, sum(user));
  if (made) ncclCommAbort(made);
  return code;
}

/* The communicator of the call is polled before any other. */
static ncclResult_t split_and_call(struct user *user, ncclComm_t called) {
  ncclComm_t made = NULL;
  ncclConfig_t with = config(user);
  ncclGroupStart();
  ncclCommSplit(user->rank->comm, 0, user->rank->rank, &made, &with);
  reduce(user, called, user->data);
  ncclResult_t code = settle(called, ncclGroupEnd());
  if (code == ncclSuccess) expect(user, SPLIT_AND_CALL, user->data, 2, sum(user));
  ncclResult_t parent = settle(user->rank->comm, ncclInProgress);
  if (made) ncclCommAbort(made);
  return code == ncclSuccess ? parent : code;
}

static ncclResult_t init_and_call(struct user *user) {
  ncclComm_t made = NULL;
  ncclConfig_t with = config(user);
  ncclGroupStart();
  ncclCommInitRankConfig(&made, RANKS, ids[2 + user->number], user->rank->rank, &with);
  reduce(user, user->rank->comm, user->data);
  ncclResult_t code = settle(user->rank->comm, ncclGroupEnd());
  if (code == ncclSuccess) expect(user, INIT_AND_CALL, user->data, 2, sum(user));
  ncclResult_t other = made ? settle(made, ncclInProgress) : ncclSuccess;
  if (made) ncclCommAbort(made);
  return code == ncclSuccess ? other : code;
}

static ncclResult_t capture(struct user *user) {
  CUgraph graph;
  CUgraphExec ready;
  CUDA(cuStreamBeginCapture(user->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  ncclResult_t code = settle(user->rank->comm, reduce(user, user->rank->comm, user->data));
  CUDA(cuStreamEndCapture(user->stream, &graph));
  if (code != ncclSuccess) return code;
  CUDA(cuGraphInstantiate(&ready, graph, 0));
  for (int i = 0; i < LAUNCHES; i++) {
    give(user, user->data, own(user));
    CUDA(launch_graph(ready, user->stream));
    expect(user, CAPTURE, user->data, 2, sum(user));
  }
  CUDA(cuGraphExecDestroy(ready));
  CUDA(cuGraphDestroy(graph));
  return code;
}

/* Large calls on memory of the library's, which ranks use in place of copies. */
static ncclResult_t own_memory(struct user *user) {
  CUdeviceptr small = user->data;
  void *large = NULL;
  ncclResult_t code = ncclMemAlloc(&large, LARGE);
  for (int i = 0; i < LAUNCHES && code == ncclSuccess; i++) {
    user->data = (CUdeviceptr)large + LARGE - BYTES;
    give(user, user->data, own(user));
    code = ncclAllReduce(large, large, LARGE / sizeof(float), ncclFloat, ncclSum, user->rank->comm,
                         (cudaStream_t)user->stream);
    code = settle(user->rank->comm, code);
    if (code == ncclSuccess) expect(user, OWN_MEMORY, user->data, 2, sum(user));
  }
  user->data = small;
  /* It waits for the device, and a kernel of the other rank's there would wait for this one. */
  pthread_barrier_wait(&ranks);
  ncclResult_t freed = ncclMemFree(large);
  pthread_barrier_wait(&ranks);
  return code == ncclSuccess ? freed : code;
}

/* The default stream that all threads of a context share cannot be captured. */
static int is_captured(struct user *user) { return (size_t)user->stream > 1; }

static ncclResult_t act(struct user *user, enum kind kind) {
  switch (kind) {
  case CALL: return settle(user->rank->comm, reduce(user, user->rank->comm, user->data));
  case GROUP: return group(user);
  case MESSAGE: return message(user);
  case CAPTURE: return capture(user);
  case CHILD: return child(user);
  case SPLIT_AND_CALL: return split_and_call(user, user->rank->comm);
  case SPLIT_AND_CALL_OTHER: return split_and_call(user, user->rank->second);
  case INIT_AND_CALL: return init_and_call(user);
  case OWN_MEMORY: return own_memory(user);
  }
  return ncclInternalError;
}

static void check_values(struct user *user, enum kind kind) {
  switch (kind) {
  case CALL: expect_behind(user, kind, user->data, 2, sum(user)); break;
  case GROUP:
    expect(user, kind, user->data, 2, sum(user));
    expect(user, kind, user->more, 2, sum(user) + 200);
    break;
  case MESSAGE:
    expect(user, kind, user->data, 1, own(user));
    expect(user, kind, user->more, 1, theirs(user));
    break;
  default: break; /* they look at once */
  }
}

/* Neither the current context nor what is below it nor the thread's capture mode is another than before. */
static void check_thread(struct user *user, enum kind kind) {
  CUcontext top = NULL, below = NULL;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  CUDA(cuCtxPopCurrent(&top));
  CUDA(cuCtxGetCurrent(&below));
  CUDA(cuCtxPushCurrent(top));
  CUDA(cuThreadExchangeStreamCaptureMode(&mode));
  if (top != user->rank->home || below != user->rank->other) fail(user, kind, "another context is current", 0);
  if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL) fail(user, kind, "another capture mode", mode);
}

/* A green context has no per-thread default stream. */
static int is_missing(struct rank *rank) {
#ifdef PER_THREAD
  if (rank->stream_kind == '0' && rank->context_kind == 'g') return 1;
#endif
  return rank->stream_kind == '2' && rank->context_kind == 'g';
}

static int is_refused(struct rank *rank) {
  return rank->stream_kind == 'x' || (rank->stream_kind == '2' && is_missing(rank));
}

/* A stream of another context: the error names both contexts, and nothing is done. */
static void check_refusal(struct user *user, enum kind kind, ncclResult_t code) {
  char home[32], other[32];
  if (user->rank->stream_kind != 'x') {
    if (code != ncclUnhandledCudaError) fail(user, kind, "not refused", code);
    return;
  }
  const char *text = ncclGetLastError(user->rank->comm);
  snprintf(home, sizeof home, "%p", (void *)user->rank->home);
  snprintf(other, sizeof other, "%p", (void *)user->rank->other);
  if (code != ncclInvalidArgument || !strstr(text, home) || !strstr(text, other)) fail(user, kind, "not refused", code);
}

static void step(struct user *user, int place, enum kind kind) {
  if (kind == CAPTURE && !is_captured(user)) return;
  __sync_fetch_and_add(&steps, 1);
  user->value = (float)(10 * (place + 1) + 100 * user->number);
  if (is_refused(user->rank)) {
    pthread_mutex_lock(&last_error);
    check_refusal(user, kind, act(user, kind));
    pthread_mutex_unlock(&last_error);
    check_thread(user, kind);
    return;
  }
  if (kind != CAPTURE) give(user, user->data, own(user));
  if (kind == GROUP) give(user, user->more, own(user) + 100);
  ncclResult_t code = act(user, kind);
  if (code != ncclSuccess) fail(user, kind, "an error", code);
  check_values(user, kind);
  check_thread(user, kind);
}

/* ---- Contexts, ranks and threads ---- */

static CUcontext make_own(int device) {
  CUcontext made;
  CUDA(cuCtxCreate(&made, NULL, 0, device));
  CUDA(cuCtxPopCurrent(&made));
  return made;
}

static CUcontext make_green(int device) {
  CUdevResource all, part;
  CUdevResourceDesc described;
  CUgreenCtx green;
  CUcontext made;
  unsigned count = 1;
  CUDA(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
  CUDA(cuDevSmResourceSplitByCount(&part, &count, &all, NULL, 0, all.sm.smCount / 2));
  CUDA(cuDevResourceGenerateDesc(&described, &part, 1));
  CUDA(cuGreenCtxCreate(&green, described, device, CU_GREEN_CTX_DEFAULT_STREAM));
  CUDA(cuCtxFromGreenCtx(&made, green));
  return made;
}

static void make_contexts(struct rank *rank) {
  CUcontext primary;
  CUDA(cuDevicePrimaryCtxRetain(&primary, rank->device));
  switch (rank->context_kind) {
  case 'p': rank->home = primary; break;
  case 'c': rank->home = make_own(rank->device); break;
  default: rank->home = make_green(rank->device); break;
  }
  rank->other = rank->context_kind == 'p' ? make_own(rank->device) : primary;
}

static CUstream stream_of(struct rank *rank) {
  CUstream made;
  switch (rank->stream_kind) {
  case '0': return NULL;
  case '1': return CU_STREAM_LEGACY;
  case '2': return CU_STREAM_PER_THREAD;
  case 'o': CUDA(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING)); return made;
  default: break;
  }
  CUDA(cuCtxPushCurrent(rank->other));
  CUDA(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  CUDA(cuCtxPopCurrent(&rank->other));
  return made;
}

static ncclComm_t make_comm(struct user *user, int id) {
  ncclComm_t made = NULL;
  ncclConfig_t with = config(user);
  ncclResult_t code = ncclCommInitRankConfig(&made, RANKS, ids[id], user->rank->rank, &with);
  if (settle(made, code) != ncclSuccess) fail(user, CALL, "no communicator", code);
  return made;
}

static void meet(struct user *user) {
  if (user->number == 0) {
    pthread_barrier_wait(&ranks);
    for (size_t i = 0; i < sizeof ids / sizeof *ids && user->rank->rank == 0; i++) ncclGetUniqueId(&ids[i]);
    pthread_barrier_wait(&ranks);
    user->rank->comm = make_comm(user, 0);
    user->rank->second = make_comm(user, 1);
  }
  pthread_barrier_wait(&user->rank->turns);
}

static void part(struct user *user) {
  pthread_barrier_wait(&user->rank->turns);
  if (user->number == 0) {
    ncclCommAbort(user->rank->comm);
    ncclCommAbort(user->rank->second);
  }
}

static void *run_user(void *given) {
  struct user *user = given;
  struct rank *rank = user->rank;
  CUDA(cuCtxPushCurrent(rank->other));
  CUDA(cuCtxPushCurrent(rank->home));
  user->stream = stream_of(rank);
  CUDA(cuMemAlloc(&user->data, BYTES));
  CUDA(cuMemAlloc(&user->more, BYTES));
  meet(user);
  for (int place = 0; rank->order[place]; place++) {
    for (int turn = 0; turn < rank->threads; turn++) {
      if (turn == user->number) step(user, place, (enum kind)(rank->order[place] - '0'));
      pthread_barrier_wait(&rank->turns);
    }
  }
  part(user);
  if ((size_t)user->stream > 2) CUDA(cuStreamDestroy(user->stream));
  CUDA(cuMemFree(user->data));
  CUDA(cuMemFree(user->more));
  return NULL;
}

static void *run_rank(void *given) {
  struct rank *rank = given;
  struct user users[THREADS] = {{.rank = rank, .number = 0}, {.rank = rank, .number = 1}};
  pthread_t threads[THREADS];
  pthread_barrier_init(&rank->turns, NULL, (unsigned)rank->threads);
  for (int i = 0; i < rank->threads; i++) pthread_create(&threads[i], NULL, run_user, &users[i]);
  for (int i = 0; i < rank->threads; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&rank->turns);
  return NULL;
}

static void run(struct rank both[RANKS]) {
  pthread_t threads[RANKS];
  for (int i = 0; i < RANKS; i++) pthread_create(&threads[i], NULL, run_rank, &both[i]);
  for (int i = 0; i < RANKS; i++) pthread_join(threads[i], NULL);
}

/* Where a call is refused the communicator is of no use afterwards, so each step has its own. */
static void run_orders(struct rank both[RANKS], char stream) {
  static const char *const REFUSED[] = {"0", "1", "2"};
  both[0].stream_kind = both[1].stream_kind = stream;
  int refused = is_refused(both);
  size_t count = refused ? sizeof REFUSED / sizeof *REFUSED : sizeof ORDERS / sizeof *ORDERS;
  for (size_t order = 0; order < count && (refused || !is_missing(both)); order++) {
    for (int i = 0; i < RANKS; i++) {
      both[i].order = refused ? REFUSED[order] : ORDERS[order];
      if (refused) both[i].threads = 1;
    }
    run(both);
  }
}

int main(int count, char **arguments) {
  struct rank both[RANKS] = {{.rank = 0}, {.rank = 1}};
  const char *streams = count > 2 ? arguments[2] : "012ox";
  CUDA(cuInit(0));
  pthread_barrier_init(&ranks, NULL, RANKS);
  for (int i = 0; i < RANKS; i++) {
    both[i].context_kind = count > 1 ? *arguments[1] : 'p';
    both[i].device = i % (count > 3 ? atoi(arguments[3]) : RANKS);
    make_contexts(&both[i]);
  }
  for (; *streams; streams++) {
    for (int way = 0; way < 4; way++) {
      for (int i = 0; i < RANKS; i++) both[i].blocking = way & 1, both[i].threads = 1 + (way >> 1);
      run_orders(both, *streams);
    }
  }
  printf("%d steps, %d failed\n", steps, failures);
  return failures != 0;
}
