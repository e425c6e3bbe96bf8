/* Processes of an MPI job, each with several devices and a thread for each, and communicators that overlap:
 *
 *   mpiexec -n 2 ./mpi_grid
 *
 * Every thread is a rank of the world, of its row (the threads of its process) and of its column (the threads of its
 * number in all processes). Ids travel by MPI_Bcast. Then each thread sums over all three, on a stream for each. */
#include <mpi.h>
#include <pthread.h>

#include "say.h"

#define THREADS 2

static int process, processes;
static ncclUniqueId world_id, row_id, column_ids[THREADS];
static size_t wrong[THREADS];

static ncclUniqueId id_from(int root, MPI_Comm among) {
  ncclUniqueId id;
  int me;
  MPI_Comm_rank(among, &me);
  if (me == root) NCCL(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, root, among);
  return id;
}


static void *work(void *argument) {
  const int thread = (int)(size_t)argument, device = process * THREADS + thread, nranks = processes * THREADS;
  ncclComm_t comms[3];
  cudaStream_t streams[3];
  float *data[3];
  const int ranks[3] = {device, thread, process}, sizes[3] = {nranks, THREADS, processes};
  CUDA(cudaSetDevice(device));
  NCCL(ncclCommInitRank(&comms[0], nranks, world_id, device));
  NCCL(ncclCommInitRank(&comms[1], THREADS, row_id, thread));
  NCCL(ncclCommInitRank(&comms[2], processes, column_ids[thread], process));
  for (int c = 0; c < 3; c++) {
    CUDA(cudaStreamCreateWithFlags(&streams[c], cudaStreamNonBlocking));
    data[c] = filled(ranks[c]);
  }
  for (int c = 0; c < 3; c++) NCCL(ncclAllReduce(data[c], data[c], COUNT, ncclFloat, ncclSum, comms[c], streams[c]));
  for (int c = 0; c < 3; c++) {
    CUDA(cudaStreamSynchronize(streams[c]));
    CUDA(cudaStreamDestroy(streams[c]));
    wrong[thread] += count_wrong(data[c], sizes[c] * (sizes[c] + 1) / 2);
    NCCL(ncclCommDestroy(comms[c]));
  }
  return NULL;
}

int main(int argc, char **argv) {
  int provided, devices;
  pthread_t threads[THREADS];
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  CUDA(cudaGetDeviceCount(&devices));
  if (devices < processes * THREADS) say_failed("mpi_grid", "too few devices");
  world_id = id_from(0, MPI_COMM_WORLD);
  row_id = id_from(0, MPI_COMM_SELF);
  for (int t = 0; t < THREADS; t++) column_ids[t] = id_from(processes - 1, MPI_COMM_WORLD);
  for (int t = 0; t < THREADS; t++) pthread_create(&threads[t], NULL, work, (void *)(size_t)t);
  for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
  for (int t = 0; t < THREADS; t++) printf("thread %d of process %d: %zu sums are wrong\n", t, process, wrong[t]);
  MPI_Finalize();
  return 0;
}
