// actors/collectives/hosts/host_level.hpp — the collectives among the ranks of one host, which are
// steps of collectives over several hosts.
//
// The host's ranks are neighbours in the order of all ranks; rank() and world() count the ranks of
// this host.
// Contract: as CollectiveBackend's. All ranks of the host call the same operations with the same
// sizes in the same order within a sequence, one at a time in each. Reductions belong to the
// reductions' sequence, all-to-alls to the gathers' sequence; a gather may belong to either.
// Failure: PeerLost, which names a rank by its number among all ranks. A failure is permanent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "actors/collectives/collective_backend.hpp"
#include "actors/collectives/hosts/host_waits.hpp"

namespace tandem {

class HostLevel : public HostWaits {
 public:
  enum class Sequence : std::uint8_t { kGathers, kReductions };

  /// Copies `part` of each rank p to `into + p * stride` on every rank; it may lie there already.
  struct Gather {
    const std::byte* part = nullptr;
    std::byte* into = nullptr;
    std::size_t bytes = 0;
    std::size_t stride = 0;
    Name name = "all-gather";  // in traces
  };
  /// sum = or += the values that the ranks have at `block + rank * stride`, where `rank` is this
  /// rank. They are added in rank order.
  struct Reduce {
    const std::byte* block = nullptr;
    DType block_type = DType::kF32;
    std::size_t stride = 0;  // elements; 0: every rank sums the same elements
    float* sum = nullptr;
    std::size_t elements = 0;
    AccumulateMode mode = AccumulateMode::kOverwrite;
    std::uint32_t tree = 1;  // ReduceArguments::tree
    Name name = "reduction";
  };

  /// Allocates memory as CollectiveBackend::allocate() does.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual Task<> gather(Sequence sequence, Gather what) = 0;
  virtual Task<> reduce(Reduce what) = 0;
  virtual Task<> all_to_all(AllToAllArguments arguments) = 0;

  /// Aborts because of `failed_rank`, on any host: every operation of the host's ranks fails at
  /// once and names that rank. The first cause counts.
  virtual void fail(std::uint32_t failed_rank, std::string_view why) noexcept = 0;
};

}  // namespace tandem
