#include "engine/step/loss_scaler.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

LossScaler::LossScaler(const LossScalerConfig& config) : config_(config) {
  TANDEM_CHECK(config.static_scale >= 0 && config.window >= 1 && config.hysteresis >= 1 &&
                   config.min_scale > 0,
               "the config's ranges were checked when it was read");
  state_.scale = is_dynamic() ? std::ldexp(1.0, config.initial_scale_power) : config.static_scale;
  state_.hysteresis = config.hysteresis;
}

void LossScaler::update(bool overflow) {
  if (!is_dynamic()) {
    return;
  }
  if (overflow) {
    if (state_.hysteresis == 1) {
      fall();
    } else {
      --state_.hysteresis;
    }
    state_.last_overflow = state_.step;
  } else {
    if (config_.consecutive_hysteresis) {
      state_.hysteresis = config_.hysteresis;
    }
    const std::int64_t clean = state_.step - state_.last_overflow - 1;  // before this step
    if (clean > 0 && clean % config_.window == 0) {
      state_.hysteresis = config_.hysteresis;
      state_.scale *= 2;
    }
  }
  ++state_.step;
}

void LossScaler::fall() {
  if (state_.scale <= config_.min_scale) {
    throw failure(ExitCode::kBadState, "loss scale",
                  "gradients overflow at the least loss scale {}; the loss diverges: lower the "
                  "learning rate, or train in bf16",
                  state_.scale);
  }
  state_.scale = std::max(state_.scale / 2, config_.min_scale);
}

void LossScaler::restore(const State& state) noexcept {
  if (is_dynamic()) {
    state_ = state;
    // it may have been lowered since
    state_.hysteresis = std::min(state.hysteresis, config_.hysteresis);
  }
}

}  // namespace tandem
