// runtime/util/spin_gauge.hpp — whether an idle thread should spin before it sleeps, and how long:
// learned from the past.
//
// A spin that finds something doubles the budget; one that misses halves it, and the next waits (1,
// 2, 4 ... kSkipMost of them after misses in a row) do not spin at all. So a partner on another
// core is met without a system call, a core that another thread needs is given up after a few
// misses of some microseconds each, and waits that are long anyway cost at most one short spin in
// kSkipMost.
// Thread rule: of one thread.
//
//   if (gauge.worth_trying()) {
//     spin up to gauge.budget_ns();
//     found ? gauge.found() : gauge.missed();
//   }
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem {

class SpinGauge {
 public:
  static constexpr std::int64_t kBudgetMostNs = 50'000;
  static constexpr std::int64_t kBudgetLeastNs = 1'000;
  static constexpr std::uint32_t kSkipMost = 64;

  /// Asked once per wait.
  [[nodiscard]] bool worth_trying() noexcept {
    if (skip_ == 0) [[likely]] {
      return true;
    }
    --skip_;
    return false;
  }
  [[nodiscard]] std::int64_t budget_ns() const noexcept { return budget_ns_; }

  void found() noexcept {
    skip_after_miss_ = 1;
    budget_ns_ = std::min(kBudgetMostNs, budget_ns_ * 2);
  }
  void missed() noexcept {
    skip_ = skip_after_miss_;
    skip_after_miss_ = std::min(kSkipMost, skip_after_miss_ * 2);
    budget_ns_ = std::max(kBudgetLeastNs, budget_ns_ / 2);
  }

 private:
  std::int64_t budget_ns_ = 10'000;
  std::uint32_t skip_ = 0;
  std::uint32_t skip_after_miss_ = 1;
};

}  // namespace tandem
