// One rank on one loop: alone, on a simulated device, and with operands in a state file.
#include <utility>

#include <fmt/format.h>

#include "tests/actors/collectives/contract/wrapped_ranks.hpp"
#include "tests/support/actor_world.hpp"

namespace tandem::test {
namespace {

constexpr std::size_t kHomeBytes = std::size_t{48} << 20;
constexpr std::size_t kChunkBytes = std::size_t{512} << 10;  // of SelfBackend

/// Everything of a rank is made and destroyed while its loop does not run. `make(loop, pool)`
/// returns its ContractRank.
template <class Make>
WorldRun run_alone(const Program& program, Clock* clock, Make make) {
  WorldRun run{.ranks = std::vector<Ending>(1)};
  EventLoop loop({.name = "rank 0", .clock = clock});
  CpuPool pool(loop, {.threads = 2});
  const std::unique_ptr<ContractRank> rank = make(loop, pool);
  loop.run(&run_to_its_end, rank.get(), &program, run.ranks.data());
  return run;
}

Backend alone(std::string name) {
  return {.name = std::move(name),
          .worlds = {1},
          .buffer_bytes = kChunkBytes,
          .large_bytes = 3 * kChunkBytes + 333,
          .large_tiles = 301};
}

}  // namespace

std::vector<Backend> loop_backends() {
  const std::vector<Homes> host = {{Home::kOwn, Home::kOwn}, {Home::kAllocated, Home::kAllocated}};
  Backend self = alone("self");
  self.gathers = self.reductions = self.swaps = self.exchanges = host;
  self.run = [](std::uint32_t, std::uint64_t, const Program& program) {
    return run_alone(program, nullptr, [](EventLoop&, CpuPool& pool) {
      return std::make_unique<OwningRank>(std::make_unique<SelfBackend>(pool), kHomeBytes);
    });
  };

  Backend staged = alone("staged_over_self");
  use_device(staged, 1);
  staged.run = [](std::uint32_t, std::uint64_t, const Program& program) {
    ManualClock clock;
    return run_alone(program, &clock, [](EventLoop& loop, CpuPool& pool) {
      return std::make_unique<DeviceRank>(loop, std::make_unique<SelfBackend>(pool),
                                          SimDevice::Time::kVirtual);
    });
  };

  std::vector<Backend> all = {self, staged};
  for (const bool straight : {true, false}) {
    Backend file = alone(straight ? "state_file" : "state_file_with_buffers");
    use_file(file, straight);
    file.run = [straight](std::uint32_t, std::uint64_t, const Program& program) {
      return run_alone(program, nullptr, [straight](EventLoop& loop, CpuPool& pool) {
        return std::make_unique<FileRank>(loop, pool, std::make_unique<SelfBackend>(pool),
                                          straight);
      });
    };
    all.push_back(std::move(file));
  }
  return all;
}

}  // namespace tandem::test
