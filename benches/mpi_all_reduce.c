/* Times MPI_Allreduce of floats as perf times ncclAllReduce: untimed calls, then as many timed ones as fill
 * 50 ms (5 to 2000), mean over the ranks. Prints `bytes microseconds` for each size on the command line.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define WARMUP 5
#define FILL 0.05

static double run(const float *in, float *out, int count, int calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (int i = 0; i < calls; i++) MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  return (MPI_Wtime() - start) / calls;
}

int main(int argc, char **argv) {
  int rank, nranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  for (int arg = 1; arg < argc; arg++) {
    long bytes = atol(argv[arg]);
    int count = (int)(bytes / (long)sizeof(float));
    float *in = malloc((size_t)bytes), *out = malloc((size_t)bytes);
    if (!in || !out) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < count; i++) {
      in[i] = (float)(rank + 1);
      out[i] = 0;
    }
    double warm = run(in, out, count, WARMUP), slowest, mine, sum;
    MPI_Allreduce(&warm, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double wanted = FILL / slowest;
    int calls = wanted < 5 ? 5 : wanted > 2000 ? 2000 : (int)wanted;
    mine = run(in, out, count, calls);
    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (out[count - 1] != (float)(nranks * (nranks + 1) / 2)) MPI_Abort(MPI_COMM_WORLD, 1);
    if (rank == 0) printf("%ld %.4f\n", bytes, sum / nranks * 1e6);
    free(in);
    free(out);
  }
  MPI_Finalize();
  return 0;
}
