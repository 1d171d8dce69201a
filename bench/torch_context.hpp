// bench/torch_context.hpp — for suites that compute with the engine: the kernels' instructions and
// LibTorch, for the report.
#pragma once

#include <string>

#include <ATen/Parallel.h>
#include <torch/version.h>

#include "actors/kernels/simd_target.hpp"
#include "bench/program.hpp"

namespace tandem::bench {

inline void add_torch_context() {
  Suite::add_context("simd", simd_target());
  Suite::add_context("libtorch", TORCH_VERSION);
  Suite::add_context("torch_threads", std::to_string(at::get_num_threads()));
}

}  // namespace tandem::bench
