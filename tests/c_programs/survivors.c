/* What becomes of the other ranks when one of them fails: survivors WAY RANKS [MORE]. Each rank is a process on a
 * device of its own, with the signal actions that a C program has. It prints `rank R create CODE derive CODE child YES:
 * TEXT`, with -1 for what it has not done; its parent prints how it ended. The last rank is the culprit:
 *
 *   duplicate     all ranks use one device
 *   config        its configuration for a split is wrong
 *   killed-split  it is killed, and the others split
 *   killed-shrink it is killed, and the others shrink without it
 *   exit          it ends while the communicator is made, MORE microseconds after it has begun
 *   abort         it aborts then
 *   fault         its driver fails: MORE is a value of SOFTCUDA_FAULT */
#define _DEFAULT_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>

/* How long the others need to see that the culprit is gone. */
enum { GONE_US = 50000 };

/* What all ranks see. */
struct meeting {
  ncclUniqueId id;
  volatile int has_id;
  volatile int made;
};

static struct meeting *meeting;

struct job {
  const char *way;
  const char *more;
  int nranks;
};

static int is(const struct job *job, const char *way) { return strcmp(job->way, way) == 0; }

/* The program's handlers and what it ignores are not what is tested. */
static void default_actions(void) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  for (int number = 1; number < 32; number++) signal(number, SIG_DFL);
}

static void meet(int rank) {
  if (rank == 0) {
    if (ncclGetUniqueId(&meeting->id) != ncclSuccess) exit(3);
    __sync_synchronize();
    meeting->has_id = 1;
  }
  while (!meeting->has_id) usleep(100);
}

/* The result of a call that may go on in the background. */
static ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress) usleep(50);
  return state;
}

/* Makes the communicator, or fails in it as the way says. */
static ncclResult_t create(const struct job *job, int rank, ncclComm_t *comm) {
  const int culprit = rank == job->nranks - 1, begins = is(job, "exit") || is(job, "abort");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (begins) config.blocking = 0;
  if (is(job, "fault") && culprit) setenv("SOFTCUDA_FAULT", job->more, 1);
  cudaSetDevice(is(job, "duplicate") ? 0 : rank);
  ncclResult_t result = ncclCommInitRankConfig(comm, job->nranks, meeting->id, rank, &config);
  if (culprit && begins) usleep((useconds_t)atoi(job->more));
  if (culprit && is(job, "exit")) _exit(0);
  if (culprit && is(job, "abort")) {
    ncclCommAbort(*comm);
    *comm = NULL;
    return ncclSuccess;
  }
  return *comm ? settled(*comm) : result;
}

/* Splits or shrinks the communicator once all ranks have it. */
static ncclResult_t derive(const struct job *job, int rank, ncclComm_t comm, ncclComm_t *child) {
  const int culprit = rank == job->nranks - 1, shrinks = is(job, "killed-shrink");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  __sync_fetch_and_add(&meeting->made, 1);
  while (meeting->made < job->nranks) usleep(100);
  if (shrinks || is(job, "killed-split")) {
    if (culprit) kill(getpid(), SIGKILL);
    usleep(GONE_US);
  }
  if (shrinks) {
    int gone = job->nranks - 1;
    return ncclCommShrink(comm, &gone, 1, child, NULL, NCCL_SHRINK_ABORT);
  }
  if (culprit) config.minCTAs = 9, config.maxCTAs = 3;
  return ncclCommSplit(comm, 0, rank, child, &config);
}

static void run_rank(const struct job *job, int rank) {
  const int derives = is(job, "config") || is(job, "killed-split") || is(job, "killed-shrink");
  ncclComm_t comm = NULL, child = NULL;
  int created, derived = -1;
  meet(rank);
  created = create(job, rank, &comm);
  if (derives && created == ncclSuccess) derived = derive(job, rank, comm, &child);
  printf("rank %d create %d derive %d child %s: %s\n", rank, created, derived, child ? "yes" : "no",
         created || derived > 0 ? ncclGetLastError(NULL) : "");
  fflush(stdout);
  if (child) ncclCommAbort(child);
  if (comm) ncclCommAbort(comm);
  _exit(0);
}

int main(int argc, char **argv) {
  const struct job job = {argc > 1 ? argv[1] : "", argc > 3 ? argv[3] : "", argc > 2 ? atoi(argv[2]) : 0};
  pid_t ranks[64];
  if (job.nranks < 2 || job.nranks > 64) {
    fprintf(stderr, "usage: survivors WAY RANKS [MORE]\n");
    return 2;
  }
  default_actions();
  meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (meeting == MAP_FAILED) return 2;
  for (int rank = 0; rank < job.nranks; rank++) {
    ranks[rank] = fork();
    if (ranks[rank] == 0) run_rank(&job, rank);
  }
  for (int rank = 0; rank < job.nranks; rank++) {
    int status = 0;
    waitpid(ranks[rank], &status, 0);
    const int killed = WIFSIGNALED(status);
    printf("rank %d ended by %s %d\n", rank, killed ? "signal" : "exit",
           killed ? WTERMSIG(status) : WEXITSTATUS(status));
  }
  return 0;
}
