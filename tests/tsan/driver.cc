// Ring AllReduce with ranks as threads, to be built with a sanitizer:
//   driver PROTOCOL RANKS THREADS BREAK COUNT...
// PROTOCOL is simple or ll; THREADS are those of a block. BREAK is none, or what is wrong with the memory, for
// negative controls: output (an element short), slots (the last one is missing), links (not aligned).
// Exit status 0: every result is right (what a sanitizer finds is its own exit status).
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

// Starts jobs, does something else, and waits for them.
template<class F> void runAll(std::vector<Job>& jobs, F&& meanwhile) {
  std::vector<pthread_t> running(jobs.size());
  for (size_t i = 0; i < jobs.size(); i++)
    if (pthread_create(&running[i], nullptr, runJob, &jobs[i])) exit(2);
  meanwhile();
  for (pthread_t t : running) pthread_join(t, nullptr);
}

// One launch on every rank, all at the same time.
void launchAll(const softcudaFunction& f, Ring& ring, u32 threads) {
  std::vector<BlockMemory> memory(ring.n);
  std::vector<Job> jobs;
  for (u32 r = 0; r < ring.n; r++) {
    memset((void*)&memory[r], 0, sizeof memory[r]);
    for (u32 t = 0; t < threads; t++) jobs.push_back({&f, &ring.ranks[r].args, &memory[r], threads, t});
  }
  runAll(jobs, [] {});
}

template<class E> E input(u32 rank, u64 i) { return (E)(rank * 3 + i % 11); }

template<class E> u64 wrongElements(const E* out, u64 count, u32 n) {
  u64 wrong = 0;
  for (u64 i = 0; i < count; i++) {
    E want = 0;
    for (u32 r = 0; r < n; r++) want = (E)(want + input<E>(r, i));
    wrong += out[i] != want;
  }
  return wrong;
}

// Buffers are of the size that is needed and no larger, the input one element off.
template<class E> u64 allReduce(const softcudaFunction& f, Ring& ring, u32 threads, u64 count, bool short_output) {
  std::vector<std::vector<E>> in(ring.n), out(ring.n);
  for (u32 r = 0; r < ring.n; r++) {
    in[r].resize(count + 1);
    in[r].shrink_to_fit();
    for (u64 i = 0; i < count; i++) in[r][i + 1] = input<E>(r, i);
    out[r] = std::vector<E>(short_output && count ? count - 1 : count);
    ring.allReduce(r, in[r].data() + 1, out[r].data(), count);
  }
  launchAll(f, ring, threads);
  u64 wrong = 0;
  for (u32 r = 0; r < ring.n; r++) wrong += wrongElements(out[r].data(), out[r].size(), ring.n);
  return wrong;
}

// Calls that are agreed on, declined, and unmapped while ranks look.
bool agreementWorks(const softcudaFunction& f, u32 threads) {
  Pair pair(1024);
  std::vector<char> in[2], out[2];
  bool right = true;
  for (u32 call = 0; call < 40; call++) {
    const u64 bytes = 100 + 577 * (call % 7);
    for (u32 r = 0; r < 2; r++) {
      in[r].assign(bytes, (char)(call + 100 * r));
      out[r].assign(bytes, 0);
    }
    for (u32 r = 0; r < 2; r++) {
      pair.exchange(r, in[r].data(), out[r].data(), bytes, call % 5 || r, 7 + call);
      pair.map(r, call % 7 || r ? out[1 - r].data() : nullptr);
    }
    std::vector<BlockMemory> memory(2);
    std::vector<Job> jobs;
    for (u32 r = 0; r < 2; r++) {
      memset((void*)&memory[r], 0, sizeof memory[r]);
      for (u32 t = 0; t < threads; t++) jobs.push_back({&f, &pair.ranks[r].args, &memory[r], threads, t});
    }
    runAll(jobs, [&] { if (call % 3 == 2) pair.map(0, nullptr); });
    for (u32 r = 0; r < 2; r++) {
      right &= !pair.ranks[r].args.error[0] && !pair.ranks[r].ends[0].direct && !pair.ranks[r].ends[1].direct;
      for (char c : out[r]) right &= c == (char)(call + 100 * (1 - r));
    }
  }
  return right;
}

// Messages of all kinds, three to a launch.
bool messagesWork(const softcudaFunction& f, u32 threads) {
  MessagePair pair(1024);
  bool right = true;
  for (u32 call = 0; call < 60; call++) {
    const u64 bytes = 1 + 577 * (call % 7);
    const std::vector<char> in(bytes, (char)(call + 1));
    std::vector<char> out[3];
    const bool mapped = call % 2;
    pair.clear(mapped, in.data());
    for (u32 i = 0; i < 3; i++) {
      out[i].assign(bytes, 0);
      auto way = (MessagePair::Way)((call / 2 + i) % MessagePair::NWAYS);
      if (way == MessagePair::UNMAPPED && mapped) way = MessagePair::READ;
      if (way == MessagePair::READ && !mapped) way = MessagePair::UNMAPPED;
      pair.message(way, in.data(), out[i].data(), bytes);
    }
    std::vector<BlockMemory> memory(2);
    std::vector<Job> jobs;
    for (u32 r = 0; r < 2; r++) {
      memset((void*)&memory[r], 0, sizeof memory[r]);
      for (u32 t = 0; t < threads; t++) jobs.push_back({&f, &pair.args[r], &memory[r], threads, t});
    }
    runAll(jobs, [] {});
    for (u32 i = 0; i < 3; i++) right &= out[i] == in;
    for (u32 r = 0; r < 2; r++) right &= !pair.args[r].error[0] && !pair.ends[r][0].direct;
  }
  return right;
}

// Only rank 0 runs; the main thread tells it to leave.
bool abortWorks(const softcudaFunction& f, Proto proto, u32 n, u32 threads) {
  Ring ring(n, 1024, proto);
  std::vector<float> data(10000);
  ring.allReduce(0, data.data(), data.data(), data.size());
  BlockMemory memory;
  memset((void*)&memory, 0, sizeof memory);
  std::vector<Job> jobs;
  for (u32 t = 0; t < threads; t++) jobs.push_back({&f, &ring.ranks[0].args, &memory, threads, t});
  runAll(jobs, [&] { __atomic_store_n(ring.abort, (u32)ABORT_REPORT, __ATOMIC_RELAXED); });
  return __atomic_load_n(ring.ranks[0].args.error, __ATOMIC_RELAXED) == ERROR_ABORTED;
}

// One rank makes another call than the others: all of them leave, and say why. As they do once more.
bool mismatchWorks(const softcudaFunction& f, Proto proto, u32 n, u32 threads) {
  Ring ring(n, 1024, proto);
  std::vector<std::vector<float>> data(n, std::vector<float>(10000));
  for (u32 r = 0; r < n; r++) ring.allReduce(r, data[r].data(), data[r].data(), data[r].size(), r == 0 ? 7 : 8);
  bool right = true;
  for (int round = 0; round < 2; round++) {
    launchAll(f, ring, threads);
    for (u32 r = 0; r < n; r++) {
      const u32* error = ring.ranks[r].args.error;
      const bool mismatch = error[0] == ERROR_MISMATCH && error[3] != error[4] && error[3] + error[4] == 7 + 8;
      right &= (mismatch || error[0] == ERROR_PEER_LEFT) && error[1] < n && error[1] != r && error[2] == 1;
    }
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    fprintf(stderr, "usage: driver simple|ll RANKS THREADS none|output|slots|links COUNT...\n");
    return 2;
  }
  const std::string proto = argv[1], broken = argv[4];
  const u32 n = (u32)atoi(argv[2]), threads = (u32)atoi(argv[3]);
  const Proto p = proto == "ll" ? LL : SIMPLE;
  // Soon the flags of LL come round, and slots are cleaned.
  Ring ring(n, 1024, p, (1ull << 32) - 30, broken == "slots", broken == "links");
  u64 wrong = 0;
  for (int i = 5; i < argc; i++) {
    const u64 count = strtoull(argv[i], nullptr, 0);
    wrong += allReduce<float>(kernel(oxccl_host_image(), "oxccl_" + proto + "_f32"), ring, threads, count,
                              broken == "output");
    wrong +=
        allReduce<u8>(kernel(oxccl_host_image(), "oxccl_" + proto + "_u8"), ring, threads, count, broken == "output");
  }
  const bool aborts = abortWorks(kernel(oxccl_host_image(), "oxccl_" + proto + "_f32"), p, n, threads);
  const bool leaves = mismatchWorks(kernel(oxccl_host_image(), "oxccl_" + proto + "_f32"), p, n, threads);
  const bool agrees = p != SIMPLE || agreementWorks(kernel(oxccl_host_image(), "oxccl_simple_u8"), threads);
  const bool messages = p != SIMPLE || messagesWork(kernel(oxccl_host_image(), "oxccl_messages"), threads);
  printf("%s, ranks %u, threads %u: %llu wrong elements%s%s%s%s\n", proto.c_str(), n, threads, wrong,
         aborts ? "" : ", abort does not work", leaves ? "" : ", leaving does not work",
         agrees ? "" : ", agreement does not work", messages ? "" : ", messages do not work");
  return wrong || !aborts || !leaves || !agrees || !messages;
}
