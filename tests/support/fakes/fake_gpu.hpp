// tests/support/fakes/fake_gpu.hpp — a GPU for the engine, on the fake of CUDA's calls: ATen
// computes on the CPU, in the stream's time.
//
// Device memory is host memory, so tensors are at::kCPU's. Work that the lane queues runs when the
// fake stream comes to it and its cost has passed, not before: a slot that is overwritten or read
// too early shows in the bits.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "engine/device/gpu.hpp"
#include "engine/tensors/gpu_bandwidths.hpp"
#include "tests/support/fakes/fake_cuda.hpp"
#include "tests/support/fakes/fake_update_kernels.hpp"
#include "tests/support/nccl_world.hpp"

namespace tandem::test {

class FakeComputeDevice : public ComputeDevice {
 public:
  explicit FakeComputeDevice(Duration cost) : cost_(cost) {
    TANDEM_CHECK(FakeCuda::api().make_stream(&stream_, false) == 0, "a fake makes streams");
  }
  [[nodiscard]] std::optional<int> gpu_of_tensors() const override { return std::nullopt; }
  [[nodiscard]] void* stream() const override { return stream_; }
  void prepare_thread() override {}
  void queue(std::function<void()> work) override {
    FakeCuda::of_test().launch(stream_, {.cost = cost_, .run = std::move(work)});
  }

 private:
  Duration cost_;
  void* stream_ = nullptr;
};

/// All ranks on GPU 0 of the fake. `cost`: of each segment.
inline OpenGpu fake_gpus(Duration cost) {
  return [cost](int /*local_rank*/) {
    return std::make_shared<Gpu>(Gpu{.api = &FakeCuda::api(),
                                     .index = 0,
                                     .name = "gpu 0 (fake)",
                                     .uuid = "f",
                                     .compute = std::make_shared<FakeComputeDevice>(cost),
                                     .updates = &fake_update_kernels(),
                                     .sums = &fake_kernels(),
                                     .measure = [](const Gpu& gpu, const UpdateKernel& kernel) {
                                       return gpu_spec(gpu, kernel, BandwidthCache::of_user());
                                     }});
  };
}

}  // namespace tandem::test
