// Snippets of docs/runtime.md: the simulator and the device. tools/docs_in_step.py keeps the page
// equal to this.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>
#include <tandem/runtime/device/sim_device.hpp>
#include <tandem/runtime/io/net.hpp>
#include <tandem/runtime/scope.hpp>
#include <tandem/runtime/sim/sim_net.hpp>
#include <tandem/runtime/sim/sim_world.hpp>

namespace {

using namespace std::chrono_literals;
using tandem::Task;

// [ring]
/// Passes a number around the ring of ranks; each adds one.
Task<> pass_on(tandem::Net* net, std::uint32_t ranks, std::uint32_t* result) {
  const std::uint32_t next = (net->rank() + 1) % ranks;
  const std::uint32_t before = (net->rank() + ranks - 1) % ranks;
  std::uint32_t number = 0;
  const auto bytes = std::as_writable_bytes(std::span(&number, 1));
  if (net->rank() != 0) {
    (void)co_await net->recv(before, 0, bytes);
  }
  ++number;
  co_await net->send(next, 0, bytes);
  if (net->rank() == 0) {
    (void)co_await net->recv(before, 0, bytes);
    *result = number;
  }
}

/// The number that comes back to rank 0; every seed is another order of events, the same one each
/// time.
std::uint32_t around(std::uint64_t seed, std::uint32_t ranks) {
  tandem::SimWorld world({.seed = seed, .ranks = ranks});
  tandem::SimNet links(world, {.latency = 20us});
  std::vector<std::unique_ptr<tandem::Net>> nets;
  std::vector<std::unique_ptr<tandem::Scope>> scopes;
  std::uint32_t result = 0;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    nets.push_back(std::make_unique<tandem::Net>(links.attach(rank)));
    scopes.push_back(std::make_unique<tandem::Scope>(world.loop(rank), tandem::Name("rank")));
    scopes[rank]->spawn("pass on", &pass_on, nets[rank].get(), ranks, &result);
  }
  world.slow_down(1, 10);  // one rank is ten times as slow; kill() and clog() are there, too
  const auto end = world.run([&] {
    return std::ranges::all_of(scopes, [](const auto& scope) { return scope->running() == 0; });
  });
  EXPECT_EQ(end, tandem::SimWorld::End::kDone) << "seed " << seed;
  return result;
}
// [/ring]

// [device]
Task<float> on_the_device(tandem::Device* device) {
  std::vector<float> host(1024, 2.0F);
  const std::size_t size = host.size() * sizeof(float);
  tandem::DeviceBuffer buffer = device->allocate(size);
  tandem::DeviceStream copies = device->stream("copies");
  tandem::DeviceStream compute = device->stream("compute");

  copies.to_device(buffer.data(), std::as_bytes(std::span(host)));
  compute.wait(copies.record());  // the device waits; this coroutine does not
  compute.launch("double", {.flops = 1024.0}, [data = buffer.data()](void*) {
    auto* x = reinterpret_cast<float*>(data);
    for (int i = 0; i < 1024; ++i) {
      x[i] *= 2;
    }
  });
  compute.to_host(std::as_writable_bytes(std::span(host)), buffer.data());
  co_await compute.record().wait();  // now the host needs the bytes
  co_return host[0];
}
// [/device]

TEST(DocsSimulator, ANumberGoesAround) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(around(seed, 4), 4U);
  }
}

TEST(DocsSimulator, TheDeviceComputesInVirtualTime) {
  tandem::ManualClock clock;
  tandem::EventLoop loop({.name = "docs", .clock = &clock});
  tandem::SimDevice device(loop, {});
  EXPECT_EQ(loop.run(&on_the_device, static_cast<tandem::Device*>(&device)), 4.0F);
  EXPECT_GT(clock.now().time_since_epoch(), 0ns);
}

}  // namespace
