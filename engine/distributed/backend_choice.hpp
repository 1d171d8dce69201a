// engine/distributed/backend_choice.hpp — chooses the back end of a run's ranks from their hosts
// and GPUs alone.
//
// Every rank knows the host and GPU of all ranks, so all choose the same. Pure functions; any
// thread.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "engine/distributed/reduction.hpp"
#include "runtime/util/enum_names.hpp"

namespace tandem {

struct RankPlace {
  std::string host;  // equal for ranks that can share memory
  std::string gpu;   // the uuid of the GPU that it computes on; empty: on the CPU
};

enum class BackendKind : unsigned char {
  kSelf,   // one rank, on the CPU
  kShm,    // ranks of one host, on the CPU
  kHosts,  // ranks of several hosts, on the CPU: memory inside of each, a net between them
  kNccl,   // several ranks, each with a GPU of its own, on any number of hosts
  // through host memory: a single rank on a GPU, whose gathers and reductions are copies; or ranks
  // that share GPUs, which NCCL refuses
  kStaged,
};
template <>
inline constexpr auto kEnumNames<BackendKind> =
    std::array{EnumName{BackendKind::kSelf, "self"}, EnumName{BackendKind::kShm, "shm"},
               EnumName{BackendKind::kHosts, "hosts"}, EnumName{BackendKind::kNccl, "nccl"},
               EnumName{BackendKind::kStaged, "staged"}};

/// `places` by rank, at least one. Throws a user error, which names two ranks, where no back end
/// joins them all.
[[nodiscard]] BackendKind choose_backend(std::span<const RankPlace> places);

/// Throws a user error if `world` ranks with that back end cannot add in that order.
void require_order(ReductionOrder order, BackendKind kind, int world);

/// Returns the number of a group's ranks on each host. `hosts`: by rank of the group; `ranks`:
/// their numbers in the run. Throws a user error, which lists the ranks, unless all hosts have
/// equally many and a host's ranks are neighbours in the group's order.
[[nodiscard]] int ranks_per_host(std::span<const std::string> hosts, std::span<const int> ranks);

}  // namespace tandem
