// engine/rank/frozen_base.hpp — checksums that identify the values of a run's frozen units, one for
// each parameter.
//
// A checkpoint leaves out frozen values that the model's source gives again. It has these checksums
// instead, and a run with other frozen values is refused when it resumes. A checksum is the sum
// over elements of a mix of the value's fp32 bits and its index, so ranks can sum their slices in
// any order, and the run's precision does not matter.
// Invariant: a unit of which nothing was restored has the values of the model's source.
// Thread rule: add() on any thread, for disjoint elements; everything else on the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/types/model.hpp"

namespace tandem {

class FrozenBase {
 public:
  /// `model` outlives this object.
  explicit FrozenBase(const Model& model);

  /// Adds the elements [begin, end) of the unit's parameter as the source gave them. Does nothing
  /// if the unit is not frozen.
  void add(std::size_t unit, const ParameterSpec& parameter, std::int64_t begin, std::int64_t end,
           const float* values);
  /// Records that the unit was restored to values with these sums, one for each parameter.
  void set(std::size_t unit, std::vector<std::uint64_t> sums);

  /// Whether this rank's slice of the unit has the source's values.
  [[nodiscard]] bool is_of_source(std::size_t unit) const { return is_of_source_[unit]; }
  [[nodiscard]] bool is_of_source() const;
  [[nodiscard]] bool any() const;
  /// Returns the sums over this rank's slice of the frozen unit, one for each parameter in the
  /// model's order.
  [[nodiscard]] const std::vector<std::uint64_t>& sums_of(std::size_t unit) const {
    return sums_[unit];
  }

  [[nodiscard]] static std::uint64_t sum_of(std::int64_t begin, std::int64_t end,
                                            const float* values);

 private:
  const Model& model_;
  std::vector<std::vector<std::uint64_t>> sums_;  // [unit][parameter]; empty: not frozen
  std::vector<bool> is_of_source_;
};

}  // namespace tandem
