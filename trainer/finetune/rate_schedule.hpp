// trainer/finetune/rate_schedule.hpp — the learning rate where no config has a scheduler:
// it rises linearly over the first steps, and then stays or falls.
//
// linear and cosine are Transformers' get_linear_schedule_with_warmup and
// get_cosine_schedule_with_warmup, number for number: the first step of a warm-up has the rate 0,
// and the rate would be 0 one step behind the last. constant is the DeepSpeed example's: its first
// step already has the first rise of the warm-up.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/util/enum_names.hpp"

namespace tandem {

enum class RateShape : std::uint8_t { kConstant, kLinear, kCosine };

template <>
inline constexpr auto kEnumNames<RateShape> =
    std::array{EnumName{RateShape::kConstant, "constant"}, EnumName{RateShape::kLinear, "linear"},
               EnumName{RateShape::kCosine, "cosine"}};

struct RateSchedule {
  RateShape shape = RateShape::kLinear;
  double peak = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;

  /// The rate of a step, counted from 1.
  [[nodiscard]] double at(std::int64_t step) const;
};

}  // namespace tandem
