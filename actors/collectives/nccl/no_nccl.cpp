#include "actors/collectives/nccl/nccl_api.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

const NcclApi& NcclApi::load() {
  throw failure(
      ExitCode::kRefused, "nccl",
      "this build has no NCCL: nccl.h and a CUDA toolkit were not there; install both and "
      "build again");
}

}  // namespace tandem
