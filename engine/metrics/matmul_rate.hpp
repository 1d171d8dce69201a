// engine/metrics/matmul_rate.hpp — how fast one matmul ran that was repeated, which model FLOPs
// utilisation refers to.
#pragma once

namespace tandem {

struct MatmulRate {
  double best_tflops = 0;
  double median_tflops = 0;

  /// False if half of the repetitions were a quarter slower than the best: other programs used the
  /// processors, so that the best one says little.
  [[nodiscard]] bool is_steady() const noexcept { return median_tflops > 0.75 * best_tflops; }
};

}  // namespace tandem
