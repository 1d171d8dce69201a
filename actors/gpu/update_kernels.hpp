// actors/gpu/update_kernels.hpp — the optimizer's passes on a GPU, as a table of functions: C++17,
// for nvcc as well.
//
// update_kernels.cu fills it where CUDA is found, tests with functions of the CPU. Each is
// run_update_pass() on arrays that the device reaches, with its bits. (Of a NaN only that it is
// one: its digits are the device's.)
// Thread rule: any thread; launches go to `stream`, a cudaStream_t of the device in use on that
// thread.
#pragma once

#include <cstddef>

#include "actors/kernels/update/update_pass.hpp"

namespace tandem {

struct UpdateKernels {
  /// Unit and steps are read before it returns. A launch that failed is the device's last error.
  void (*run_pass)(UpdatePass pass, const UpdatedUnit& unit, const UpdateStep* steps,
                   std::size_t begin, std::size_t end, void* stream);

  /// The real ones. Throws Error(kRefused) where the build has none.
  [[nodiscard]] static const UpdateKernels& load();
};

}  // namespace tandem
