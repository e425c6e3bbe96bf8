/* Times a collective of floats of an MPI library as perf times ours: untimed calls, then as many timed ones as fill
 * 50 ms (5 to 2000), mean over the ranks. Prints `bytes microseconds` for each size on the command line:
 *
 *   mpiexec -n 2 mpi_collectives COLLECTIVE BYTES...
 *
 * BYTES is the larger buffer of a rank, as in perf's column `size`.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARMUP 5
#define FILL 0.05

static int rank, nranks;

struct call {
  const char *name;
  int blocks; /* the larger buffer has a block for each rank */
  void (*run)(const float *in, float *out, int count);
};

static void all_reduce(const float *in, float *out, int n) {
  MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void all_gather(const float *in, float *out, int n) {
  MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
}
static void reduce_scatter(const float *in, float *out, int n) {
  MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void broadcast(const float *in, float *out, int n) {
  (void)in;
  MPI_Bcast(out, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void reduce(const float *in, float *out, int n) {
  MPI_Reduce(in, out, n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}
static void alltoall(const float *in, float *out, int n) {
  MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
}
static void gather(const float *in, float *out, int n) {
  MPI_Gather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void scatter(const float *in, float *out, int n) {
  MPI_Scatter(in, n, MPI_FLOAT, out, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void sendrecv(const float *in, float *out, int n) {
  MPI_Sendrecv(in, n, MPI_FLOAT, (rank + 1) % nranks, 0, out, n, MPI_FLOAT, (rank + nranks - 1) % nranks, 0,
               MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static const struct call calls_known[] = {
    {"all_reduce", 0, all_reduce}, {"all_gather", 1, all_gather}, {"reduce_scatter", 1, reduce_scatter},
    {"broadcast", 0, broadcast},   {"reduce", 0, reduce},         {"alltoall", 1, alltoall},
    {"gather", 1, gather},         {"scatter", 1, scatter},       {"sendrecv", 0, sendrecv},
};

static double run(const struct call *what, const float *in, float *out, int count, int calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (int i = 0; i < calls; i++) what->run(in, out, count);
  return (MPI_Wtime() - start) / calls;
}

static void measure(const struct call *what, long bytes) {
  long elements = bytes / (long)sizeof(float), count = what->blocks ? elements / nranks : elements;
  if (count < 1) count = 1;
  size_t size = sizeof(float) * (size_t)(what->blocks ? count * nranks : count);
  float *in = malloc(size), *out = malloc(size);
  if (!in || !out) MPI_Abort(MPI_COMM_WORLD, 1);
  for (size_t i = 0; i < size / sizeof(float); i++) {
    in[i] = (float)(rank + 1);
    out[i] = 1;
  }
  double warm = run(what, in, out, (int)count, WARMUP), slowest, mine, sum;
  MPI_Allreduce(&warm, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  double wanted = FILL / slowest;
  int calls = wanted < 5 ? 5 : wanted > 2000 ? 2000 : (int)wanted;
  mine = run(what, in, out, (int)count, calls);
  MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%ld %.4f\n", bytes, sum / nranks * 1e6);
  free(in);
  free(out);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  const struct call *what = NULL;
  for (size_t i = 0; argc > 1 && i < sizeof calls_known / sizeof *calls_known; i++) {
    if (!strcmp(argv[1], calls_known[i].name)) what = &calls_known[i];
  }
  if (!what) {
    fprintf(stderr, "usage: mpi_collectives COLLECTIVE BYTES...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  for (int arg = 2; what && arg < argc; arg++) measure(what, atol(argv[arg]));
  MPI_Finalize();
  return 0;
}
