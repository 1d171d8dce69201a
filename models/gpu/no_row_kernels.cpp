#include "models/gpu/row_kernels.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

const RowKernels& RowKernels::of_gpu() {
  throw failure(ExitCode::kRefused, "device",
                "this build has no CUDA kernels: nvcc was not there; install a CUDA toolkit and "
                "build again");
}

}  // namespace tandem
