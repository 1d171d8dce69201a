// tests/support/gpu/on_gpu.hpp — a real GPU for a test of kernels: memory, one stream, the end.
#pragma once

#include <cstddef>

#include "runtime/device/cuda_device.hpp"

namespace tandem::test {

struct OnGpu {
  EventLoop loop;
  CudaDevice device{loop, CudaApi::load(), {.name = "gpu 0"}};
  DeviceStream stream = device.stream("test");

  DeviceBuffer buffer(const void* from, std::size_t bytes) {
    DeviceBuffer made = device.allocate(bytes);
    stream.to_device(made.data(), {static_cast<const std::byte*>(from), bytes});
    return made;
  }
  void fetch(void* into, const DeviceBuffer& from) {
    stream.to_host({static_cast<std::byte*>(into), from.size_bytes()}, from.data());
  }
  void wait() {
    const DeviceEvent point = stream.record();
    loop.run([](const DeviceEvent* p) -> Task<> { co_await p->wait(); }, &point);
  }
};

}  // namespace tandem::test
