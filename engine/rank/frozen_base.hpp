// engine/rank/frozen_base.hpp — which values the frozen units of a run have, as a number for each
// parameter: the base that is beside what is trained.
//
// A checkpoint leaves out what its source gives again, and has these numbers, by which a run that
// goes on with another base is refused. They are sums over elements of a mix of the value's fp32
// bits and its place, so ranks sum up their slices in any order, and the precision changes nothing.
// Invariant: a unit of which nothing was restored has the values of the model's source.
// Thread rule: add() on any thread, for disjoint elements; else the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/types/model.hpp"

namespace tandem {

class FrozenBase {
 public:
  /// `model` outlives it.
  explicit FrozenBase(const Model& model);

  /// Counts what the source gave for elements [begin, end) of the unit's parameter; of a unit that
  /// learns nothing.
  void add(std::size_t unit, const ParameterSpec& parameter, std::int64_t begin, std::int64_t end,
           const float* values);
  /// The unit was restored, with values of these sums, by parameter.
  void set(std::size_t unit, std::vector<std::uint64_t> sums);

  /// Whether this rank's slice of the unit is what the source gave.
  [[nodiscard]] bool is_of_source(std::size_t unit) const { return is_of_source_[unit]; }
  [[nodiscard]] bool is_of_source() const;
  [[nodiscard]] bool any() const;
  /// The sums over this rank's slices of the frozen unit, one for each parameter in the model's
  /// order.
  [[nodiscard]] const std::vector<std::uint64_t>& sums_of(std::size_t unit) const {
    return sums_[unit];
  }

  [[nodiscard]] static std::uint64_t sum_of(std::int64_t begin, std::int64_t end,
                                            const float* values);

 private:
  const Model& model_;
  std::vector<std::vector<std::uint64_t>> sums_;  // [unit][parameter]; none: it learns
  std::vector<bool> is_of_source_;
};

}  // namespace tandem
