// tests/support/nccl_training.hpp — reductions and gathers of ranks that are threads, over any
// peers of NCCL's back end, on the fakes of CUDA and NCCL.
#pragma once

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/support/nccl_world.hpp"
#include "tests/support/reduction_reference.hpp"

namespace tandem::test {

/// A rank's sum and error at the end.
struct NcclTrained {
  std::vector<float> sum;
  std::string error;
};

struct NcclTraining {
  static constexpr std::size_t kShard = std::size_t{512} * 9;
  static constexpr std::uint32_t kRounds = 20;

  std::uint32_t world = 1;
  std::optional<std::uint32_t> gives_up;  // that rank, in the middle

  /// On the rank's own thread and loop. The back end keeps the peers, and may be the last to.
  /// Throws what the back end throws.
  void run(EventLoop& loop, std::uint32_t rank, std::shared_ptr<NcclPeers> peers,
           NcclTrained& out) const {
    NcclRank there;
    there.device = std::make_unique<CudaDevice>(
        loop, FakeCuda::api(), CudaDevice::Options{.name = fmt::format("gpu {}", rank)});
    NcclBackend::Options options;
    options.rank = rank;
    options.world = world;
    options.api = &FakeNccl::api();
    options.kernels = &fake_kernels();
    options.peers = std::move(peers);
    options.workspace_bytes = 16 << 10;
    options.watchdog.check_every = std::chrono::milliseconds(5);
    options.from_rank_0 = [](std::string_view key, const std::string& value) {
      std::string id(key);
      id.resize(value.size());
      return id;
    };
    loop.run(&NcclTraining::train, &loop, &there, std::move(options), gives_up == rank, &out);
  }

 private:
  static Task<> train(EventLoop* loop, NcclRank* rank, NcclBackend::Options options, bool gives_up,
                      NcclTrained* out) {
    rank->backend = co_await NcclBackend::connect(loop, rank->device.get(), options);
    options.peers.reset();
    const DeviceBuffer block = rank->buffer(kShard * options.world * 4);
    const DeviceBuffer sum = rank->buffer(kShard * 4);
    const DeviceBuffer all = rank->buffer(kShard * options.world * 4);
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      fill_block(block.data(), DType::kF32, kShard * options.world, options.rank, round);
      (void)co_await rank->backend->reduce_scatter_add(
          {.block = block.data(),
           .accumulator = sum.data(),
           .shard_elements = kShard,
           .mode = round == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd});
      if (gives_up && round == 7) {
        rank->backend->abort("no more");
      }
      co_await rank->backend->all_gather({sum.data(), all.data(), kShard * 4});
    }
    out->sum.resize(kShard * options.world);
    std::memcpy(out->sum.data(), all.data(), out->sum.size() * 4);
  }
};

}  // namespace tandem::test
