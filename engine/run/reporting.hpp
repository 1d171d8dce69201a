// engine/run/reporting.hpp — where an engine prints the lines of a config's comms_logger,
// flops_profiler and wall_clock_breakdown.
#pragma once

#include <functional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace tandem {

/// Computes c = a b with the caller's kernels.
using MatmulOf = std::function<void(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b)>;

struct Reporting {
  /// Called on rank 0 with one or more lines; the last line has no newline at its end. Must not
  /// throw. Null: the lines go to standard output.
  std::function<void(std::string_view text)> say;
  MatmulOf matmul;  // of measure_peak(), for the flops_profiler's share of the peak
};

}  // namespace tandem
