// engine/distributed/backend_choice.hpp — which back end a run's ranks get, from where they run and
// nothing else.
//
// All ranks know where all of them run, so all choose the same. Pure functions; any thread.
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
  // through host memory: one rank alone on a GPU, whose gathers and reductions are copies; and
  // ranks that share GPUs, which NCCL refuses
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

/// Throws a user error where `world` ranks of that back end cannot add in that order.
void require_order(ReductionOrder order, BackendKind kind, int world);

/// How many ranks of a group each host has: as many as the others, neighbours in the group's order.
/// `hosts` by rank of the group, `ranks` their numbers among all. Throws a user error, which says
/// where they are, when that is not so.
[[nodiscard]] int ranks_per_host(std::span<const std::string> hosts, std::span<const int> ranks);

}  // namespace tandem
