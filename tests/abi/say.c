/* Does what its arguments say, in their order, so that a test can see what the library writes and where:
 *
 *   warn         a call that fails with a WARN line
 *   init         a communicator that cannot be made without CUDA
 *   make         a communicator of one rank, and its end
 *   reset        ncclResetDebugInit
 *   set N=V      changes the environment
 *   get N        writes V or "unset" to stderr
 *   last         writes the last error to stderr
 *   dump         ncclParamDumpAll
 *   many         1000 times warn
 *   threads      warn 100 times in each of four threads
 *   fork         warn in a child too
 *   stay         waits until its standard input ends
 */
#define _GNU_SOURCE
#define NCCL_OS_LINUX
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *warn_often(void *unused) {
  int i;
  for (i = 0; i < 100; i++) ncclGroupEnd();
  return unused;
}

static void threads(void) {
  pthread_t thread[4];
  int i;
  for (i = 0; i < 4; i++) pthread_create(&thread[i], NULL, warn_often, NULL);
  for (i = 0; i < 4; i++) pthread_join(thread[i], NULL);
}

static void child(void) {
  pid_t pid = fork();
  if (pid == 0) {
    ncclGroupEnd();
    _exit(0);
  }
  waitpid(pid, NULL, 0);
}

static void init(void) {
  ncclUniqueId id;
  ncclComm_t comm;
  memset(&id, 0, sizeof id);
  ncclCommInitRank(&comm, 1, id, 0);
}

static int make(void) {
  ncclUniqueId id;
  ncclComm_t comm;
  return ncclGetUniqueId(&id) || ncclCommInitRank(&comm, 1, id, 0) || ncclCommDestroy(comm);
}

int main(int argc, char **argv) {
  int i, n;
  for (i = 1; i < argc; i++) {
    const char *what = argv[i];
    if (!strcmp(what, "warn")) ncclGroupEnd();
    else if (!strcmp(what, "init")) init();
    else if (!strcmp(what, "make")) {
      if (make()) return 3;
    } else if (!strcmp(what, "reset")) pncclResetDebugInit();
    else if (!strcmp(what, "set")) putenv(argv[++i]);
    else if (!strcmp(what, "get")) fprintf(stderr, "%s\n", getenv(argv[++i]) ? getenv(argv[i]) : "unset");
    else if (!strcmp(what, "last")) fprintf(stderr, "%s\n", ncclGetLastError(NULL));
    else if (!strcmp(what, "dump")) ncclParamDumpAll();
    else if (!strcmp(what, "many")) for (n = 0; n < 1000; n++) ncclGroupEnd();
    else if (!strcmp(what, "threads")) threads();
    else if (!strcmp(what, "fork")) child();
    else if (!strcmp(what, "stay")) while (getchar() != EOF) {}
    else return 2;
  }
  return 0;
}
