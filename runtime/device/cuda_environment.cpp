#include "runtime/device/cuda_environment.hpp"

#include <cstdlib>

namespace tandem {

void prepare_cuda_environment() {
  (void)::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  for (const char* const name : {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"}) {
    const char* const ranks = std::getenv(name);
    if (ranks != nullptr && std::strtol(ranks, nullptr, 10) > 1) {
      (void)::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
    }
  }
}

}  // namespace tandem
