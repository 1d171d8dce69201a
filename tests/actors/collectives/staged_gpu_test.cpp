// Collectives on a GPU's memory, on the fake of CUDA's calls: they begin behind what still uses a
// block, and host memory is pinned while it is theirs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/collectives/staged_backend.hpp"
#include "runtime/device/cuda_device.hpp"
#include "tests/support/fakes/fake_cuda.hpp"
#include "tests/support/nccl_world.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::FakeCuda;
using ::testing::HasSubstr;

constexpr std::size_t kBytes = 64 << 10;

/// One rank in virtual time, with a stream that computes.
struct GpuWorld {
  ManualClock clock;
  EventLoop loop{{.name = "gpu test", .clock = &clock}};
  CpuPool pool{loop, {.threads = 1}};
  FakeCuda cuda{clock};
  CudaDevice device{loop, FakeCuda::api(), {.name = "gpu 0"}};
  void* native = nullptr;
  std::optional<DeviceStream> compute;
  std::vector<DeviceBuffer> allocated;
  std::optional<StagedBackend> staged;

  GpuWorld() { cuda.pageable_is_wrong = true; }
  void connect() {
    ASSERT_EQ(FakeCuda::api().make_stream(&native, false), 0);
    compute = device.adopt("compute", native);
    staged.emplace(device, std::make_unique<SelfBackend>(pool),
                   StagedBackend::Options{.stage_bytes = 16 << 10});
  }
  /// Memory of the device, which the fake has in the host's.
  std::byte* there(std::size_t bytes) {
    return allocated.emplace_back(device.allocate(bytes)).data();
  }
  /// Work on the compute stream that looks at, or changes, its operands when it ends.
  void work(std::function<void()> run) {
    cuda.launch(native, {.cost = 300us, .run = std::move(run)});
  }
};

TEST(StagedOnAGpu, AGatherComesAfterWhatStillReadsItsBlock) {
  for (const bool shard_is_there : {false, true}) {
    GpuWorld w;
    w.connect();
    std::byte* const block = w.there(kBytes);
    std::byte* const shard = shard_is_there ? w.there(kBytes) : w.staged->allocate(kBytes);
    const Place of_shard = shard_is_there ? Place::kDevice : Place::kHost;
    std::memset(block, 1, kBytes);
    std::memset(shard, 2, kBytes);
    std::vector<std::byte> seen(kBytes);
    w.work([&] { std::memcpy(seen.data(), block, kBytes); });
    w.staged->begin_behind(block, w.compute->record());
    w.loop.run([](StagedBackend* s, GatherArguments a) -> Task<> { co_await s->all_gather(a); },
               &*w.staged, GatherArguments{{of_shard, shard}, {Place::kDevice, block}, kBytes});
    EXPECT_EQ(std::ranges::count(seen, std::byte{1}), std::ptrdiff_t{kBytes});
    EXPECT_EQ(block[kBytes - 1], std::byte{2});
    EXPECT_EQ(w.cuda.pageable_copies(), 0);
  }
}

TEST(StagedOnAGpu, AReductionComesAfterWhatStillWritesItsBlock) {
  for (const AccumulateMode mode : {AccumulateMode::kOverwrite, AccumulateMode::kAdd}) {
    GpuWorld w;
    w.connect();
    auto* const block = reinterpret_cast<float*>(w.there(kBytes));
    auto* const sum = reinterpret_cast<float*>(w.staged->allocate(kBytes));
    constexpr std::size_t kElements = kBytes / sizeof(float);
    std::fill_n(block, kElements, 100.0F);
    std::fill_n(sum, kElements, 5.0F);
    w.work([&] { std::fill_n(block, kElements, 7.0F); });
    w.staged->begin_behind(reinterpret_cast<std::byte*>(block), w.compute->record());
    w.loop.run([](StagedBackend* s,
                  ReduceArguments a) -> Task<> { (void)co_await s->reduce_scatter_add(a); },
               &*w.staged,
               ReduceArguments{.block = {Place::kDevice, reinterpret_cast<std::byte*>(block)},
                               .accumulator = sum,
                               .shard_elements = kElements,
                               .mode = mode});
    const float expected = mode == AccumulateMode::kAdd ? 12.0F : 7.0F;
    EXPECT_EQ(std::count(sum, sum + kElements, expected), std::ptrdiff_t{kElements});
    EXPECT_EQ(w.cuda.pageable_copies(), 0);
  }
}

/// The accumulator lies there, too: a kernel adds and takes the norm, of which alone the host
/// hears.
TEST(StagedOnAGpu, WhatIsAddedThereComesAfterWhatStillWritesItsBlock) {
  constexpr std::size_t kElements = kBytes / sizeof(float);
  for (const AccumulateMode mode : {AccumulateMode::kOverwrite, AccumulateMode::kAdd}) {
    for (const std::size_t bad : {kElements, std::size_t{777}}) {
      GpuWorld w;
      w.connect();
      w.staged->use_kernels(test::fake_kernels());
      auto* const block = reinterpret_cast<float*>(w.there(kBytes));
      auto* const sum = reinterpret_cast<float*>(w.there(kBytes));
      std::fill_n(block, kElements, 100.0F);
      std::fill_n(sum, kElements, 5.0F);
      w.work([&] {
        std::fill_n(block, kElements, 7.0F);
        if (bad < kElements) {
          block[bad] = INFINITY;
        }
      });
      w.staged->begin_behind(reinterpret_cast<std::byte*>(block), w.compute->record());
      const GradientNorm norm = w.loop.run(
          [](StagedBackend* s, ReduceArguments a) -> Task<GradientNorm> {
            co_return co_await s->reduce_scatter_add(a);
          },
          &*w.staged,
          ReduceArguments{.block = {Place::kDevice, reinterpret_cast<std::byte*>(block)},
                          .accumulator = {Place::kDevice, sum},
                          .shard_elements = kElements,
                          .mode = mode,
                          .want_norm = true});
      const float expected = mode == AccumulateMode::kAdd ? 12.0F : 7.0F;
      EXPECT_EQ(sum[0], expected);
      EXPECT_EQ(std::count(sum, sum + kElements, expected),
                static_cast<std::ptrdiff_t>(kElements - (bad < kElements ? 1 : 0)));
      EXPECT_EQ(norm.first_bad_element,
                bad < kElements ? static_cast<std::int64_t>(bad) : std::int64_t{-1});
      if (bad == kElements) {
        EXPECT_EQ(norm.sum_of_squares.value(), kElements * double{expected} * expected);
      }
      EXPECT_EQ(w.cuda.pageable_copies(), 0);
    }
  }
}

/// A gradient to which nothing is added keeps its 16 bits.
TEST(StagedOnAGpu, AKeptGradientIsCopiedThere) {
  GpuWorld w;
  w.connect();
  w.staged->use_kernels(test::fake_kernels());
  auto* const block = reinterpret_cast<std::uint16_t*>(w.there(kBytes));
  auto* const kept = reinterpret_cast<std::uint16_t*>(w.there(kBytes));
  constexpr std::size_t kElements = kBytes / 2;
  w.work([&] { std::fill_n(block, kElements, std::uint16_t{0x3f81}); });
  w.staged->begin_behind(reinterpret_cast<std::byte*>(block), w.compute->record());
  w.loop.run([](StagedBackend* s,
                ReduceArguments a) -> Task<> { (void)co_await s->reduce_scatter_add(a); },
             &*w.staged,
             ReduceArguments{.block = {Place::kDevice, reinterpret_cast<std::byte*>(block)},
                             .block_type = DType::kBF16,
                             .accumulator = {Place::kDevice, kept},
                             .accumulator_type = DType::kBF16,
                             .shard_elements = kElements});
  EXPECT_EQ(std::count(kept, kept + kElements, 0x3f81), std::ptrdiff_t{kElements});
}

TEST(StagedOnAGpu, HostMemoryIsPinnedWhileItIsTheirs) {
  GpuWorld w;
  w.connect();
  const std::byte* const memory = w.staged->allocate(kBytes);
  EXPECT_TRUE(w.cuda.is_reached(memory, kBytes));
  const int streams = w.cuda.live_streams();
  w.staged.reset();
  EXPECT_EQ(w.cuda.pinned_pieces(), 0U);
  EXPECT_EQ(w.cuda.live_streams(), streams);  // its streams are the device's
}

TEST(StagedOnAGpu, WhatCannotBePinnedIsSaidOnce) {
  GpuWorld w;
  w.cuda.pinned_limit = 0;
  ::testing::internal::CaptureStderr();
  w.connect();
  (void)w.staged->allocate(kBytes);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("[memory] 16384 bytes of host memory cannot be pinned for gpu 0"));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1);
  w.staged.reset();  // and nothing is unpinned that was not pinned
}

TEST(StagedOnAGpu, AnAdoptedStreamStaysItsOwners) {
  GpuWorld w;
  w.connect();
  const int streams = w.cuda.live_streams();
  {
    CudaDevice second(w.loop, FakeCuda::api(), {.name = "gpu 1"});
    EXPECT_EQ(w.cuda.live_streams(), streams + 1);  // for its memory
    DeviceStream adopted = second.adopt("compute", w.native);
    EXPECT_EQ(second.native(adopted), w.native);
    EXPECT_EQ(w.cuda.live_streams(), streams + 1);
  }
  EXPECT_EQ(w.cuda.live_streams(), streams);
}

}  // namespace
}  // namespace tandem
