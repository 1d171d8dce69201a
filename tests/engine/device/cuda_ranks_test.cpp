// Ranks with a GPU each: the engine over NCCL, on the fakes of CUDA and NCCL, has the bits of ranks
// on the CPU.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/fakes/fake_gpu.hpp"
#include "tests/support/fakes/nccl_thread_rank.hpp"
#include "tests/support/nccl_hosts.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::FakeCuda;
using test::FakeNccl;
using test::FakePeers;
using test::NcclHostsMeeting;
using test::NcclThreadRank;
using toy::Setting;
using toy::TrainingRun;

TrainingRun train_over_nccl(const Setting& setting, int world, int steps,
                            const NcclThreadRank::Peers& peers) {
  const auto runs = on_ranks(world, [&](std::shared_ptr<Communicator> thread) {
    return toy::train(setting, steps, std::make_shared<NcclThreadRank>(std::move(thread), peers));
  });
  for (const TrainingRun& run : runs) {
    EXPECT_EQ(run, runs.front());
  }
  return runs.front();
}

TrainingRun train_over_nccl(const Setting& setting, int world, int steps) {
  FakePeers peers;
  peers.world = static_cast<std::uint32_t>(world);
  return train_over_nccl(setting, world, steps, [&peers](EventLoop&, std::uint32_t rank) {
    return std::make_shared<FakePeers::OfRank>(peers, rank);
  });
}

TEST(CudaRanks, OverNcclGiveTheBitsOfRanksOnTheCpu) {
  for (const std::string type : {"fp32", "bf16"}) {
    Setting setting{.accumulation = 2, .type = type};
    const TrainingRun expected = toy::train_on_ranks(setting, 2, 3);
    setting.device = DeviceKind::kCuda;
    for (const Duration segment : {Duration(1us), Duration(300us)}) {
      setting.open_gpu = test::fake_gpus(segment);
      for (const int stage : {0, 1, 2, 3}) {
        for (const Overlap overlap : {Overlap::kOff, Overlap::kFull}) {
          setting.stage = stage;
          setting.overlap = overlap;
          const FakeCuda cuda(Clock::real());
          const FakeNccl nccl;
          EXPECT_EQ(train_over_nccl(setting, 2, 3), expected)
              << type << " stage " << stage << " " << name_of(overlap);
          EXPECT_EQ(cuda.frees_in_use(), 0);
        }
      }
    }
  }
}

TEST(CudaRanks, OfSeveralHostsGiveTheBitsOfRanksOnTheCpu) {
  if (!ucx_support().usable) {
    GTEST_SKIP() << "no UCX: " << ucx_support().what;
  }
  Setting setting{.accumulation = 2, .type = "bf16"};
  const TrainingRun expected = toy::train_on_ranks(setting, 4, 3);
  setting.device = DeviceKind::kCuda;
  setting.open_gpu = test::fake_gpus(100us);
  for (const std::uint32_t per_host : {1U, 2U}) {
    for (const int stage : {0, 3}) {
      setting.stage = stage;
      const FakeCuda cuda(Clock::real());
      FakeNccl nccl;
      nccl.per_host = per_host;
      NcclHostsMeeting meeting(4, per_host);
      EXPECT_EQ(train_over_nccl(setting, 4, 3,
                                [&meeting](EventLoop& loop, std::uint32_t rank) {
                                  return meeting.join(loop, rank);
                                }),
                expected)
          << per_host << " ranks per host, stage " << stage;
      EXPECT_EQ(cuda.frees_in_use(), 0);
    }
  }
}

/// Gradients are reduced into the host's memory, and come up with the update.
TEST(CudaRanks, OverNcclTakeStateOntoTheirGpus) {
  for (const std::string type : {"fp32", "bf16"}) {
    Setting setting{.accumulation = 2, .type = type};
    const TrainingRun expected = toy::train_on_ranks(setting, 2, 3);
    setting.device = DeviceKind::kCuda;
    setting.open_gpu = test::fake_gpus(100us);
    for (const Placement placement : {Placement::kGpu, Placement::kStream}) {
      for (const int stage : {0, 1, 3}) {
        setting.placement = placement;
        setting.stage = stage;
        const FakeCuda cuda(Clock::real());
        const FakeNccl nccl;
        EXPECT_EQ(train_over_nccl(setting, 2, 3), expected)
            << type << " stage " << stage << " " << name_of(placement);
        EXPECT_EQ(cuda.frees_in_use(), 0);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
