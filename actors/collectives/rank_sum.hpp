// actors/collectives/rank_sum.hpp — how ranks' values become a sum: one after another, or with
// neighbours added to each other first (ReduceArguments::tree). Any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "actors/kernels/dtype.hpp"
#include "actors/kernels/reduce.hpp"

namespace tandem {

struct RankSum {
  float* sum;
  DType type;         // of the ranks' values
  std::size_t count;  // elements
  AccumulateMode mode;
  std::uint32_t ranks;
  std::uint32_t tree;  // a power of two; 1, or no divisor of `ranks`: one after another
};

namespace detail {

/// sums[level] = the values of `ranks` ranks from `first` on, as a balanced tree.
template <class ValuesOf, std::size_t kLevels>
void add_tree(std::array<std::array<float, kNormBlock>, kLevels>& sums, std::size_t level,
              const RankSum& what, std::size_t at, std::size_t count, std::uint32_t first,
              std::uint32_t ranks, ValuesOf values_of) {
  if (ranks == 1) {
    accumulate(sums[level].data(), values_of(first) + at * bytes_of(what.type), what.type, 0, count,
               AccumulateMode::kOverwrite);
    return;
  }
  add_tree(sums, level, what, at, count, first, ranks / 2, values_of);
  add_tree(sums, level + 1, what, at, count, first + ranks / 2, ranks / 2, values_of);
  accumulate(sums[level].data(), sums[level + 1].data(), DType::kF32, 0, count,
             AccumulateMode::kAdd);
}

}  // namespace detail

/// `values_of(rank)`: where that rank's elements begin. `norm` (null: not wanted) gets the sum's.
template <class ValuesOf>
void add_ranks(RankSum what, ValuesOf values_of, GradientNorm* norm) {
  constexpr std::size_t kLevels = 8;
  const bool trees = what.tree > 1 && what.ranks % what.tree == 0 && what.tree < 1U << kLevels;
  const std::uint32_t each = trees ? what.tree : 1;
  const std::size_t step = trees ? kNormBlock : what.count;
  std::array<std::array<float, kNormBlock>, kLevels> sums;
  for (std::size_t at = 0; at < what.count; at += step) {
    const std::size_t count = std::min(step, what.count - at);
    AccumulateMode mode = what.mode;
    GradientNorm of_step;
    for (std::uint32_t first = 0; first < what.ranks; first += each) {
      const void* values = nullptr;
      if (trees) {
        detail::add_tree(sums, 0, what, at, count, first, each, values_of);
        values = sums[0].data();
      } else {
        values = values_of(first);
      }
      const DType type = trees ? DType::kF32 : what.type;
      if (norm != nullptr && first + each == what.ranks) {
        accumulate_with_norm(what.sum + at, values, type, 0, count, mode, of_step);
      } else {
        accumulate(what.sum + at, values, type, 0, count, mode);
      }
      mode = AccumulateMode::kAdd;
    }
    if (norm != nullptr) {
      if (of_step.first_bad_element >= 0) {
        of_step.first_bad_element += static_cast<std::int64_t>(at);
      }
      norm->merge(of_step);
    }
  }
}

}  // namespace tandem
