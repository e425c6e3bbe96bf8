// One rank that makes its communicator with a configuration of the header that this is compiled against:
// old_client RANK RANKS FILE. The configuration lies before memory that must not be read.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <string>

#include "say.h"

static ncclUniqueId meet(int rank, const char* path) {
  ncclUniqueId id;
  if (rank == 0) {
    const std::string aside = std::string(path) + ".0";
    NCCL(ncclGetUniqueId(&id));
    FILE* file = fopen(aside.c_str(), "wb");
    if (!file || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) || rename(aside.c_str(), path))
      say_failed(path, "cannot be written");
    return id;
  }
  for (int tries = 0; tries < 6000; tries++, usleep(10000)) {
    FILE* file = fopen(path, "rb");
    if (!file) continue;
    size_t got = fread(&id, sizeof id, 1, file);
    fclose(file);
    if (got == 1) return id;
  }
  say_failed(path, "rank 0 did not write it");
  return id;
}

// A configuration whose last byte is the last one of a page, the next of which cannot be read.
static ncclConfig_t* at_the_edge(const ncclConfig_t& config) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char* pages = (char*)mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE)) say_failed("mmap", "failed");
  return (ncclConfig_t*)memcpy(pages + page - sizeof config, &config, sizeof config);
}

// Polls, as clients of a non-blocking communicator do.
static void settle(ncclComm_t comm) {
  for (int tries = 0; tries < 60000; tries++, usleep(1000)) {
    ncclResult_t state;
    NCCL(ncclCommGetAsyncError(comm, &state));
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) say_failed("ncclCommGetAsyncError", ncclGetErrorString(state));
  }
  say_failed("ncclCommGetAsyncError", "never ends");
}

static size_t live(int rank, int nranks, ncclUniqueId id, int blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking;
  config.minCTAs = 1;
  config.maxCTAs = 2;
  ncclComm_t comm;
  ncclResult_t made = ncclCommInitRankConfig(&comm, nranks, id, rank, at_the_edge(config));
  if (made != ncclSuccess && (blocking || made != ncclInProgress))
    say_failed("ncclCommInitRankConfig", ncclGetErrorString(made));
  settle(comm);
  float* data = filled(rank);
  ncclResult_t launched = ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, nullptr);
  if (launched != ncclSuccess && (blocking || launched != ncclInProgress))
    say_failed("ncclAllReduce", ncclGetErrorString(launched));
  settle(comm);
  CUDA(cudaStreamSynchronize(nullptr));
  ncclResult_t flushed = ncclCommFinalize(comm);
  if (flushed != ncclSuccess && (blocking || flushed != ncclInProgress))
    say_failed("ncclCommFinalize", ncclGetErrorString(flushed));
  settle(comm);
  NCCL(ncclCommDestroy(comm));
  return count_wrong(data, nranks * (nranks + 1) / 2);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int rank = atoi(argv[1]), nranks = atoi(argv[2]);
  char path[4096];
  size_t wrong = 0;
  CUDA(cudaSetDevice(rank));
  for (int blocking = 1; blocking >= 0; blocking--) {
    snprintf(path, sizeof path, "%s.%d", argv[3], blocking);
    wrong += live(rank, nranks, meet(rank, path), blocking);
  }
  int version;
  NCCL(ncclGetVersion(&version));
  printf("rank %d: header %d, %zu bytes of configuration, library %d: %zu sums are wrong\n", rank, NCCL_VERSION_CODE,
         sizeof(ncclConfig_t), version, wrong);
  return wrong != 0;
}
