// The optimizer's passes on a GPU: all of them but the indices of threads, on the CPU; and the
// kernels themselves, where a GPU is. Both have the bits of the CPU's vectors.
#include "actors/gpu/update_kernels.hpp"

#include <algorithm>
#include <array>
#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/device/cuda_device.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "tests/actors/kernels/update/update_cases.hpp"
#include "tests/support/fakes/fake_update_kernels.hpp"

namespace tandem {
namespace {

using test::expect_bits_of_the_vectors;
using test::LayoutCase;
using test::LayoutShard;
using test::ShardPair;
using test::UpdateCase;

class UpdateKernelsOf : public ::testing::TestWithParam<UpdateCase> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, UpdateKernelsOf, ::testing::ValuesIn(test::kUpdateCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(UpdateKernelsOf, ThreadsHaveTheBitsOfTheCpusVectors) {
  expect_bits_of_the_vectors(
      GetParam(),
      [](UpdatePass pass, ShardPair& pair, const UpdateStep* steps, std::size_t begin,
         std::size_t end) { test::run_pass_on_threads(pass, pair.unit, steps, begin, end); });
}

/// A warp as 32 threads of the host: what its members leave for each other, they do here, too.
struct WarpLaunch : test::HostLaunch {
  struct Shared {
    std::array<std::uint32_t, 32> own{};
    std::barrier<> all{32};
  };
  struct Member {
    static constexpr unsigned kMembers = 32;
    unsigned number;
    Shared* shared;

    [[nodiscard]] unsigned first() const { return number; }
    [[nodiscard]] std::uint32_t greatest(std::uint32_t own) const {
      shared->own[number] = own;
      shared->all.arrive_and_wait();
      const std::uint32_t greatest = std::ranges::max(shared->own);
      shared->all.arrive_and_wait();
      return greatest;
    }
  };
  template <class Rule, bool kSplit>
  void blocks(const Rule& rule, const PassBuffers& pass, N_ONE_LANE::RoundingBits rounding_bits,
              std::size_t first, std::size_t count) {
    Shared shared;
    std::vector<std::jthread> members;
    for (unsigned number = 0; number < Member::kMembers; ++number) {
      members.emplace_back([&, number] {
        for (std::size_t at = 0; at < count; at += kScaleGroup) {
          N_ONE_LANE::update_block<Rule, kSplit>(rule, pass, rounding_bits.from(at), first + at,
                                                 count - at, Member{number, &shared});
        }
      });
    }
  }
};

TEST(UpdateKernels, AWarpHasTheBitsOfTheCpusVectors) {
  for (const UpdateCase& optimizer : test::kUpdateCases) {
    if (supports(optimizer.config.kind, StateLayout::kInt8, DType::kBF16)) {
      expect_bits_of_the_vectors(
          optimizer,
          [](UpdatePass pass, ShardPair& pair, const UpdateStep* steps, std::size_t begin,
             std::size_t end) {
            WarpLaunch launch;
            N_ONE_LANE::carry_out_pass(pass, pair.unit, steps, begin, end, launch);
          },
          std::size(test::kExtents) - 1);
    }
  }
}

/// The comparison sees one bit.
TEST(UpdateKernels, ADifferenceIsSeen) {
  const LayoutCase types{StateLayout::kFp32, DType::kBF16, DType::kF32};
  test::Two both({.lr = 1e-2}, types, 300, {{0, 300, 0}}, 0, 1);
  auto* master = static_cast<std::uint32_t*>(both.threads.home.buffers.master);
  master[299] ^= 1;
  EXPECT_EQ(test::floats_differ(master, both.vectors.home.buffers.master, 300), 299);
}

// ---- on a GPU ----
/// A pair's memory on the device: there before each pass, and back behind it.
struct OnGpu {
  struct Copied {
    std::span<std::byte> host;
    DeviceBuffer there;
  };
  EventLoop loop;
  CudaDevice device{loop, CudaApi::load(), {.name = "gpu 0"}};
  DeviceStream stream = device.stream("test");
  std::vector<Copied> copied;

  void add(const HostBuffer& host) {
    copied.push_back({host.span(), device.allocate(host.size_bytes())});
    stream.to_device(copied.back().there.data(), host.span());
  }
  template <class T>
  void move_there(T*& array) const {
    const auto* at = static_cast<const std::byte*>(static_cast<const void*>(array));
    for (const Copied& one : copied) {
      if (at != nullptr && at >= one.host.data() && at < one.host.data() + one.host.size()) {
        array = reinterpret_cast<T*>(one.there.data() + (at - one.host.data()));
        return;
      }
    }
  }
  void run(UpdatePass pass, ShardPair& pair, const UpdateStep* steps, std::size_t begin,
           std::size_t end) {
    copied.clear();
    for (const LayoutShard* shard : {&pair.home, &pair.spare}) {
      add(shard->memory);
      add(shard->weight);
      add(shard->gradient);
    }
    UpdatedUnit unit = pair.unit;
    visit_arrays(unit, pass, [&]<class T>(T*& array, const ArrayUse&) { move_there(array); });
    stream.launch("update", {}, [&](void* native) {
      UpdateKernels::load().run_pass(pass, unit, steps, begin, end, native);
    });
    for (const Copied& one : copied) {
      stream.to_host(one.host, one.there.data());
    }
    loop.run([](DeviceEvent event) -> Task<> { co_await event.wait(); }, stream.record());
  }
};

TEST_P(UpdateKernelsOf, RealKernelsHaveTheBitsOfTheCpusVectors) {
  if (gpus().empty()) {
    GTEST_SKIP() << "needs a GPU";
  }
  OnGpu gpu;
  expect_bits_of_the_vectors(
      GetParam(),
      [&gpu](UpdatePass pass, ShardPair& pair, const UpdateStep* steps, std::size_t begin,
             std::size_t end) { gpu.run(pass, pair, steps, begin, end); });
}

}  // namespace
}  // namespace tandem
