#include "trainer/finetune/rate_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem {

double RateSchedule::at(std::int64_t step) const {
  const auto total = static_cast<double>(total_steps);
  const auto warm = static_cast<double>(warmup_steps);
  if (shape == RateShape::kConstant) {
    return peak * std::min(1.0, static_cast<double>(step) / std::max(1.0, warm));
  }
  const auto before = static_cast<double>(step - 1);  // steps
  if (before < warm) {
    return peak * (before / warm);
  }
  const double falling = std::max(1.0, total - warm);  // steps
  if (shape == RateShape::kLinear) {
    return peak * std::max(0.0, (total - before) / falling);
  }
  const double done = (before - warm) / falling;
  return peak * std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * done)));
}

}  // namespace tandem
