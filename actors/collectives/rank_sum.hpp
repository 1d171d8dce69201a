// actors/collectives/rank_sum.hpp — adds ranks' values: one after another, or neighbours first
// (ReduceArguments::tree). Any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "actors/kernels/dtype.hpp"
#include "actors/kernels/reduce.hpp"

namespace tandem {

/// Merges into `norm` the norm `part` of the elements from `begin` on. In `part`, bad elements are
/// counted from 0.
inline void merge_part(GradientNorm& norm, GradientNorm part, std::size_t begin) {
  if (part.first_bad_element >= 0) {
    part.first_bad_element += static_cast<std::int64_t>(begin);
  }
  norm.merge(part);
}

struct RankSum {
  float* sum;
  DType type;         // of the ranks' values
  std::size_t count;  // elements
  AccumulateMode mode;
  std::uint32_t ranks;
  std::uint32_t tree;  // a power of two; if 1, or no divisor of `ranks`: ranks one after another
};

namespace detail {

/// sums[level] = the sum of the values of `ranks` ranks from `first` on, as a balanced tree.
template <class ValuesOf, std::size_t kLevels>
void add_tree(std::array<std::array<float, kNormTile>, kLevels>& sums, std::size_t level,
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

/// Adds all ranks' values. `values_of(rank)` returns the address of that rank's first element. The
/// norm of the sum is added to `norm`, unless that is null.
template <class ValuesOf>
void add_ranks(RankSum what, ValuesOf values_of, GradientNorm* norm) {
  constexpr std::size_t kLevels = 8;
  const auto add = [norm, mode = what.mode](float* sum, const void* values, DType type,
                                            std::size_t count, bool first, bool last,
                                            GradientNorm* of_sum) {
    const AccumulateMode how = first ? mode : AccumulateMode::kAdd;
    if (norm != nullptr && last) {
      accumulate_with_norm(sum, values, type, 0, count, how, *of_sum);
    } else {
      accumulate(sum, values, type, 0, count, how);
    }
  };
  if (what.tree <= 1 || what.ranks % what.tree != 0 || what.tree >= 1U << kLevels) {
    for (std::uint32_t rank = 0; rank < what.ranks; ++rank) {
      add(what.sum, values_of(rank), what.type, what.count, rank == 0, rank + 1 == what.ranks,
          norm);
    }
    return;
  }
  std::array<std::array<float, kNormTile>, kLevels> sums;
  for (std::size_t at = 0; at < what.count; at += kNormTile) {
    const std::size_t count = std::min(kNormTile, what.count - at);
    GradientNorm of_block;
    for (std::uint32_t first = 0; first < what.ranks; first += what.tree) {
      detail::add_tree(sums, 0, what, at, count, first, what.tree, values_of);
      add(what.sum + at, sums[0].data(), DType::kF32, count, first == 0,
          first + what.tree == what.ranks, &of_block);
    }
    if (norm != nullptr) {
      merge_part(*norm, of_block, at);
    }
  }
}

}  // namespace tandem
