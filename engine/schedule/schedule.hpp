// engine/schedule/schedule.hpp — the learning-rate schedules of DeepSpeed, exact, as pure functions
// of the step number. DeepSpeed's scheduler is stepped after each applied optimizer step and starts
// at position -1, so the warm-up schedules use position 0 for both of the first two steps; OneCycle
// and LRRangeTest move on at once. A skipped step (gradients not finite) does not advance the
// schedule: callers count applied steps only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/util/enum_names.hpp"

namespace tandem {

enum class ScheduleType : std::uint8_t {
  kConstant,  // no scheduler: the optimizer's own rate
  kWarmup,
  kWarmupDecay,
  kWarmupCosine,
  kOneCycle,
  kRangeTest,
};
enum class WarmupShape : std::uint8_t { kLog, kLinear };

/// DeepSpeed's names; "" for none.
template <>
inline constexpr auto kEnumNames<ScheduleType> =
    std::array{EnumName{ScheduleType::kConstant, ""},
               EnumName{ScheduleType::kWarmup, "WarmupLR"},
               EnumName{ScheduleType::kWarmupDecay, "WarmupDecayLR"},
               EnumName{ScheduleType::kWarmupCosine, "WarmupCosineLR"},
               EnumName{ScheduleType::kOneCycle, "OneCycle"},
               EnumName{ScheduleType::kRangeTest, "LRRangeTest"}};
template <>
inline constexpr auto kEnumNames<WarmupShape> =
    std::array{EnumName{WarmupShape::kLog, "log"}, EnumName{WarmupShape::kLinear, "linear"}};

/// The parameters of one scheduler with DeepSpeed's defaults; only the ones of `type` count.
struct ScheduleConfig {
  ScheduleType type = ScheduleType::kConstant;

  // WarmupLR, WarmupDecayLR, WarmupCosineLR
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr;  // absent: the optimizer's rate
  std::int64_t warmup_num_steps = 1000;
  WarmupShape warmup_type = WarmupShape::kLog;
  std::int64_t total_num_steps = 0;  // WarmupDecayLR, WarmupCosineLR
  double warmup_min_ratio = 0;       // WarmupCosineLR, times the optimizer's rate
  double cos_min_ratio = 1e-4;

  // OneCycle
  double cycle_min_lr = 0;
  double cycle_max_lr = 0;
  double decay_lr_rate = 0;
  std::int64_t cycle_first_step_size = 2000;
  std::optional<std::int64_t> cycle_second_step_size;    // absent: as the first
  std::int64_t cycle_first_stair_count = 0;              // 0: no stairs
  std::optional<std::int64_t> cycle_second_stair_count;  // absent: as the first
  std::int64_t decay_step_size = 0;                      // 0: no decay after the cycle
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;

  // LRRangeTest
  double range_test_min_lr = 1e-3;
  std::int64_t range_test_step_size = 2000;
  double range_test_step_rate = 1;
  bool range_test_staircase = false;
};

class LrSchedule {
 public:
  /// `optimizer_lr`: the rate in the optimizer's parameters. Throws user_error if the parameters do
  /// not define a schedule.
  LrSchedule(const ScheduleConfig& config, double optimizer_lr);

  /// The rate of the `optimizer_step`-th applied optimizer step, 1-based.
  [[nodiscard]] double lr_at(std::int64_t optimizer_step) const;

  /// Returns Adam's betas of that step if the schedule changes them (OneCycle with cycle_momentum),
  /// else nullopt.
  [[nodiscard]] std::optional<std::array<double, 2>> betas_at(std::int64_t optimizer_step) const;

 private:
  [[nodiscard]] double warmup_gamma(std::int64_t position) const;
  [[nodiscard]] double cosine_ratio(std::int64_t optimizer_step) const;
  [[nodiscard]] double cycle_scale(std::int64_t position) const;
  [[nodiscard]] double cycle_size() const;

  ScheduleConfig config_;
  double optimizer_lr_;
};

}  // namespace tandem
