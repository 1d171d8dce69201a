#include "engine/distributed/communicator.hpp"

#include "actors/collectives/collective_backend.hpp"
#include "actors/collectives/staged_backend.hpp"
#include "runtime/device/cuda_device.hpp"

namespace tandem {

std::unique_ptr<CollectiveBackend> Communicator::make_gpu_backend(EventLoop& loop, CpuPool& pool,
                                                                  CudaDevice& gpu,
                                                                  std::string_view /*uuid*/) {
  return std::make_unique<StagedBackend>(gpu, make_backend(loop, pool));
}

std::unique_ptr<CollectiveBackend> Communicator::make_gpu_group_backend(
    EventLoop& /*loop*/, CudaDevice& /*gpu*/, const RankGroup& /*group*/) {
  return nullptr;
}

std::unique_ptr<CollectiveBackend> Alone::make_backend(EventLoop& /*loop*/, CpuPool& pool) {
  return std::make_unique<SelfBackend>(pool);
}

std::unique_ptr<CollectiveBackend> Alone::make_group_backend(EventLoop& /*loop*/, CpuPool& pool,
                                                             const RankGroup& /*group*/) {
  return std::make_unique<SelfBackend>(pool);
}

}  // namespace tandem
