#include "engine/rank/frozen_base.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "runtime/util/check.hpp"

namespace tandem {

FrozenBase::FrozenBase(const Model& model)
    : model_(model), sums_(model.units.size()), is_of_source_(model.units.size(), true) {
  for (std::size_t unit = 0; unit < sums_.size(); ++unit) {
    if (model.units[unit].frozen()) {
      sums_[unit].resize(model.units[unit].parameters.size());
    }
  }
}

std::uint64_t FrozenBase::sum_of(std::int64_t begin, std::int64_t end, const float* values) {
  std::uint64_t sum = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    // Murmur3's finisher of 32 bits: many elements at a time, since a load waits for it.
    std::uint32_t x = std::bit_cast<std::uint32_t>(values[i - begin]) ^
                      (0x9E3779B1U * static_cast<std::uint32_t>(i + 1));
    x = (x ^ (x >> 16)) * 0x85EBCA6BU;
    x = (x ^ (x >> 13)) * 0xC2B2AE35U;
    sum += x ^ (x >> 16);
  }
  return sum;
}

void FrozenBase::add(std::size_t unit, const ParameterSpec& parameter, std::int64_t begin,
                     std::int64_t end, const float* values) {
  if (sums_[unit].empty()) {
    return;
  }
  const auto place = &parameter - model_.units[unit].parameters.data();
  TANDEM_CHECK(place >= 0 && static_cast<std::size_t>(place) < sums_[unit].size(),
               "a parameter is one of its unit's");
  std::atomic_ref<std::uint64_t>(sums_[unit][static_cast<std::size_t>(place)])
      .fetch_add(sum_of(begin, end, values), std::memory_order_relaxed);
}

void FrozenBase::set(std::size_t unit, std::vector<std::uint64_t> sums) {
  TANDEM_CHECK_EQ(sums.size(), sums_[unit].size(), "a unit has a sum for each parameter");
  is_of_source_[unit] = is_of_source_[unit] && sums == sums_[unit];
  sums_[unit] = std::move(sums);
}

bool FrozenBase::is_of_source() const {
  return std::ranges::all_of(is_of_source_, [](bool is) { return is; });
}

bool FrozenBase::any() const {
  return std::ranges::any_of(sums_, [](const auto& sums) { return !sums.empty(); });
}

}  // namespace tandem
