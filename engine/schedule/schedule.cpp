#include "engine/schedule/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr double kSecondBeta = 0.99;      // OneCycle sets both betas; the second is fixed
constexpr std::int64_t kLeastWarmup = 2;  // DeepSpeed's: a warm-up of one step takes two

void require(bool ok, std::string_view type, std::string_view what) {
  if (!ok) {
    throw user_error("scheduler", "{}: {}", type, what);
  }
}

/// Position of a warm-up schedule at the k-th step: the first two steps share position 0.
std::int64_t warmup_position(std::int64_t optimizer_step) {
  return std::max<std::int64_t>(0, optimizer_step - 2);
}

}  // namespace

LrSchedule::LrSchedule(const ScheduleConfig& config, double optimizer_lr)
    : config_(config), optimizer_lr_(optimizer_lr) {
  const std::string_view type = name_of(config.type);
  switch (config.type) {
    case ScheduleType::kConstant:
      break;
    case ScheduleType::kWarmupDecay:
    case ScheduleType::kWarmupCosine:
      require(config.total_num_steps > 0, type, "total_num_steps is missing; give the run's steps");
      [[fallthrough]];
    case ScheduleType::kWarmup:
      require(config.warmup_num_steps > 0, type, "warmup_num_steps must be a positive integer");
      config_.warmup_num_steps = std::max(kLeastWarmup, config.warmup_num_steps);
      break;
    case ScheduleType::kOneCycle:
      require(config.cycle_first_step_size > 0, type, "cycle_first_step_size must be positive");
      require(config.cycle_second_step_size.value_or(0) >= 0, type,
              "cycle_second_step_size must not be negative");
      require(config.decay_step_size >= 0, type, "decay_step_size must not be negative");
      break;
    case ScheduleType::kRangeTest:
      require(config.range_test_step_size > 0, type, "lr_range_test_step_size must be positive");
      break;
  }
}

double LrSchedule::warmup_gamma(std::int64_t position) const {
  const auto i = static_cast<double>(position);
  const auto n = static_cast<double>(config_.warmup_num_steps);
  if (position < config_.warmup_num_steps) {
    return config_.warmup_type == WarmupShape::kLog ? std::log(i + 1) / std::log(n) : i / n;
  }
  if (config_.type != ScheduleType::kWarmupDecay) {
    return 1;
  }
  const auto total = static_cast<double>(config_.total_num_steps);
  return std::max(0.0, (total - i) / std::max(1.0, total - n));
}

double LrSchedule::cosine_ratio(std::int64_t optimizer_step) const {
  if (optimizer_step == 1) {
    return 0;  // the scheduler has not been stepped yet
  }
  const std::int64_t position = warmup_position(optimizer_step);
  if (position < config_.warmup_num_steps) {
    return config_.warmup_min_ratio + (1 - config_.warmup_min_ratio) * warmup_gamma(position);
  }
  const auto done = static_cast<double>(position - config_.warmup_num_steps + 1);
  const auto all =
      std::max(1.0, static_cast<double>(config_.total_num_steps - config_.warmup_num_steps));
  const double wave = (1 + std::cos(std::numbers::pi * std::min(1.0, done / all))) / 2;
  return std::max(0.0, config_.cos_min_ratio + (1 - config_.cos_min_ratio) * wave);
}

double LrSchedule::cycle_size() const {
  return static_cast<double>(
      config_.cycle_first_step_size +
      config_.cycle_second_step_size.value_or(config_.cycle_first_step_size));
}

/// Height within the cycle, 0..1..0. `position` counts scheduler steps, from 0 at the first
/// optimizer step.
double LrSchedule::cycle_scale(std::int64_t position) const {
  // Stairs of equal width: the height of the stair that the position lies on, in whole numbers.
  const std::int64_t first = config_.cycle_first_step_size;
  const std::int64_t second = config_.cycle_second_step_size.value_or(first);
  const std::int64_t up = config_.cycle_first_stair_count;
  const std::int64_t down = config_.cycle_second_stair_count.value_or(up);
  const std::int64_t within = position % (first + second);
  if (within <= first && up > 0) {
    return static_cast<double>(within * up / first) / static_cast<double>(up);
  }
  if (within > first && down > 0) {
    const std::int64_t stair = ((within - first) * down + second - 1) / second;
    return 1 - static_cast<double>(stair) / static_cast<double>(down);
  }
  const double turn = static_cast<double>(position) / cycle_size();
  const double x = 1 + turn - std::floor(1 + turn);
  const double peak = static_cast<double>(config_.cycle_first_step_size) / cycle_size();
  return x <= peak ? x / peak : (x - 1) / (peak - 1);
}

double LrSchedule::lr_at(std::int64_t optimizer_step) const {
  TANDEM_CHECK(optimizer_step >= 1, "optimizer steps are counted from 1");
  const std::int64_t position = optimizer_step - 1;
  switch (config_.type) {
    case ScheduleType::kConstant:
      return optimizer_lr_;
    case ScheduleType::kWarmup:
    case ScheduleType::kWarmupDecay: {
      const double top = config_.warmup_max_lr.value_or(optimizer_lr_);
      const double gamma = warmup_gamma(warmup_position(optimizer_step));
      return config_.warmup_min_lr + (top - config_.warmup_min_lr) * gamma;
    }
    case ScheduleType::kWarmupCosine:
      return optimizer_lr_ * cosine_ratio(optimizer_step);
    case ScheduleType::kOneCycle: {
      const double past = static_cast<double>(position) - cycle_size();
      if (past <= 0) {
        return config_.cycle_min_lr +
               (config_.cycle_max_lr - config_.cycle_min_lr) * cycle_scale(position);
      }
      if (config_.decay_step_size == 0) {
        return config_.cycle_min_lr;
      }
      const double intervals = past / static_cast<double>(config_.decay_step_size);
      return config_.cycle_min_lr / (1 + config_.decay_lr_rate * intervals);
    }
    case ScheduleType::kRangeTest: {
      const double exact =
          static_cast<double>(position) / static_cast<double>(config_.range_test_step_size);
      const double interval = config_.range_test_staircase ? std::floor(exact) : exact;
      return config_.range_test_min_lr * (1 + config_.range_test_step_rate * interval);
    }
  }
  return optimizer_lr_;
}

std::optional<std::array<double, 2>> LrSchedule::betas_at(std::int64_t optimizer_step) const {
  TANDEM_CHECK(optimizer_step >= 1, "optimizer steps are counted from 1");
  if (config_.type != ScheduleType::kOneCycle || !config_.cycle_momentum) {
    return std::nullopt;
  }
  const std::int64_t position = optimizer_step - 1;
  if (position == 0) {
    return {{config_.cycle_min_mom, kSecondBeta}};  // set at construction, before the cycle starts
  }
  const double past = static_cast<double>(position) - cycle_size();
  if (past <= 0) {
    const double height = (config_.cycle_max_mom - config_.cycle_min_mom) * cycle_scale(position);
    return {{config_.cycle_max_mom - height, kSecondBeta}};
  }
  if (config_.decay_step_size == 0) {
    return {{config_.cycle_max_mom, kSecondBeta}};
  }
  const double intervals = past / static_cast<double>(config_.decay_step_size);
  return {{config_.cycle_max_mom * (1 + config_.decay_mom_rate * intervals), kSecondBeta}};
}

}  // namespace tandem
