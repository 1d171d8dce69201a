// engine/run/reporting.hpp — how an engine says what a config's comms_logger, flops_profiler and
// wall_clock_breakdown ask for.
#pragma once

#include <functional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace tandem {

/// c = a b, with kernels of the caller's.
using MatmulOf = std::function<void(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b)>;

struct Reporting {
  /// Takes lines, without the end of the last one, on rank 0; throws nothing. Null: standard
  /// output.
  std::function<void(std::string_view text)> say;
  MatmulOf matmul;  // of measure_peak_tflops(), for the flops_profiler's share of the peak
};

}  // namespace tandem
