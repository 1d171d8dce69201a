// bench/nvme/nvme_bench.cpp — which aio block moves optimizer state fastest on a disk.
// Each case reads and writes back a file of state as updates do, by io_uring and by threads, in
// calls of some size, some of them under way; cpu_s_per_GB counts all threads. io_uring beside
// threads that have as many calls under way, round by round: --benchmark_filter='1024K/[a-z]+8/'
// --benchmark_enable_random_interleaving --benchmark_repetitions=9. The file lies in
// $TANDEM_BENCH_DIR, else /var/tmp;
// --state_mb=N is its size. At the end the best case of those that ran is printed as the block that
// a config takes: {"aio": {...}}.
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "actors/optimizer/file_updates.hpp"
#include "bench/program.hpp"
#include "engine/plan/nvme_disk.hpp"

namespace tandem::bench {
namespace {

struct Case {
  FileIo::Backend backend = FileIo::Backend::kUring;
  NvmeOptions options;
  double best = 0;  // bytes a second
};

// Sizes of fp32 state beside 16-bit weights.
constexpr std::size_t kArray = FileUpdates::kElementsAlignment * sizeof(float);
constexpr StateSizes kSlice{.master = kArray, .state = {kArray, kArray}};

std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

void move_state(benchmark::State& state, std::size_t number, std::size_t bytes) {
  Case& what = cases()[number];
  if (what.backend == FileIo::Backend::kUring && !FileIo::choose().uring) {
    state.SkipWithError(FileIo::choose().why.c_str());
    return;
  }
  constexpr double kTimes = 5;  // that the bytes are moved: written, both ways, read, written
  double rate = 0;
  const std::clock_t begun = std::clock();
  for (auto _ : state) {
    rate = measure_disk_rates(what.options, what.backend, kSlice, bytes).each_way;
    state.SetIterationTime(static_cast<double>(bytes) / rate);
  }
  const double cpu_s = static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
  state.counters["cpu_s_per_GB"] = cpu_s / (kTimes * static_cast<double>(bytes) / 1e9);
  what.best = std::max(what.best, rate);
  state.counters["state_bytes_per_s"] = rate;
}

void register_all(std::size_t bytes) {
  const char* folder = std::getenv("TANDEM_BENCH_DIR");
  const auto add = [&](FileIo::Backend backend, std::size_t block, unsigned depth, int threads) {
    const std::size_t number = cases().size();
    cases().push_back({.backend = backend,
                       .options = {.path = folder != nullptr ? folder : "/var/tmp",
                                   .block_bytes = block,
                                   .queue_depth = depth,
                                   .threads = threads}});
    benchmark::RegisterBenchmark(
        fmt::format("{}/block{}K/{}", name_of(backend), block >> 10,
                    backend == FileIo::Backend::kUring ? fmt::format("depth{}", depth)
                                                       : fmt::format("threads{}", threads))
            .c_str(),
        [number, bytes](benchmark::State& state) { move_state(state, number, bytes); })
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  };
  for (const std::size_t block :
       {std::size_t{256} << 10, std::size_t{1} << 20, std::size_t{4} << 20}) {
    for (const unsigned depth : {2U, 8U, 32U}) {
      add(FileIo::Backend::kUring, block, depth, 1);
    }
    for (const int threads : {1, 4, 8}) {
      add(FileIo::Backend::kThreads, block, 8, threads);
    }
  }
}

void print_best() {
  const auto best = std::ranges::max_element(cases(), {}, &Case::best);
  if (best == cases().end() || best->best == 0) {
    return;
  }
  const NvmeOptions& o = best->options;
  fmt::print(
      "{{\"aio\": {{\"block_size\": {}, \"queue_depth\": {}, \"intra_op_parallelism\": {}}}}}\n",
      o.block_bytes, o.queue_depth, o.threads);
  fmt::print(stderr, "the best: --io_backend {}, {:.2f} GB/s of state each way in {}\n",
             name_of(best->backend), best->best / 1e9, o.path);
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  Suite suite(argc, argv, "optimizer state on a disk: the best aio block, io_uring beside threads");
  const auto megabytes = suite.number("--state_mb", 256, {.least = 1, .most = 1 << 20},
                                      "size of the file, in $TANDEM_BENCH_DIR or /var/tmp");
  suite.begin();
  register_all(static_cast<std::size_t>(megabytes) << 20);
  const int code = suite.run();
  print_best();
  return code;
}
