/* A program's signals and standard streams beside the library: signals MODE.
 *
 *   threads  communicators of three devices are made, in the foreground and in the background, used and ended, while
 *            the main thread has handlers; no other thread may be open for a signal, and what is sent to the process
 *            waits for sigwait
 *   streams  the program closes its standard streams before the first call: nothing of the library may take their
 *            numbers
 *
 * Prints `N wrong`, and what is wrong, on descriptor 9 or, without one, on stdout. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>

enum { DEVICES = 3, COUNT = 1000, NUMBERS = 31 };

/* Signals for the program, and those that a thread's own faults raise. */
static const int PROGRAMS[] = {SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGHUP, SIGALRM, SIGCHLD, SIGPIPE, SIGPROF, SIGIO};
static const int FAULTS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
enum { PROGRAMS_COUNT = sizeof PROGRAMS / sizeof *PROGRAMS, FAULTS_COUNT = sizeof FAULTS / sizeof *FAULTS };

static int out = 1, wrong = 0;
static pid_t main_thread, watching_thread;
static atomic_int seen_threads, taken, watch_ends;

static void fails(const char *what, long number) {
  wrong++;
  dprintf(out, "wrong: %s (%ld)\n", what, number);
}

static void check(ncclResult_t result, const char *what) {
  if (result != ncclSuccess) dprintf(out, "%s: %s\n", what, ncclGetLastError(NULL)), fails(what, result);
}

static unsigned long bit(int number) { return 1ul << (number - 1); }

/* The SigBlk line of a thread; 0 if the thread is gone, or on its way: then all its masks are 0, and the program has
 * handlers. */
static int blocked_signals(pid_t thread, unsigned long *mask) {
  char path[64], line[256];
  unsigned long caught = 0;
  int found = 0;
  snprintf(path, sizeof path, "/proc/self/task/%d/status", thread);
  FILE *status = fopen(path, "r");
  if (!status) return 0;
  while (fgets(line, sizeof line, status)) {
    found |= sscanf(line, "SigBlk: %lx", mask) == 1;
    sscanf(line, "SigCgt: %lx", &caught);
  }
  fclose(status);
  return found && caught != 0;
}

/* Every thread but the program's own must block all signals, its faults excepted; the faults that any of them blocks.
 * The C library holds back all signals for a moment where threads begin and end. */
static unsigned long look_at_threads(void) {
  unsigned long all = 0, faults = 0, mask, blocked = 0;
  for (int number = 1; number <= NUMBERS; number++) all |= bit(number);
  for (int i = 0; i < FAULTS_COUNT; i++) faults |= bit(FAULTS[i]);
  all &= ~(faults | bit(SIGKILL) | bit(SIGSTOP));
  DIR *folder = opendir("/proc/self/task");
  if (!folder) return 0;
  for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
    const pid_t thread = atoi(entry->d_name);
    if (thread == 0 || thread == main_thread || thread == watching_thread || !blocked_signals(thread, &mask)) continue;
    seen_threads++;
    if ((mask & all) != all) fails("a thread is open for signals", (long)(all & ~mask));
    blocked |= mask & faults;
  }
  closedir(folder);
  return blocked;
}

static void *watch(void *unused) {
  watching_thread = (pid_t)syscall(SYS_gettid);
  while (!watch_ends) {
    look_at_threads();
    usleep(200);
  }
  return unused;
}

/* No thread blocks its own faults, once all have begun. */
static void look_at_faults(void) {
  unsigned long blocked = 1;
  for (int i = 0; i < 1000 && blocked; i++) {
    usleep(1000);
    blocked = look_at_threads();
  }
  if (blocked) fails("a thread's faults are blocked", (long)blocked);
}

static void handler(int number) {
  (void)number;
  if ((pid_t)syscall(SYS_gettid) != main_thread) wrong++;
  taken++;
}

/* An AllReduce over all devices of the process. */
static void add_up(ncclComm_t *comms) {
  int *data[DEVICES], host[COUNT];
  cudaStream_t streams[DEVICES];
  for (int i = 0; i < COUNT; i++) host[i] = i;
  for (int device = 0; device < DEVICES; device++) {
    cudaSetDevice(device);
    cudaStreamCreate(&streams[device]);
    cudaMalloc((void **)&data[device], sizeof host);
    cudaMemcpy(data[device], host, sizeof host, cudaMemcpyHostToDevice);
  }
  ncclGroupStart();
  for (int i = 0; i < DEVICES; i++) ncclAllReduce(data[i], data[i], COUNT, ncclInt32, ncclSum, comms[i], streams[i]);
  check(ncclGroupEnd(), "AllReduce");
  for (int device = 0; device < DEVICES; device++) {
    cudaSetDevice(device);
    cudaStreamSynchronize(streams[device]);
    cudaMemcpy(host, data[device], sizeof host, cudaMemcpyDeviceToHost);
    for (int i = 0; i < COUNT; i++) {
      if (host[i] != DEVICES * i) fails("a sum", i);
    }
    cudaFree(data[device]);
    cudaStreamDestroy(streams[device]);
  }
}

/* The communicators of a group that goes on in the background. */
static void make_in_background(ncclComm_t *comms) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  config.blocking = 0;
  check(ncclGetUniqueId(&id), "id");
  ncclGroupStart();
  for (int device = 0; device < DEVICES; device++) {
    cudaSetDevice(device);
    ncclCommInitRankConfig(&comms[device], DEVICES, id, device, &config);
  }
  ncclGroupEnd();
  for (int device = 0; device < DEVICES; device++) {
    ncclResult_t state = ncclInProgress;
    while (ncclCommGetAsyncError(comms[device], &state) == ncclSuccess && state == ncclInProgress) usleep(50);
    check(state, "creation in the background");
  }
}

static void communicators(void) {
  ncclComm_t comms[DEVICES], polled[DEVICES];
  check(ncclCommInitAll(comms, DEVICES, NULL), "ncclCommInitAll");
  add_up(comms);
  make_in_background(polled);
  for (int i = 0; i < DEVICES; i++) check(ncclCommDestroy(comms[i]), "ncclCommDestroy");
  for (int i = 0; i < DEVICES; i++) check(ncclCommAbort(polled[i]), "ncclCommAbort");
}

/* Sends the process every signal while it has communicators. The main thread holds them back, so that each must wait
 * for it. */
static void send_signals(void) {
  ncclComm_t comms[DEVICES];
  sigset_t programs;
  sigemptyset(&programs);
  for (int i = 0; i < PROGRAMS_COUNT; i++) sigaddset(&programs, PROGRAMS[i]);
  check(ncclCommInitAll(comms, DEVICES, NULL), "ncclCommInitAll");
  add_up(comms);
  look_at_faults();
  const int before = taken;
  pthread_sigmask(SIG_BLOCK, &programs, NULL);
  for (int i = 0; i < PROGRAMS_COUNT; i++) kill(getpid(), PROGRAMS[i]);
  add_up(comms);
  usleep(20000);
  if (taken != before) fails("signals were taken by another thread", taken - before);
  for (int i = 0; i < PROGRAMS_COUNT; i++) {
    const struct timespec now = {0, 0};
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, PROGRAMS[i]);
    if (sigtimedwait(&one, NULL, &now) != PROGRAMS[i]) fails("a signal does not wait", PROGRAMS[i]);
  }
  pthread_sigmask(SIG_UNBLOCK, &programs, NULL);
  for (int i = 0; i < DEVICES; i++) check(ncclCommDestroy(comms[i]), "ncclCommDestroy");
}

static void threads(void) {
  pthread_t watcher;
  sigset_t all, none;
  main_thread = getpid();
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, NULL);
  for (int i = 0; i < PROGRAMS_COUNT; i++) signal(PROGRAMS[i], handler);
  /* The watcher is the program's own, and takes nothing either. */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, NULL);
  pthread_create(&watcher, NULL, watch, NULL);
  pthread_sigmask(SIG_SETMASK, &none, NULL);
  while (!watching_thread) usleep(100);
  for (int i = 0; i < 3; i++) communicators();
  watch_ends = 1;
  pthread_join(watcher, NULL);
  if (seen_threads == 0) fails("no thread was seen", 0);
  send_signals();
}

/* Whatever fails or is told now has nowhere to go. */
static void streams(void) {
  ncclComm_t none = NULL;
  out = fcntl(1, F_DUPFD_CLOEXEC, 9);
  for (int stream = 0; stream < 3; stream++) close(stream);
  for (int i = 0; i < 3; i++) {
    ncclUniqueId garbage = {{0}};
    communicators();
    if (ncclCommInitRank(&none, 1, garbage, 0) == ncclSuccess) fails("garbage is an id", i);
    for (int stream = 0; stream < 3; stream++) {
      if (fcntl(stream, F_GETFD) != -1) fails("a standard stream is open", stream);
    }
  }
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  if (!strcmp(mode, "threads")) threads();
  else if (!strcmp(mode, "streams")) streams();
  else return 2;
  dprintf(out, "%d wrong\n", wrong);
  return wrong != 0;
}
