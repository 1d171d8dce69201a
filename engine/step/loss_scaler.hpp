// engine/step/loss_scaler.hpp — the factor that keeps fp16 gradients in range: DeepSpeed's dynamic
// loss scaler, rule by rule, or a fixed factor.
//
// The scale of a step is scale() before its update(): the loss is multiplied by it, and the step's
// gradients are divided by the very same value. (DeepSpeed divides by the value after the update,
// which is twice as large if the scale just grew.) update() is called once per step, also after a
// skipped one.
// Overflow: with hysteresis h, the first h - 1 overflows leave the scale unchanged; each later one
// halves it, down to min_scale.
// Growth: after window + 1 steps without overflow, counted from the start or the last overflow, and
// then after every further `window`, the scale doubles and the hysteresis is full again; there is
// no greatest scale. With consecutive_hysteresis every step without overflow fills the hysteresis.
// Invariant: scale() depends on the configuration and the overflows so far alone.
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>

#include "engine/types/loss_scale_state.hpp"

namespace tandem {

struct LossScalerConfig {
  double static_scale = 0;       // 0: dynamic
  int initial_scale_power = 16;  // the scale begins at 2^power
  int window = 1000;             // steps, at least 1
  int hysteresis = 2;            // overflows, at least 1
  bool consecutive_hysteresis = false;
  double min_scale = 1;  // above 0
};

class LossScaler {
 public:
  /// The state that a checkpoint keeps; the configuration is not in it.
  using State = LossScaleState;

  explicit LossScaler(const LossScalerConfig& config);

  [[nodiscard]] double scale() const noexcept { return state_.scale; }
  [[nodiscard]] bool is_dynamic() const noexcept { return config_.static_scale == 0; }
  /// Whether an overflow can still lower the scale. If so, an overflow is no sign of a bad state.
  [[nodiscard]] bool may_fall() const noexcept {
    return is_dynamic() && state_.scale > config_.min_scale;
  }

  /// Call it after each step. `overflow`: the step's gradients contained NaN or infinity. A fixed
  /// scale does not change. If the scale is at its minimum and would have to fall, throws
  /// Error(kBadState) and changes nothing.
  void update(bool overflow);

  [[nodiscard]] const State& state() const noexcept { return state_; }
  /// Continues from a state of state(). A fixed scale of the configuration takes precedence over
  /// the state's.
  void restore(const State& state) noexcept;

 private:
  void fall();

  LossScalerConfig config_;
  State state_;
};

}  // namespace tandem
