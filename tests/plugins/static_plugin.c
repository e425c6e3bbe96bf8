/* A program that has the tests' plug-in in itself, for NCCL_NET_PLUGIN=STATIC_PLUGIN: two devices of one process. */
#include "net_plugin.c"

#include "nccl.h"

int main(void) {
  ncclComm_t comms[2];
  int round, at;
  for (round = 0; round < 2; round++) {
    if (ncclCommInitAll(comms, 2, NULL) != ncclSuccess) {
      fprintf(stderr, "ncclCommInitAll: %s\n", ncclGetLastError(NULL));
      return 1;
    }
    for (at = 0; at < 2; at++) {
      if (ncclCommDestroy(comms[at]) != ncclSuccess) return 2;
    }
  }
  printf("init %ld devices %ld misuse %ld\n", plugin_count("init"), plugin_count("devices"), plugin_count("misuse"));
  return 0;
}
