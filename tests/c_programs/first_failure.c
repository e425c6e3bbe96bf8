/* What a program is told that fails at its first call: first_failure MODE [ID or DEVICE]. Prints `code N: TEXT`, what
 * the call returned and what ncclGetLastError says then, and ends with 1 for a failure. It needs no CUDA by itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

static int tell(ncclResult_t result) {
  printf("code %d: %s\n", (int)result, ncclGetLastError(NULL));
  return result != ncclSuccess;
}

/* Rank 0 of `nranks` with an id of its own. */
static ncclResult_t make(int nranks, ncclComm_t *comm) {
  ncclUniqueId id;
  ncclResult_t result = ncclGetUniqueId(&id);
  return result == ncclSuccess ? ncclCommInitRank(comm, nranks, id, 0) : result;
}

static int print_id(void) {
  ncclUniqueId id;
  if (ncclGetUniqueId(&id) != ncclSuccess) return tell(ncclInternalError);
  for (size_t i = 0; i < sizeof id; i++) printf("%02x", (unsigned char)id.internal[i]);
  printf("\n");
  return 0;
}

/* Rank 0 of two with the id that another program has printed. */
static ncclResult_t join(const char *hex, ncclComm_t *comm) {
  ncclUniqueId id;
  if (strlen(hex) != 2 * sizeof id) exit(2);
  for (size_t i = 0; i < sizeof id; i++) {
    const char byte[] = {hex[2 * i], hex[2 * i + 1], 0};
    id.internal[i] = (char)strtol(byte, NULL, 16);
  }
  return ncclCommInitRank(comm, 2, id, 0);
}

static ncclResult_t configured(const ncclConfig_t *config, ncclComm_t *comm) {
  ncclConfig_t copy = *config;
  ncclUniqueId id;
  ncclResult_t result = ncclGetUniqueId(&id);
  return result == ncclSuccess ? ncclCommInitRankConfig(comm, 1, id, 0, &copy) : result;
}

static ncclResult_t use(ncclComm_t comm) { return ncclAllReduce(NULL, NULL, 1, ncclInt32, ncclSum, comm, NULL); }

int main(int argc, char **argv) {
  static char zeros[4096];
  const char *mode = argc > 1 ? argv[1] : "";
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = NULL;
  if (!strcmp(mode, "make")) return tell(make(1, &comm));
  if (!strcmp(mode, "all")) {
    const int devices[] = {0, argc > 2 ? atoi(argv[2]) : 1};
    ncclComm_t comms[2];
    return tell(ncclCommInitAll(comms, 2, devices));
  }
  if (!strcmp(mode, "wait")) return tell(make(2, &comm));
  if (!strcmp(mode, "id")) return print_id();
  if (!strcmp(mode, "join") && argc > 2) return tell(join(argv[2], &comm));
  if (!strcmp(mode, "magic")) {
    config.magic = 0;
    return tell(configured(&config, &comm));
  }
  if (!strcmp(mode, "garbage")) {
    memset(&config, 0xab, sizeof config);
    return tell(configured(&config, &comm));
  }
  if (!strcmp(mode, "handle")) return tell(use((ncclComm_t)zeros));
  if (!strcmp(mode, "null")) return tell(use(NULL));
  if (!strcmp(mode, "destroyed")) {
    if (make(1, &comm) != ncclSuccess || ncclCommDestroy(comm) != ncclSuccess) return tell(ncclInternalError);
    return tell(use(comm));
  }
  fprintf(stderr, "usage: first_failure MODE [ID or DEVICE]\n");
  return 2;
}
