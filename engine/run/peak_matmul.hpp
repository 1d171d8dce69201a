// engine/run/peak_matmul.hpp — the rate of one matmul, which model FLOPs utilisation refers to.
#pragma once

#include "engine/metrics/matmul_rate.hpp"
#include "engine/run/reporting.hpp"
#include "engine/run/tensor_rank.hpp"

namespace tandem {

/// Does what Engine::measure_peak() does. The loop's thread; the matmuls run on the compute lane.
Task<MatmulRate> peak_matmul_rate(TensorRank* rank, MatmulOf own);

}  // namespace tandem
