/* Processes of an MPI job with several devices each and one thread, and communicators that overlap:
 *
 *   mpiexec -n 3 ./mpi_devices
 *
 * Every device is a rank of the world. Besides, the devices of each two neighbouring processes have a communicator, so
 * that a process in the middle belongs to two of them. Ids travel by MPI_Bcast; what MPI adds up is compared. */
#include <mpi.h>

#include "say.h"

#define DEVICES 2

typedef struct {
  ncclComm_t comms[DEVICES];
  cudaStream_t streams[DEVICES];
  float *data[DEVICES];
  MPI_Comm processes;
} Team;

static int process, processes;

static int device_of(int d) { return process * DEVICES + d; }

/* A communicator of the devices of all processes of `among`; ranks in the order of processes. */
static void make(Team *team, MPI_Comm among) {
  int me, size;
  ncclUniqueId id;
  team->processes = among;
  MPI_Comm_rank(among, &me);
  MPI_Comm_size(among, &size);
  if (me == 0) NCCL(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, among);
  NCCL(ncclGroupStart());
  for (int d = 0; d < DEVICES; d++) {
    CUDA(cudaSetDevice(device_of(d)));
    NCCL(ncclCommInitRank(&team->comms[d], size * DEVICES, id, me * DEVICES + d));
  }
  NCCL(ncclGroupEnd());
  for (int d = 0; d < DEVICES; d++) {
    CUDA(cudaSetDevice(device_of(d)));
    CUDA(cudaStreamCreateWithFlags(&team->streams[d], cudaStreamNonBlocking));
    team->data[d] = filled(device_of(d));
  }
}

static void start(Team *team) {
  NCCL(ncclGroupStart());
  for (int d = 0; d < DEVICES; d++)
    NCCL(ncclAllReduce(team->data[d], team->data[d], COUNT, ncclFloat, ncclSum, team->comms[d], team->streams[d]));
  NCCL(ncclGroupEnd());
}

/* The factors of all contributions, added up by MPI. */
static int factors(MPI_Comm among) {
  int mine = 0, all;
  for (int d = 0; d < DEVICES; d++) mine += device_of(d) + 1;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, among);
  return all;
}

static size_t finish(Team *team) {
  const int want = factors(team->processes);
  size_t wrong = 0;
  for (int d = 0; d < DEVICES; d++) {
    CUDA(cudaSetDevice(device_of(d)));
    CUDA(cudaStreamSynchronize(team->streams[d]));
    CUDA(cudaStreamDestroy(team->streams[d]));
    wrong += count_wrong(team->data[d], want);
    NCCL(ncclCommDestroy(team->comms[d]));
  }
  return wrong;
}

/* The processes `first` and `first + 1`, in a communicator of MPI; MPI_COMM_NULL for others. */
static MPI_Comm neighbours(int first) {
  MPI_Comm pair;
  const int in = process == first || process == first + 1;
  MPI_Comm_split(MPI_COMM_WORLD, in ? 0 : MPI_UNDEFINED, process, &pair);
  return pair;
}

int main(int argc, char **argv) {
  Team world, pairs[2];
  int teams = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  make(&world, MPI_COMM_WORLD);
  for (int first = 0; first + 1 < processes; first++) {
    MPI_Comm pair = neighbours(first);
    if (pair != MPI_COMM_NULL) make(&pairs[teams++], pair);
  }
  start(&world);
  for (int t = 0; t < teams; t++) start(&pairs[t]);
  size_t wrong = finish(&world);
  for (int t = 0; t < teams; t++) {
    wrong += finish(&pairs[t]);
    MPI_Comm_free(&pairs[t].processes);
  }
  printf("process %d with %d devices and %d communicators: %zu sums are wrong\n", process, DEVICES, teams + 1, wrong);
  MPI_Finalize();
  return wrong != 0;
}
