// engine/distributed/reduction.hpp — the order in which the ranks' gradients are added: equal bits
// or less traffic.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/util/enum_names.hpp"

namespace tandem {

enum class ReductionOrder : std::uint8_t {
  kExact,  // rank by rank, in fp32: any number of ranks and hosts gives the bits of one
  kFast,   // a reduce-scatter over hosts: the ranks of a host first, then host by host
  kNccl,   // NCCL's own sums, in the gradients' type; for ranks with a GPU of their own each
};
template <>
inline constexpr auto kEnumNames<ReductionOrder> =
    std::array{EnumName{ReductionOrder::kExact, "exact"}, EnumName{ReductionOrder::kFast, "fast"},
               EnumName{ReductionOrder::kNccl, "nccl"}};

}  // namespace tandem
