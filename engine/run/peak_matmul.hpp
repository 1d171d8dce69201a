// engine/run/peak_matmul.hpp — the rate of one matmul, which model FLOPs utilisation refers to.
#pragma once

#include "engine/run/reporting.hpp"
#include "engine/run/tensor_rank.hpp"

namespace tandem {

/// Returns TFLOP/s as Engine::measure_peak_tflops() does. The loop's thread; the matmuls run on the
/// compute lane.
Task<double> peak_tflops(TensorRank* rank, MatmulOf own);

}  // namespace tandem
