// Ring AllReduce with ranks as threads, built with -fsanitize=thread: driver RANKS THREADS_PER_BLOCK COUNT...
// Exit status 0: every result is right (what ThreadSanitizer found is its own exit status).
#include "world.h"

using namespace oxccl;

namespace {

struct Job {
  const softcudaFunction* kernel;
  LaunchArgs* args;
  BlockMemory* memory;
  u32 threads, thread;
};

void* runJob(void* p) {
  Job& j = *(Job*)p;
  runThread(*j.kernel, *j.args, *j.memory, j.threads, j.thread);
  return nullptr;
}

float input(u32 rank, u64 i) { return (float)(rank * 3 + i % 11); }

// One launch on every rank, all at the same time.
void launchAll(const softcudaFunction& f, Ring& ring, u32 threads) {
  std::vector<BlockMemory> memory(ring.n);
  std::vector<Job> jobs;
  for (u32 r = 0; r < ring.n; r++) {
    memset((void*)&memory[r], 0, sizeof memory[r]);
    for (u32 t = 0; t < threads; t++) jobs.push_back({&f, &ring.ranks[r].args, &memory[r], threads, t});
  }
  std::vector<pthread_t> running(jobs.size());
  for (size_t i = 0; i < jobs.size(); i++)
    if (pthread_create(&running[i], nullptr, runJob, &jobs[i])) exit(2);
  for (pthread_t t : running) pthread_join(t, nullptr);
}

u64 wrongElements(const std::vector<float>& out, u32 n) {
  u64 wrong = 0;
  for (u64 i = 0; i < out.size(); i++) {
    float want = 0;
    for (u32 r = 0; r < n; r++) want += input(r, i);
    wrong += out[i] != want;
  }
  return wrong;
}

u64 allReduce(const softcudaFunction& f, Ring& ring, u32 threads, u64 count) {
  std::vector<std::vector<float>> in(ring.n), out(ring.n);
  for (u32 r = 0; r < ring.n; r++) {
    for (u64 i = 0; i < count; i++) in[r].push_back(input(r, i));
    out[r].assign(count, -1);
    ring.allReduce(r, in[r].data(), out[r].data(), count);
  }
  launchAll(f, ring, threads);
  u64 wrong = 0;
  for (u32 r = 0; r < ring.n; r++) wrong += wrongElements(out[r], ring.n);
  return wrong;
}

// Only rank 0 runs; the main thread tells it to leave.
bool abortWorks(const softcudaFunction& f, u32 n, u32 threads) {
  Ring ring(n, 1024);
  std::vector<float> data(10000);
  ring.allReduce(0, data.data(), data.data(), data.size());
  BlockMemory memory;
  memset((void*)&memory, 0, sizeof memory);
  std::vector<Job> jobs;
  for (u32 t = 0; t < threads; t++) jobs.push_back({&f, &ring.ranks[0].args, &memory, threads, t});
  std::vector<pthread_t> running(threads);
  for (u32 t = 0; t < threads; t++)
    if (pthread_create(&running[t], nullptr, runJob, &jobs[t])) exit(2);
  __atomic_store_n(ring.words, (u32)ABORT_REPORT, __ATOMIC_RELAXED);
  for (pthread_t t : running) pthread_join(t, nullptr);
  return __atomic_load_n(ring.words + 1, __ATOMIC_RELAXED) == ERROR_ABORTED;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: driver RANKS THREADS COUNT...\n");
    return 2;
  }
  const u32 n = (u32)atoi(argv[1]), threads = (u32)atoi(argv[2]);
  const softcudaFunction& f = kernel(oxccl_host_image(), "oxccl_simple_f32");
  Ring ring(n, 1024);
  u64 wrong = 0;
  for (int i = 3; i < argc; i++) wrong += allReduce(f, ring, threads, strtoull(argv[i], nullptr, 0));
  const bool aborts = abortWorks(f, n, threads);
  printf("ranks %u, threads %u: %llu wrong elements%s\n", n, threads, wrong, aborts ? "" : ", abort does not work");
  return wrong || !aborts;
}
