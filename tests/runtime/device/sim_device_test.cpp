// The simulated device keeps what CUDA's streams and events promise.
#include "runtime/device/sim_device.hpp"

#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/trace.hpp"
#include "runtime/trace_file.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

// 1 byte = 1 ns in both directions, kernels by seconds, no latency.
SimDevice::Options simple() {
  return {.memory_bytes = 1 << 20,
          .to_device_bytes_per_s = 1e9,
          .to_host_bytes_per_s = 1e9,
          .operation_latency = Duration(0)};
}

struct DeviceWorld {
  ManualClock clock;
  EventLoop loop{{.name = "device test", .clock = &clock}};
  SimDevice device;
  std::vector<std::byte> host = std::vector<std::byte>(4096, std::byte{7});
  explicit DeviceWorld(SimDevice::Options options = simple()) : device(loop, std::move(options)) {}
  Duration elapsed() const { return clock.now().time_since_epoch(); }
};

KernelCost takes(Duration time) { return {.seconds = std::chrono::duration<double>(time).count()}; }

TEST(SimDevice, AStreamIsInOrderAndCopiesHappenAtTheirEnd) {
  DeviceWorld w;
  w.loop.run(
      [](DeviceWorld* world) -> Task<> {
        DeviceBuffer buffer = world->device.allocate(4096);
        std::memset(buffer.data(), 0, 4096);
        std::vector<std::byte> back(4096);
        DeviceStream stream = world->device.stream("s");
        stream.to_device(buffer.data(), world->host);
        const DeviceEvent copied = stream.record();
        std::byte* data = buffer.data();
        stream.launch("add one", takes(10us), [data](void*) { data[0] = std::byte{8}; });
        stream.to_host(back, data);
        const DeviceEvent all = stream.record();
        EXPECT_FALSE(copied.done());
        EXPECT_EQ(data[0], std::byte{0});  // it is done at its end
        co_await copied.wait();
        EXPECT_EQ(world->elapsed(), 4096ns);
        EXPECT_EQ(data[0], std::byte{7});
        EXPECT_EQ(back[0], std::byte{0});
        co_await all.wait();
        EXPECT_EQ(world->elapsed(), 4096ns + 10us + 4096ns);
        EXPECT_EQ(back[0], std::byte{8});
        EXPECT_EQ(back[1], std::byte{7});
        co_await all.wait();  // again: at once
      },
      &w);
}

TEST(SimDevice, EnginesWorkSideBySideButOneKernelAtATime) {
  DeviceWorld w;
  w.loop.run(
      [](DeviceWorld* world) -> Task<> {
        DeviceBuffer buffer = world->device.allocate(8192);
        std::vector<std::byte> back(4096);
        DeviceStream a = world->device.stream("a"), b = world->device.stream("b"),
                     c = world->device.stream("c"), d = world->device.stream("d");
        a.to_device(buffer.data(), world->host);
        b.to_host(back, buffer.data() + 4096);
        c.launch("first", takes(3us), [](void*) {});
        d.launch("second", takes(4us), [](void*) {});
        const DeviceEvent ends[] = {a.record(), b.record(), c.record(), d.record()};
        co_await ends[2].wait();
        EXPECT_EQ(world->elapsed(), 3us);
        co_await ends[0].wait();
        EXPECT_EQ(world->elapsed(), 4096ns);
        EXPECT_TRUE(ends[1].done());
        co_await ends[3].wait();
        EXPECT_EQ(world->elapsed(), 7us);
        EXPECT_EQ(world->device.busy_s(SimEngines::Engine::kCompute), 7e-6);
      },
      &w);
}

/// Read and written there, it crosses no link.
TEST(SimDevice, ACopyWithinItTakesItsMemorysTime) {
  ManualClock clock;
  EventLoop loop({.name = "virtual", .clock = &clock});
  SimDevice device(loop, {.memory_bytes_per_s = 1e9, .operation_latency = Duration(0)});
  loop.run(
      [](SimDevice* on, const ManualClock* time) -> Task<> {
        DeviceBuffer buffer = on->allocate(8192);
        std::memset(buffer.data(), 1, 8192);
        DeviceStream stream = on->stream("copies");
        const TimePoint began = time->now();
        stream.launch("fill", {}, [data = buffer.data()](void*) { std::memset(data, 5, 4096); });
        stream.within_device(buffer.data() + 4096, buffer.data(), 4096);
        co_await stream.record().wait();
        EXPECT_EQ(time->now() - began, 8192ns);
        EXPECT_EQ(buffer.data()[8191], std::byte{5});
        EXPECT_EQ(on->busy_s(SimEngines::Engine::kToDevice), 0);
        EXPECT_EQ(on->busy_s(SimEngines::Engine::kToHost), 0);
      },
      &device, &clock);
}

TEST(SimDevice, AStreamWaitsForAnotherOnesEvent) {
  DeviceWorld w;
  w.loop.run(
      [](DeviceWorld* world) -> Task<> {
        DeviceBuffer buffer = world->device.allocate(4096);
        DeviceStream copies = world->device.stream("copies"),
                     compute = world->device.stream("compute");
        copies.to_device(buffer.data(), world->host);
        compute.wait(copies.record());
        int seen = 0;
        const std::byte* data = buffer.data();
        compute.launch("read", takes(1us),
                       [data, &seen](void*) { seen = static_cast<int>(data[4095]); });
        co_await compute.record().wait();
        EXPECT_EQ(world->elapsed(), 4096ns + 1us);
        EXPECT_EQ(seen, 7);
        // An event of an idle stream is done at once.
        co_await copies.record().wait();
        EXPECT_EQ(world->elapsed(), 4096ns + 1us);
      },
      &w);
}

TEST(SimDevice, CostsComeFromTheSpeedsSet) {
  DeviceWorld w({.compute_flops_per_s = 1e9, .memory_bytes_per_s = 2e9, .operation_latency = 5us});
  w.loop.run(
      [](DeviceWorld* world) -> Task<> {
        DeviceStream s = world->device.stream("s");
        s.launch("flops", {.flops = 1000, .bytes = 1000}, [](void*) {});
        co_await s.record().wait();
        EXPECT_EQ(world->elapsed(), 6us);
        s.launch("bytes", {.flops = 1000, .bytes = 8000}, [](void*) {});
        co_await s.record().wait();
        EXPECT_EQ(world->elapsed(), 6us + 9us);
      },
      &w);
}

TEST(SimDevice, MemoryEndsWithAClearError) {
  DeviceWorld w;
  DeviceBuffer most = w.device.allocate(1'000'000);
  EXPECT_EQ(w.device.free_bytes(), (1U << 20) - 1'000'000);
  EXPECT_THAT([&] { (void)w.device.allocate(100'000); },
              ThrowsError<DeviceOutOfMemory>(
                  "[device] sim0: out of memory: 100000 bytes wanted, 48576 of 1048576 free; use "
                  "smaller batches or fewer slots"));
  most = DeviceBuffer();
  EXPECT_EQ(w.device.free_bytes(), 1U << 20);
}

TEST(SimDevice, ErrorsAreSticky) {
  for (const int kind : {0, 1, 2}) {
    DeviceWorld w;
    w.loop.run(
        [](DeviceWorld* world, int fault) -> Task<> {
          DeviceBuffer buffer = world->device.allocate(4096);
          std::memset(buffer.data(), 0, 4096);
          DeviceStream s = world->device.stream("s"), other = world->device.stream("other");
          const DeviceEvent before = s.record();
          fault == 0   ? world->device.fail_kernel()
          : fault == 1 ? world->device.fail_copy(1)
                       : void();
          s.to_device(buffer.data(), world->host);
          s.to_device(buffer.data(), world->host);
          s.launch("adam", takes(1us), [](void*) {});
          const DeviceEvent after = s.record();
          other.wait(after);
          other.launch("long", takes(1h), [](void*) { FAIL(); });
          const DeviceEvent elsewhere = other.record();
          if (fault == 2) {
            co_await sleep_for(100ns);
            world->device.lose();
          }
          co_await before.wait();
          const char* what[] = {"kernel \"adam\" failed", "a copy to device of 4096 bytes failed",
                                "the device was lost"};
          EXPECT_THAT(co_await outcome_of([&] { return after.wait(); }),
                      ThrowsError<DeviceError>(::testing::HasSubstr(what[fault])));
          for (const DeviceEvent& event : {elsewhere, s.record()}) {
            EXPECT_THROW(co_await event.wait(), DeviceError);
          }
          EXPECT_LT(world->elapsed(), 1s);
        },
        &w, kind);
  }
}

TEST(SimDevice, WaitingStopsAndTheWorkGoesOn) {
  DeviceWorld w;
  Scope scope(w.loop);
  bool ran = false;
  w.loop.run(
      [](DeviceWorld* world, Scope* s, bool* done) -> Task<> {
        DeviceStream stream = world->device.stream("s");
        stream.launch("work", takes(1ms), [done](void*) { *done = true; });
        s->spawn(
            "waits", [](DeviceEvent event, StopToken stop) -> Task<> { co_await event.wait(stop); },
            stream.record(), s->stop_token());
        co_await sleep_for(10us);
        s->request_stop();
        co_await s->join();
        EXPECT_EQ(world->elapsed(), 10us);
        EXPECT_FALSE(*done);
        co_await stream.record().wait();
        EXPECT_TRUE(*done);
      },
      &w, &scope, &ran);
}

TEST(SimDevice, InRealTimeTheWorkIsDoneAndTakesAsLongAsSaid) {
  EventLoop loop;
  SimDevice device(loop, {.time = SimDevice::Time::kReal, .operation_latency = 1us});
  const auto start = std::chrono::steady_clock::now();
  trace::enable();
  loop.run(
      [](SimDevice* d) -> Task<> {
        DeviceBuffer buffer = d->allocate(1 << 16);
        std::vector<std::byte> host(1 << 16, std::byte{3}), back(1 << 16);
        DeviceStream copies = d->stream("copies"), compute = d->stream("compute");
        copies.to_device(buffer.data(), host);
        compute.wait(copies.record());
        std::byte* data = buffer.data();
        std::thread::id kernel_thread;
        compute.launch("double", {.seconds = 0.002}, [data, &kernel_thread](void*) {
          kernel_thread = std::this_thread::get_id();
          for (int i = 0; i < 1 << 16; ++i) {
            data[i] = static_cast<std::byte>(2 * static_cast<int>(data[i]));
          }
        });
        copies.wait(compute.record());
        copies.to_host(back, data);
        co_await copies.record().wait();
        EXPECT_EQ(back, std::vector<std::byte>(1 << 16, std::byte{6}));
        EXPECT_NE(kernel_thread, std::this_thread::get_id());
      },
      &device);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 2ms);
  trace::disable();
  const std::string json = trace::chrome_json();
  trace::clear();
  for (const char* text : {"copies", "compute", "copy to device", "copy to host", "double"}) {
    EXPECT_NE(json.find(std::string("\"") + text + "\""), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tandem
