// tests/support/collective_operations.hpp — every operation of a collective back end, by number.
#pragma once

#include <array>
#include <cstddef>

#include "actors/collectives/collective_backend.hpp"

namespace tandem::test {

inline constexpr std::array<const char*, 5> kOperations = {
    "all-gather", "all-to-all", "reduce-scatter", "all-reduce", "exchange"};

/// Memory for any of them on up to four ranks, where the back end wants it: kBytes each.
struct Operands {
  static constexpr std::size_t kElements = 4096;
  static constexpr std::size_t kBytes = 4 * kElements * sizeof(float);
  Placed<std::byte> block;
  Placed<std::byte> into;
};

/// Operation `kind`, `times` times.
inline Task<> operate(CollectiveBackend* backend, Operands o, std::size_t kind, int times) {
  constexpr std::size_t kElements = Operands::kElements;
  const ReduceArguments reduce{
      .block = o.block, .accumulator = o.into, .shard_elements = kElements, .want_norm = true};
  std::array<std::byte, 64> mine{};
  std::array<std::byte, 64 * 8> all{};
  for (; times > 0; --times) {
    switch (kind) {
      case 0:
        co_await backend->all_gather({o.block, o.into, kElements});
        break;
      case 1:
        co_await backend->all_to_all({o.block, o.into, kElements});
        break;
      case 2:
        (void)co_await backend->reduce_scatter_add(reduce);
        break;
      case 3:
        (void)co_await backend->all_reduce_add(reduce);
        break;
      default:
        co_await backend->exchange({mine.data(), all.data(), mine.size()});
        break;
    }
  }
}

}  // namespace tandem::test
