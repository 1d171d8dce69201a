// engine/metrics/flops.hpp — how many floating-point operations a training step is worth, by two
// customs.
#pragma once

#include <cstdint>

namespace tandem {

struct FlopShape {
  std::int64_t parameters = 0;  // P
  std::int64_t layers = 0;      // L
  std::int64_t hidden = 0;      // h
  bool activation_checkpointing = false;
};

/// The fine-tuning example's figure: (2 c P s + 4 c L h s^2) / 1e12 x sequences / time, with c = 4
/// when activations are recomputed, else 3 (deepspeedai/DeepSpeedExamples, finetune_zero3.py).
/// TFLOP/s; recomputation counts as work.
[[nodiscard]] double example_tflops(const FlopShape& shape, std::int64_t sequences,
                                    std::int64_t sequence_length, double step_time_s) noexcept;

/// Model FLOPs: 6 N per token (forward 2 N, backward 4 N), recomputation not counted. TFLOP/s.
[[nodiscard]] double model_tflops(std::int64_t parameters, std::int64_t tokens,
                                  double step_time_s) noexcept;

/// Model FLOPs utilisation: model_tflops over the device's peak; 0 when the peak is unknown (<= 0).
[[nodiscard]] double model_flops_utilisation(std::int64_t parameters, std::int64_t tokens,
                                             double step_time_s, double peak_tflops) noexcept;

}  // namespace tandem
