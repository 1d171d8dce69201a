// engine/loss_scaler.hpp — the dynamic loss scale of fp16.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
namespace tandem {
struct LossScalerConfig {
  double static_scale = 0;
  int initial_scale_power = 16;
  int window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_scale = 1;
};
class LossScaler {
 public:
  explicit LossScaler(const LossScalerConfig& c)
      : c_(c),
        scale_(c.static_scale > 0 ? c.static_scale : std::ldexp(1.0, c.initial_scale_power)),
        h_(c.hysteresis) {}
  double scale() const { return scale_; }
  void update(bool overflow) {
    if (c_.static_scale > 0) {
      return;
    }
    if (overflow) {
      if (c_.hysteresis == 1 || h_ == 1) {
        scale_ = std::max(scale_ / 2, c_.min_scale);
      } else {
        --h_;
      }
      last_ = it_;
    } else {
      if (c_.consecutive_hysteresis) {
        h_ = c_.hysteresis;
      }
      const auto s = it_ - last_ - 1;
      if (s > 0 && s % c_.window == 0) {
        if (!c_.consecutive_hysteresis) {
          h_ = c_.hysteresis;
        }
        scale_ *= 2;
      }
    }
    ++it_;
  }

 private:
  LossScalerConfig c_;
  double scale_;
  int h_;
  std::int64_t it_ = 0, last_ = -1;
};
}  // namespace tandem
