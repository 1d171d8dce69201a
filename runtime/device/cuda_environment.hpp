// runtime/device/cuda_environment.hpp — the environment variables that CUDA reads when a process
// uses it for the first time.
#pragma once

namespace tandem {

/// Sets those that the user has not set. Called before the first call of CUDA; any thread, but no
/// other one may use the environment.
///   CUDA_DEVICE_MAX_CONNECTIONS 32: a rank has some 14 streams, and with the default of 8 hardware
///     queues two of them may share one, so that work waits for work that it does not depend on.
///   CUDA_MODULE_LOADING EAGER, for a rank of several by its launcher's variables: loading a kernel
///     at its first launch may wait for the device, on which a kernel of NCCL waits for another
///     rank's launch.
void prepare_cuda_environment();

}  // namespace tandem
