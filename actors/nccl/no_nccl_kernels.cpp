#include "actors/nccl/nccl_kernels.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

const NcclKernels& NcclKernels::load() {
  throw failure(ExitCode::kRefused, "nccl",
                "this build has no CUDA kernels: nvcc was not there; install a CUDA toolkit and "
                "build again");
}

}  // namespace tandem
