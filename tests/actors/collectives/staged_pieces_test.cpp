// Collectives on device memory, piece by piece, beside tests/actors/collectives/contract: what
// overlaps, in which order, what crosses no link, and an end to every failure.
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "actors/collectives/staged_backend.hpp"
#include "runtime/device/sim_device.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "tests/support/fakes/fake_backend.hpp"
#include "tests/support/shm_world.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::FakeBackend;
using test::run_ranks;
using test::ShmRank;

constexpr std::size_t kStage = 16 << 10;  // bytes of one half

TEST(StagedBackend, ADeviceThatFailsEndsTheOperationAndThePeers) {
  for (const bool is_gather : {true, false}) {
    std::vector<std::string> errors = run_ranks(3, [&](ShmRank& shm) {
      SimDevice device(shm.loop, {.time = SimDevice::Time::kReal});
      StagedBackend staged(device, std::move(shm.backend), {.stage_bytes = kStage});
      const std::size_t bytes = 512 * 4 * 60;
      const DeviceBuffer there = device.allocate(bytes * 3);
      const Placed block(Place::kDevice, there.data());
      std::byte* host = staged.allocate(bytes);
      std::memset(there.data(), 0, bytes * 3);
      if (staged.rank() == 1) {
        device.fail_copy(20);  // in the middle of it
      }
      shm.loop.run(
          [](StagedBackend* s, Placed<std::byte> b, std::byte* h, std::size_t n,
             bool gathers) -> Task<> {
            if (gathers) {
              co_await s->all_gather({h, b, n});
              co_await s->exchange({});
            } else {
              (void)co_await s->reduce_scatter_add(
                  {.block = b, .accumulator = h, .shard_elements = n / 4});
            }
          },
          &staged, block, host, bytes, is_gather);
    });
    EXPECT_NE(errors[1].find("failed; it can do nothing any more"), std::string::npos) << errors[1];
    for (const std::uint32_t peer : {0U, 2U}) {
      EXPECT_NE(errors[peer].find("rank 1 aborted"), std::string::npos) << errors[peer];
      EXPECT_NE(errors[peer].find("bytes failed"), std::string::npos) << errors[peer];
    }
  }
}

/// World 1 in virtual time over a back end that does nothing but take its time: a copy of a piece
/// takes 1 ms each way.
struct TimedWorld {
  // Every operation of it takes some of the loop's time. Gathers fill in their number, reductions
  // write down the first byte of the block, which may not change meanwhile.
  struct Inner : FakeBackend {
    using FakeBackend::FakeBackend;
    Duration takes = 1ms;
    std::vector<std::byte> reduced;

    Task<> all_gather(GatherArguments a) override {
      const auto number = static_cast<int>(gathers.size());
      co_await FakeBackend::all_gather(a);
      co_await sleep_for(takes);
      std::memset(a.block.host(), number, a.shard_bytes * world());
    }
    Task<GradientNorm> reduce_scatter_add(ReduceArguments a) override {
      reduced.push_back(*a.block.host());
      const GradientNorm result = co_await FakeBackend::reduce_scatter_add(a);
      co_await sleep_for(takes);
      EXPECT_EQ(*a.block.host(), reduced.back());
      co_return result;
    }
  };
  static constexpr std::size_t kPieceBytes = 8192;  // two ranks
  static constexpr double kFlops = 1e12;            // a second

  ManualClock clock;
  EventLoop loop{{.name = "timed", .clock = &clock}};
  SimDevice device{loop,
                   {.memory_bytes = 1 << 20,
                    .compute_flops_per_s = kFlops,
                    .to_device_bytes_per_s = 2 * kPieceBytes * 1e3,
                    .to_host_bytes_per_s = 2 * kPieceBytes * 1e3,
                    .operation_latency = Duration(0)}};
  Inner* inner = new Inner(2);
  StagedBackend staged{device, std::unique_ptr<CollectiveBackend>(inner), {.stage_bytes = kStage}};
  std::vector<float> host = std::vector<float>(1 << 16);
  DeviceBuffer there = device.allocate(kPieceBytes * 2 * 10);
  std::byte* block = there.data();

  [[nodiscard]] GatherArguments gather_of(std::size_t pieces) const {
    return {reinterpret_cast<const std::byte*>(host.data()),
            {Place::kDevice, block},
            pieces * kPieceBytes};
  }
  [[nodiscard]] ReduceArguments reduction_of(std::size_t pieces) {
    return {.block = {Place::kDevice, block},
            .accumulator = host.data(),
            .shard_elements = pieces * kPieceBytes / sizeof(float)};
  }
  template <class Arguments>
  Duration run(Arguments a) {
    const TimePoint start = clock.now();
    loop.run(
        [](StagedBackend* s, Arguments arguments) -> Task<> {
          if constexpr (std::is_same_v<Arguments, GatherArguments>) {
            co_await s->all_gather(arguments);
          } else {
            (void)co_await s->reduce_scatter_add(arguments);
          }
        },
        &staged, a);
    return clock.now() - start;
  }
};

TEST(StagedBackend, PiecesOverlap) {
  for (const std::size_t pieces : {1UL, 2UL, 3UL, 10UL}) {
    TimedWorld w;
    // One after another it would be twice as many milliseconds as pieces.
    EXPECT_EQ(w.run(w.gather_of(pieces)), (pieces + 1) * 1ms);
    EXPECT_EQ(w.run(w.reduction_of(pieces)), (pieces + 1) * 1ms);
  }
}

TEST(StagedBackend, AHalfIsFilledAgainOnlyWhenItIsFree) {
  constexpr std::size_t kPieces = 7;
  for (const Duration takes : {Duration(0), Duration(1ms), Duration(3ms)}) {
    TimedWorld w;
    w.inner->takes = takes;
    w.run(w.gather_of(kPieces));
    for (std::size_t i = 0; i < 2 * kPieces * TimedWorld::kPieceBytes; ++i) {
      const std::size_t in_part = i % (kPieces * TimedWorld::kPieceBytes);
      ASSERT_EQ(w.block[i], std::byte(in_part / TimedWorld::kPieceBytes)) << i;
    }
    w.run(w.reduction_of(kPieces));
    ASSERT_EQ(w.inner->reduced.size(), kPieces);
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
      EXPECT_EQ(w.inner->reduced[piece], std::byte(piece));
    }
  }
}

// The copies of three pieces to the device end after 2, 3 and 4 ms; after 2.5 ms the second is on
// its way. Work on the block until 5 ms holds the next gather back, so that until then no copy is
// on the link.
TEST(StagedBackend, SaysWhatGathersHaveOnTheLink) {
  TimedWorld w;
  w.loop.run(
      [](TimedWorld* world) -> Task<> {
        co_await with_scope(
            [](Scope& scope, TimedWorld* t) -> Task<> {
              const auto gather = [](TimedWorld* g) {
                return g->staged.all_gather(g->gather_of(3));
              };
              const TimePoint start = t->clock.now();
              co_await t->staged.gathers_queued()->wait();
              EXPECT_EQ(t->clock.now(), start) << "none so far";
              scope.spawn("gather", gather, t);
              co_await sleep_for(2500us);
              co_await t->staged.gathers_queued()->wait();
              EXPECT_EQ(t->clock.now() - start, 3ms);
              co_await sleep_for(2ms);
              DeviceStream compute = t->device.stream("compute");
              compute.launch("work on the block", {.flops = 5e-3 * TimedWorld::kFlops},
                             [](void*) {});
              const DeviceEvent worked = compute.record();
              t->staged.begin_behind(t->block, worked);
              scope.spawn("gather", gather, t);
              co_await sleep_for(2500us);
              EXPECT_FALSE(t->staged.gathers_queued().has_value());
              co_await worked.wait();
              EXPECT_TRUE(t->staged.gathers_queued().has_value());
            },
            world);
      },
      &w);
}

TEST(StagedBackend, PiecesComeInOrderAndOneAtATime) {
  TimedWorld w;
  w.inner->log.clear();
  const std::size_t allocated = w.inner->memory.size();
  w.run(w.gather_of(4));
  w.run(w.reduction_of(3));
  EXPECT_EQ(w.inner->log, (std::vector<std::string>{"gather 0", "gather 1", "gather 2", "gather 3",
                                                    "reduce 0", "reduce 1", "reduce 2"}));
  EXPECT_FALSE(w.inner->overlapped);
  for (std::size_t piece = 0; piece < 4; ++piece) {
    EXPECT_EQ(w.inner->gathers[piece].shard,
              reinterpret_cast<std::byte*>(w.host.data()) + piece * TimedWorld::kPieceBytes);
    EXPECT_EQ(w.inner->gathers[piece].shard_bytes, TimedWorld::kPieceBytes);
    EXPECT_EQ(w.inner->gathers[piece].block.place(), Place::kHost);
  }
  EXPECT_EQ(w.inner->memory.size(), allocated) << "the stage is all there is";
}

TEST(StagedBackend, AnErrorOfTheInnerBackEndWaitsForTheCopiesUnderWay) {
  TimedWorld w;
  w.inner->fail_gather = 2;
  const TimePoint start = w.clock.now();
  EXPECT_THROW(w.run(w.gather_of(5)), std::runtime_error);
  // Piece 2 failed at once, while piece 1 was on its way to the device: 1 ms each for 0, 1, and the
  // rest of the copy.
  EXPECT_EQ(w.clock.now() - start, 3ms);
}

TEST(StagedBackend, ALostDeviceEndsEveryOperation) {
  TimedWorld w;
  w.device.lose();
  EXPECT_THROW(w.run(w.gather_of(3)), DeviceError);
  EXPECT_THROW(w.run(w.reduction_of(3)), DeviceError);
}

TEST(StagedBackend, WhatLiesOnTheHostIsTheInnerBackEnds) {
  TimedWorld w;
  w.inner->log.clear();
  std::vector<std::byte> block(200'000);
  std::vector<float> sum(512);
  EXPECT_EQ(
      w.run(GatherArguments{reinterpret_cast<std::byte*>(w.host.data()), block.data(), 100'000}),
      1ms);
  EXPECT_EQ(w.run(ReduceArguments{
                .block = block.data(), .accumulator = sum.data(), .shard_elements = 512}),
            1ms);
  EXPECT_EQ(w.inner->log, (std::vector<std::string>{"gather 0", "reduce 0"}));
  EXPECT_EQ(w.inner->gathers[0].block, block.data());
}

// On one rank: a shard on the device is copied there, and sums with an accumulator there are made
// there.
TEST(StagedBackend, WhatLiesOnTheDeviceCrossesNoLinkOnOneRank) {
  ManualClock clock;
  EventLoop loop({.name = "rank 0", .clock = &clock});
  CpuPool pool(loop, {.threads = 1});
  SimDevice device(loop, {});
  StagedBackend staged(device, std::make_unique<SelfBackend>(pool), {.stage_bytes = kStage});
  const std::size_t bytes = 512 * 67 * sizeof(float);
  const DeviceBuffer first = device.allocate(bytes);
  const DeviceBuffer second = device.allocate(bytes);
  const Placed block(Place::kDevice, first.data());
  const Placed into(Place::kDevice, second.data());
  loop.run(
      [](StagedBackend* s, Placed<std::byte> b, Placed<std::byte> i, std::size_t n) -> Task<> {
        co_await s->all_gather({b, i, n});
        co_await s->all_gather({b, b, n});
        (void)co_await s->reduce_scatter_add({.block = b,
                                              .accumulator = i,
                                              .shard_elements = n / sizeof(float),
                                              .mode = AccumulateMode::kAdd,
                                              .want_norm = true});
      },
      &staged, block, into, bytes);
  EXPECT_EQ(device.busy_s(SimEngines::Engine::kToHost), 0);
  EXPECT_EQ(device.busy_s(SimEngines::Engine::kToDevice), 0);
  EXPECT_GT(device.busy_s(SimEngines::Engine::kCompute), 0);
}

}  // namespace
}  // namespace tandem
