// actors/net_collectives.hpp — collectives of any world size over a Net: each rank sends each other one what it needs.
//
// Reductions add in rank order, whatever the order of arrival, so the bits do not depend on the net. Meant for tests, for
// few ranks and for links without anything better; shared memory and NCCL have back ends of their own.
// A frame of another size than expected means that the ranks are not at the same operation: an Error says so.
// Channels: `first_channel` for gathers, the next two for reductions and norms; nobody else may use them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "actors/collective_backend.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/net.hpp"

namespace tandem {

class NetCollectives final : public CollectiveBackend {
 public:
  /// `pool` adds. Both outlive this.
  NetCollectives(Net& net, CpuPool& pool, std::uint32_t first_channel = 0);

  [[nodiscard]] std::uint32_t world() const noexcept override { return net_.world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return net_.rank(); }

  Task<> all_gather(GatherArguments arguments) override;
  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override;
  Task<GradientNorm> all_reduce_norm(GradientNorm local) override;

 private:
  // To each peer p go `bytes` from `from + p * step`, and what p sends lands at `into + p * bytes`.
  struct Exchange {
    std::uint32_t channel = 0;
    const std::byte* from = nullptr;
    std::size_t step = 0;
    std::byte* into = nullptr;
    std::size_t bytes = 0;
  };
  Task<> exchange(Exchange what);
  Task<> receive(std::uint32_t peer, Exchange what, StopToken stop);

  Net& net_;
  CpuPool& pool_;
  std::uint32_t first_channel_;
  std::vector<std::byte> slices_;  // of the reduction under way, by rank
  // A norm as it travels: canonical digits, no padding.
  struct WireNorm {
    std::array<std::uint64_t, ExactSum::kWords> words;
    std::int64_t first_bad_element;
  };
  std::vector<WireNorm> norms_;
  std::vector<std::uint32_t> order_;  // in which the slices are added
};

}  // namespace tandem
