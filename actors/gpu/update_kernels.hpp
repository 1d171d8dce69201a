// actors/gpu/update_kernels.hpp — a table of functions that run the optimizer's passes on a GPU:
// C++17, for nvcc as well.
//
// update_kernels.cu fills the table if CUDA is found; tests fill it with functions for the CPU.
// The functions do what run_update_pass() does, with the same bits, on arrays that the device can
// access. (A NaN stays a NaN, but its payload depends on the device.)
// Thread rule: any thread; launches go to `stream`, a cudaStream_t of the device in use on that
// thread.
#pragma once

#include <cstddef>

#include "actors/kernels/update/update_pass.hpp"

namespace tandem {

struct UpdateKernels {
  /// Reads unit and steps before it returns. A failed launch sets the device's last error.
  void (*run_pass)(UpdatePass pass, const UpdatedUnit& unit, const UpdateStep* steps,
                   std::size_t begin, std::size_t end, void* stream);

  /// Returns the GPU's kernels. Throws Error(kRefused) if the build has none.
  [[nodiscard]] static const UpdateKernels& load();
};

}  // namespace tandem
