// tests/support/net_collectives.hpp — collectives of any world size over a Net: each rank sends
// each other one what it needs.
//
// Reductions add in rank order, whatever the order of arrival, so the bits do not depend on the
// net. Meant for tests, for few ranks and for links without anything better; shared memory and NCCL
// have back ends of their own. A frame of another size than expected means that the ranks are not
// at the same operation: an Error says so. Channels: `first_channel` for gathers, the next for
// reductions; no other traffic may use them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "actors/collectives/collective_backend.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/net.hpp"

namespace tandem {

class NetCollectives final : public CollectiveBackend {
 public:
  /// `pool` adds. Both outlive this.
  NetCollectives(Net& net, CpuPool& pool, std::uint32_t first_channel = 0);

  [[nodiscard]] std::uint32_t world() const noexcept override { return net_.world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return net_.rank(); }

  std::byte* allocate(std::size_t bytes) override;
  Task<> all_gather(GatherArguments arguments) override;
  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override;
  Task<GradientNorm> all_reduce_add(ReduceArguments arguments) override;
  Task<> exchange(ExchangeArguments arguments) override;
  Task<> broadcast(BroadcastArguments arguments) override;
  Task<> all_to_all(AllToAllArguments arguments) override;
  void abort(std::string_view why) noexcept override { net_.abort(rank()); }

 private:
  // To each peer p go `bytes` from `from + p * step`, and what p sends lands at `into + p * bytes`.
  struct Trade {
    std::uint32_t channel = 0;
    const std::byte* from = nullptr;
    std::size_t step = 0;
    std::byte* into = nullptr;
    std::size_t bytes = 0;
  };
  Task<> trade(Trade what);
  Task<> receive(std::uint32_t peer, std::uint32_t channel, std::span<std::byte> into,
                 StopToken stop);
  /// `step`: from one rank's part of the block to the next one's, in bytes; 0: every rank takes the
  /// whole block.
  Task<GradientNorm> reduce(ReduceArguments arguments, std::size_t step);

  Net& net_;
  CpuPool& pool_;
  std::uint32_t first_channel_;
  std::vector<std::byte> slices_;  // of the reduction under way, by rank
  std::vector<HostBuffer> allocated_;
  std::vector<std::uint32_t> order_;  // in which the slices are added
};

}  // namespace tandem
