// A CUDA device on the fake of its calls: order, points, errors, memory; and what asking costs.
#include "runtime/device/cuda_device.hpp"

#include <cstring>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/device/gpu_probe.hpp"
#include "runtime/device/pinned_slab.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "tests/support/fakes/fake_cuda.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::FakeCuda;
using ::testing::HasSubstr;

struct CudaWorld {
  ManualClock clock;
  EventLoop loop{{.name = "cuda test", .clock = &clock}};
  FakeCuda cuda{clock};
  std::optional<CudaDevice> device;
  std::vector<std::byte> host = std::vector<std::byte>(4096, std::byte{7});

  explicit CudaWorld(std::size_t events = 4) {
    device.emplace(loop, FakeCuda::api(), CudaDevice::Options{.name = "gpu 0", .events = events});
  }
  [[nodiscard]] Duration elapsed() const { return clock.now().time_since_epoch(); }
  /// Work of this length on the stream, as a kernel.
  void work(DeviceStream stream, Duration cost, std::function<void()> run = {}) {
    stream.launch("work", {}, [&](void* native) {
      FakeCuda::of_test().launch(native, {.ready = {}, .cost = cost, .run = std::move(run)});
    });
  }
};

TEST(CudaDevice, AStreamIsInOrderAndAPointIsBehindAllOfIt) {
  CudaWorld w;
  w.loop.run(
      [](CudaWorld* world) -> Task<> {
        DeviceBuffer buffer = world->device->allocate(4096);
        std::byte* const data = buffer.data();
        std::vector<std::byte> back(4096);
        DeviceStream stream = world->device->stream("s");
        stream.to_device(data, world->host);
        const DeviceEvent copied = stream.record();
        world->work(stream, 10us, [data] { data[0] = std::byte{8}; });
        stream.to_host(back, data);
        const DeviceEvent all = stream.record();
        EXPECT_FALSE(copied.done());
        co_await copied.wait();
        EXPECT_EQ(data[0], std::byte{7});
        EXPECT_EQ(back[0], std::byte{0});
        co_await all.wait();
        EXPECT_EQ(back[0], std::byte{8});
        EXPECT_EQ(back[1], std::byte{7});
        EXPECT_TRUE(all.done());
        co_await all.wait();  // again: at once
      },
      &w);
}

TEST(CudaDevice, AStreamWaitsForAnotherOnesPoint) {
  CudaWorld w;
  w.loop.run(
      [](CudaWorld* world) -> Task<> {
        DeviceStream slow = world->device->stream("slow");
        DeviceStream quick = world->device->stream("quick");
        int order = 0;
        world->work(slow, 300us, [&order] { order = order * 10 + 1; });
        quick.wait(slow.record());
        world->work(quick, 1us, [&order] { order = order * 10 + 2; });
        co_await quick.record().wait();
        EXPECT_EQ(order, 12);
        // A point that the host knows of has no event any more, and needs no wait.
        const DeviceEvent done = slow.record();
        co_await done.wait();
        quick.wait(done);
        co_await quick.record().wait();
      },
      &w);
}

TEST(CudaDevice, IsNoticedSoonAndAskedSeldom) {
  for (const Duration length : {50us, 1000us, 50'000us}) {
    CudaWorld w;
    w.loop.run(
        [](CudaWorld* world, Duration cost) -> Task<> {
          DeviceStream stream = world->device->stream("s");
          world->work(stream, cost);
          co_await stream.record().wait();
          const Duration late = world->elapsed() - cost;
          EXPECT_LE(late,
                    std::min<Duration>(cost + TickingPoller::kFirst, TickingPoller::kLongest));
          // Doubling intervals, then one a millisecond.
          EXPECT_LE(world->cuda.queries(), 10 + cost / TickingPoller::kLongest);
        },
        &w, length);
  }
}

// Ten points in each of three streams: a look asks for the oldest of each stream alone.
TEST(CudaDevice, AsksForTheOldestPointOfEachStream) {
  CudaWorld w;
  w.loop.run(
      [](CudaWorld* world) -> Task<> {
        std::vector<DeviceStream> streams;
        std::vector<DeviceEvent> points;
        for (int s = 0; s < 3; ++s) {
          streams.push_back(world->device->stream("s"));
          world->work(streams.back(), 10ms);
          for (int i = 0; i < 10; ++i) {
            points.push_back(streams.back().record());
          }
        }
        co_await sleep_for(9ms);
        const int before = world->cuda.queries();
        co_await points.back().wait();
        EXPECT_LE(world->cuda.queries() - before, 3 * 4 + 3 * 10);
        EXPECT_TRUE(points.front().done());
      },
      &w);
}

Task<> record_rounds(CudaWorld* world, DeviceStream stream, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    world->work(stream, 5us);
    const DeviceEvent first = stream.record();
    const DeviceEvent second = stream.record();
    co_await second.wait();
    EXPECT_TRUE(first.done());
  }
}

TEST(CudaDevice, EventsComeFromThePool) {
  CudaWorld w(1);
  DeviceStream stream = w.device->stream("s");
  EXPECT_EQ(w.cuda.made_events(), 1);
  w.loop.run(&record_rounds, &w, stream, 2);
  const int warm = w.cuda.made_events();
  EXPECT_EQ(warm, 2);
  w.loop.run(&record_rounds, &w, stream, 100);
  EXPECT_EQ(w.cuda.made_events(), warm);
  EXPECT_EQ(w.device->events(), 2U);
  w.device.reset();
  EXPECT_EQ(w.cuda.live_events(), 0);
  EXPECT_EQ(w.cuda.live_streams(), 0);
}

TEST(CudaDevice, ErrorsAreStickyAndEndEveryPoint) {
  CudaWorld w;
  w.loop.run(
      [](CudaWorld* world) -> Task<> {
        DeviceStream a = world->device->stream("a");
        DeviceStream b = world->device->stream("b");
        world->work(a, 1s);
        const DeviceEvent of_a = a.record();
        const DeviceEvent of_b = b.record();
        co_await of_b.wait();
        world->cuda.lose();
        const auto lost = co_await outcome_of([&] { return of_a.wait(); });
        EXPECT_THAT(lost,
                    ThrowsError<DeviceError>(
                        "[device] gpu 0: work of stream \"a\" failed: cudaErrorIllegalAddress (the "
                        "fake says so); it can do nothing any more: restart the rank"));
        EXPECT_THAT(lost, ::testing::Throws<DeviceError>(::testing::AllOf(
                              ::testing::Property(&Error::category, ErrorCategory::kDevice),
                              ::testing::Property(&Error::restartable, false))));
        bool launched = false;
        b.launch("more", {}, [&launched](void*) { launched = true; });
        EXPECT_FALSE(launched);
        const DeviceEvent later = b.record();
        EXPECT_TRUE(later.done());
        EXPECT_THROW(co_await later.wait(), DeviceError);
        EXPECT_THROW((void)world->device->allocate(1), DeviceError);
      },
      &w);
}

TEST(CudaDevice, ALaunchThatIsRefusedAndACopyOfForeignMemoryFailIt) {
  for (const bool copy : {true, false}) {
    CudaWorld w;
    w.loop.run(
        [](CudaWorld* world, bool by_copy) -> Task<> {
          DeviceStream stream = world->device->stream("s");
          if (by_copy) {
            stream.to_device(world->host.data(), world->host);  // no device memory at all
          } else {
            world->cuda.refuse_launch(9);
            stream.launch("refused", {}, [](void*) {});
          }
          const DeviceEvent point = stream.record();
          EXPECT_THAT(co_await outcome_of([&] { return point.wait(); }),
                      ThrowsError<DeviceError>(
                          HasSubstr(by_copy ? "a copy of 4096 bytes to the device on stream \"s\""
                                            : "kernel \"refused\" on stream \"s\" cannot be")));
        },
        &w, copy);
  }
}

TEST(CudaDevice, BeingOutOfMemoryIsSaidWithSizesAndDoesNotStay) {
  CudaWorld w;
  w.cuda.memory_bytes = 1 << 20;
  DeviceBuffer most = w.device->allocate(1'000'000);
  EXPECT_THAT([&] { (void)w.device->allocate(100'000); },
              ThrowsError<DeviceOutOfMemory>(
                  ExitCode::kRefused, HasSubstr("out of memory: 100000 bytes wanted, 48576 of ")));
  EXPECT_EQ(w.device->error(), nullptr);
  most = DeviceBuffer();
  EXPECT_EQ(w.cuda.used_bytes(), 0U);
  EXPECT_EQ(w.device->allocate(100'000).size_bytes(), 100'000U);
}

TEST(CudaDevice, AWaitEndsAtItsStopAndTheWorkGoesOn) {
  CudaWorld w;
  w.loop.run(
      [](CudaWorld* world) -> Task<> {
        DeviceStream stream = world->device->stream("s");
        bool ran = false;
        world->work(stream, 1ms, [&ran] { ran = true; });
        const DeviceEvent point = stream.record();
        StopSource source;
        source.request_stop();
        EXPECT_THROW(co_await point.wait(source.token()), Stopped);
        EXPECT_FALSE(ran);
        co_await point.wait();
        EXPECT_TRUE(ran);
      },
      &w);
}

TEST(CudaDevice, DestroyedWithWorkItEndsItsPoints) {
  CudaWorld w;
  std::optional<DeviceEvent> point;
  DeviceStream stream = w.device->stream("s");
  w.work(stream, 1s);
  point = stream.record();
  w.device.reset();
  const auto wait = [](const DeviceEvent* event) -> Task<> { co_await event->wait(); };
  EXPECT_THROW(w.loop.run(wait, &*point), DeviceError);
}

TEST(CudaDevice, OneThatIsNotThereIsSaidSo) {
  CudaWorld w;
  const CudaDevice::Options absent{.index = 8, .name = "gpu 8"};
  EXPECT_THAT([&] { const CudaDevice other(w.loop, FakeCuda::api(), absent); },
              ThrowsError<DeviceError>(HasSubstr("[device] gpu 8: it cannot be used")));
}

TEST(CudaDevice, StreamsHaveTheirPriority) {
  CudaWorld w;
  const DeviceStream low = w.device->stream("low");
  const DeviceStream high = w.device->stream("high", CudaDevice::Priority::kHigh);
  EXPECT_FALSE(w.cuda.is_high(w.device->native(low)));
  EXPECT_TRUE(w.cuda.is_high(w.device->native(high)));
}

TEST(PinnedSlab, LendsPagesOutOfFewPieces) {
  const ManualClock clock;
  const FakeCuda cuda(clock);
  PinnedSlab slab(FakeCuda::api(), {.piece_bytes = 64 << 10, .say = {}});
  std::vector<std::byte*> lent;
  for (int i = 0; i < 16; ++i) {
    lent.push_back(slab.allocate(100));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(lent.back()) % 4096, 0U);
    EXPECT_EQ(lent.back()[99], std::byte{0});
    EXPECT_TRUE(cuda.is_reached(lent.back(), 100));
    EXPECT_EQ(lent.back(), lent.front() + 4096 * i);
  }
  EXPECT_EQ(slab.taken_bytes(), 64U << 10);
  EXPECT_TRUE(cuda.is_reached(slab.allocate(100'000), 100'000));
  EXPECT_TRUE(slab.is_pinned());
}

TEST(PinnedSlab, FallsBackToOrdinaryMemoryAndSaysItOnce) {
  const ManualClock clock;
  FakeCuda cuda(clock);
  cuda.pinned_limit = 0;
  std::vector<std::string> said;
  PinnedSlab slab(FakeCuda::api(), {.piece_bytes = 4096, .say = [&said](const std::string& line) {
                                      said.push_back(line);
                                    }});
  for (int i = 0; i < 3; ++i) {
    std::byte* const lent = slab.allocate(5000);
    std::memset(lent, 1, 5000);
    EXPECT_FALSE(cuda.is_reached(lent, 5000));
  }
  EXPECT_FALSE(slab.is_pinned());
  ASSERT_EQ(said.size(), 1U);
  EXPECT_THAT(said[0], HasSubstr("8192 bytes of host memory cannot be pinned"));
}

// Ranks that are threads of one process may share memory.
TEST(CudaDevice, UnpinsWhatItHasPinnedItself) {
  CudaWorld w;
  EventLoop loop({.name = "another rank", .clock = &w.clock});
  CudaDevice other(loop, FakeCuda::api(), {.index = 1, .name = "gpu 1"});
  EXPECT_TRUE(w.device->pin(w.host));
  EXPECT_TRUE(other.pin(w.host)) << "it is pinned for the whole process";
  other.unpin(w.host);
  EXPECT_EQ(w.cuda.pinned_pieces(), 1U);
  w.device->unpin(w.host);
  EXPECT_EQ(w.cuda.pinned_pieces(), 0U);
  w.device->unpin(w.host);
}

// Asked by collectives, or for boundaries.
TEST(CudaDevice, SaysOnceThatMemoryCannotBePinned) {
  CudaWorld w;
  w.cuda.pinned_limit = 0;
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(w.device->pin(w.host));
  EXPECT_FALSE(w.device->pin(w.host));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "[memory] 4096 bytes of host memory cannot be pinned for gpu 0; copies are slower: "
            "raise the limit of locked memory (ulimit -l)\n");
  w.cuda.pinned_limit = SIZE_MAX;
  EXPECT_TRUE(w.device->pin(w.host));
  w.device->unpin(w.host);
}

// On a machine with a GPU: the real table, through the same device.
TEST(CudaDevice, RealOneCopiesThereAndBack) {
  if (gpus().empty()) {
    GTEST_SKIP() << "no GPU here";
  }
  EventLoop loop;
  CudaDevice device(loop, CudaApi::load(), {.name = gpus()[0].name});
  loop.run(
      [](CudaDevice* gpu) -> Task<> {
        PinnedSlab slab(gpu->api());
        const std::size_t bytes = std::size_t{8} << 20;
        std::byte* const out = slab.allocate(bytes);
        std::byte* const back = slab.allocate(bytes);
        EXPECT_TRUE(slab.is_pinned());
        std::memset(out, 42, bytes);
        DeviceBuffer buffer = gpu->allocate(bytes);
        DeviceStream there = gpu->stream("there");
        DeviceStream again = gpu->stream("back", CudaDevice::Priority::kHigh);
        there.to_device(buffer.data(), {out, bytes});
        again.wait(there.record());
        again.to_host({back, bytes}, buffer.data());
        co_await again.record().wait();
        EXPECT_EQ(0, std::memcmp(out, back, bytes));
      },
      &device);
  EXPECT_EQ(device.error(), nullptr);
}

}  // namespace
}  // namespace tandem
