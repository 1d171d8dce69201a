// bench/collectives/collectives_bench.cpp — all-gather and reduce-scatter of processes of this
// host, beside a memcpy of the same traffic and beside Gloo, all in one run.
//
//   bench_collectives [Google Benchmark's flags]
//
// Names end in ranks/bytes of the whole block. `of_memcpy`: the time of the copies alone over the
// operation's; `x_gloo`: Gloo's time over ours. Each is the least of its batches, which take turns,
// because neighbours on the machine only add time. A reduce-scatter's shard is whole norm tiles (2
// KiB).
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "actors/kernels/reduce.hpp"
#include "actors/kernels/simd_target.hpp"
#include "bench/collectives/gloo.hpp"
#include "bench/collectives/rank_team.hpp"
#include "bench/program.hpp"

namespace tandem::bench {
namespace {

constexpr std::size_t kSizes[] = {std::size_t{1} << 10, std::size_t{16} << 10,
                                  std::size_t{256} << 10, std::size_t{4} << 20,
                                  std::size_t{64} << 20};
constexpr double kBatchSeconds = 0.02;

/// The ranks of one world size and what Gloo took; one team lives at a time.
struct Bench {
  std::unique_ptr<RankTeam> team;
  std::map<std::uint32_t, std::map<std::pair<std::string, std::size_t>, double>> gloo;

  RankTeam& of(std::uint32_t world) {
    if (team == nullptr || team->world() != world) {
      team.reset();
      if (!gloo.contains(world)) {
        gloo[world] = time_gloo(world, {std::begin(kSizes), std::end(kSizes)});
      }
      team = std::make_unique<RankTeam>(world, kSizes[std::size(kSizes) - 1]);
    }
    return *team;
  }
};

/// How many operations make a batch that takes about kBatchSeconds.
std::uint32_t times_for(RankTeam& team, Work work, std::size_t bytes) {
  (void)team.run(work, bytes, 2);
  const double once = team.run(work, bytes, 4) / 4;
  return static_cast<std::uint32_t>(std::clamp(kBatchSeconds / once, 1.0, 1e6));
}

void measure(benchmark::State& state, Bench* bench, std::uint32_t world, std::size_t bytes,
             Work work, Work bound, const char* gloo_name) {
  RankTeam& team = bench->of(world);
  const std::uint32_t times = times_for(team, work, bytes);
  const std::uint32_t bound_times = times_for(team, bound, bytes);
  std::vector<double> seconds;
  std::vector<double> bounds;
  for (auto _ : state) {
    const double batch = team.run(work, bytes, times);
    state.SetIterationTime(batch);
    seconds.push_back(batch / times);
    bounds.push_back(team.run(bound, bytes, bound_times) / bound_times);
  }
  const double ours = *std::ranges::min_element(seconds);
  state.counters["us"] = ours * 1e6;
  state.counters["of_memcpy"] = *std::ranges::min_element(bounds) / ours;
  const auto& gloo = bench->gloo[world];
  if (const auto found = gloo.find({gloo_name, bytes}); found != gloo.end()) {
    state.counters["x_gloo"] = found->second / ours;
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * times * bytes));
}

void register_all(Bench* bench) {
  for (const std::uint32_t world : {2U, 4U}) {
    for (const std::size_t bytes : kSizes) {
      benchmark::RegisterBenchmark(fmt::format("all_gather/{}/{}", world, bytes).c_str(), measure,
                                   bench, world, bytes, Work::kAllGather, Work::kGatherBound,
                                   "all_gather")
          ->UseManualTime();
      if (bytes % (world * kNormTile * sizeof(float)) == 0) {
        benchmark::RegisterBenchmark(fmt::format("reduce_scatter/{}/{}", world, bytes).c_str(),
                                     measure, bench, world, bytes, Work::kReduceScatter,
                                     Work::kReduceBound, "reduce_scatter")
            ->UseManualTime();
      }
    }
  }
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  Suite suite(argc, argv, "all-gather and reduce-scatter through shared memory, beside Gloo");
  suite.begin();
  Suite::add_context("simd", tandem::simd_target());
  Bench bench;
  register_all(&bench);
  return suite.run();
}
