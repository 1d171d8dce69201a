// tests/support/reduction_reference.hpp — blocks of numbers for reductions, and the bits that come
// of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "actors/collectives/collective_backend.hpp"
#include "tests/support/actor_world.hpp"

namespace tandem::test {

inline std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x45d9f3bU;
  x = (x ^ (x >> 16)) * 0x45d9f3bU;
  return x ^ (x >> 16);
}

/// Returns values of many magnitudes, so that another order of additions gives other bits.
inline float value_of(std::uint32_t rank, std::uint32_t round, std::size_t i) {
  const std::uint32_t bits =
      mixed(static_cast<std::uint32_t>(i) * 31 + rank * 7919 + round * 104729);
  return std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)),
                    static_cast<int>(bits % 24) - 40);
}

inline void fill_block(std::byte* block, DType type, std::size_t n, std::uint32_t rank,
                       std::uint32_t round) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = value_of(rank, round, i);
  }
  cast(values.data(), DType::kF32, block, type, 0, n);
}

/// The sum and norm by `self` of the ranks' blocks, one after the other in micro-steps.
struct Expected {
  std::vector<float> sum;
  GradientNorm norm;

  Expected(std::uint32_t world, DType type, std::size_t n, std::uint32_t rounds) : sum(n) {
    World rank;
    SelfBackend self(rank.pool);
    std::vector<std::byte> block(n * bytes_of(type));
    for (std::uint32_t step = 0; step < world * rounds; ++step) {
      fill_block(block.data(), type, n, step % world, step / world);
      norm = rank.loop.run(
          [](SelfBackend* s, ReduceArguments a) -> Task<GradientNorm> {
            co_return co_await s->reduce_scatter_add(a);
          },
          &self,
          ReduceArguments{.block = block.data(),
                          .block_type = type,
                          .accumulator = sum.data(),
                          .shard_elements = n,
                          .mode = step == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd,
                          .want_norm = true});
    }
  }
};

}  // namespace tandem::test
