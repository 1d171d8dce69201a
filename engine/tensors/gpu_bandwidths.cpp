#include "engine/tensors/gpu_bandwidths.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include "actors/kernels/update/state_memory.hpp"
#include "engine/tensors/segment.hpp"
#include "engine/tensors/torch_cuda.hpp"
#include "engine/types/stopwatch.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/device/cuda_device.hpp"
#include "runtime/device/pinned_slab.hpp"
#include "runtime/system/machine.hpp"

namespace tandem {
namespace {

constexpr int kRounds = 4;  // and one before them, which is not counted

/// A device of its own, and what is done to it in rounds.
class Measurement {
 public:
  Measurement(const Gpu& gpu, const UpdateKernel& kernel, const GpuProbe& probe)
      : gpu_(gpu),
        kernel_(kernel),
        probe_(probe),
        device_(loop_, *gpu.api, {.index = gpu.index, .name = gpu.name}),
        stream_(device_.stream("measurement")),
        compute_(device_.adopt("compute", gpu.compute->stream())) {}

  [[nodiscard]] double copies(bool in) {
    PinnedSlab slab(*gpu_.api, {.say = [](const std::string&) {}});
    const std::span<std::byte> host(slab.allocate(probe_.copied_bytes), probe_.copied_bytes);
    const DeviceBuffer there = device_.allocate(probe_.copied_bytes);
    const double seconds = best_s(stream_, [&] {
      in ? stream_.to_device(there.data(), host) : stream_.to_host(host, there.data());
    });
    return static_cast<double>(probe_.copied_bytes) / seconds;
  }

  [[nodiscard]] double updates() {
    const double per_element = update_bytes_per_element(kernel_);
    const auto elements =
        static_cast<std::size_t>(static_cast<double>(probe_.updated_bytes) / per_element) /
        kScaleGroup * kScaleGroup;
    const DType type = kernel_.weight;
    const DeviceBuffer state =
        device_.allocate(state_bytes(kernel_.layout, kernel_.update, type, elements));
    const DeviceBuffer weight = device_.allocate(elements * bytes_of(type));
    const DeviceBuffer gradient = device_.allocate(elements * bytes_of(kernel_.gradient));
    UpdatedUnit unit{.ranges = {{.begin = 0, .end = elements}}};
    unit.buffers.gradient = gradient.data();
    unit.buffers.gradient_type = kernel_.gradient;
    unit.buffers.weight_type = type;
    (type == DType::kF32 ? unit.buffers.master : unit.buffers.weight) = weight.data();
    place_state(unit.buffers, kernel_.layout, kernel_.update, type, elements, state.data());
    const UpdateStep step = UpdateStep::make(kernel_.update, 1, 1.0);
    const double seconds = best_s(stream_, [&] {
      stream_.launch("update", {}, [&](void* native) {
        gpu_.updates->run_pass(UpdatePass::kInPlace, unit, &step, 0, elements, native);
      });
    });
    return per_element * static_cast<double>(elements) / seconds;
  }

  /// Operations per second.
  [[nodiscard]] double matmuls() {
    ComputeLane lane(loop_, "measurement");
    const auto a = std::make_shared<at::Tensor>();
    const auto on_lane = [&](std::function<void()> work) {
      loop_.run(
          [](ComputeLane* on, ComputeDevice* to, std::function<void()> given) -> Task<> {
            const auto give = [to, &given] { to->queue(std::move(given)); };
            co_await on->run(give);
          },
          &lane, gpu_.compute.get(), std::move(work));
    };
    loop_.run(
        [](ComputeLane* on, ComputeDevice* to) -> Task<> {
          const auto prepare = [to] { to->prepare_thread(); };
          co_await on->run(prepare);
        },
        &lane, gpu_.compute.get());
    const std::int64_t side = probe_.matmul_side;
    on_lane([a, side, at = device_of_tensors(gpu_.compute.get()),
             type = scalar_type_of(kernel_.weight)] { *a = mixed_operand(side, type, at); });
    const double seconds = best_s(compute_, [&] { on_lane([a] { (void)at::mm(*a, *a); }); });
    on_lane([a] { *a = at::Tensor(); });
    wait(compute_);
    const auto length = static_cast<double>(side);
    return 2.0 * length * length * length / seconds;
  }

  [[nodiscard]] double memory_bytes() const { return static_cast<double>(device_.memory_bytes()); }

 private:
  void wait(DeviceStream stream) {
    loop_.run([](DeviceEvent event) -> Task<> { co_await event.wait(); }, stream.record());
  }

  template <class Queue>
  double best_s(DeviceStream stream, Queue queue) {
    double best = 0;
    for (int round = 0; round <= kRounds; ++round) {
      wait(stream);
      const Stopwatch watch;
      queue();
      wait(stream);
      const double seconds = watch.elapsed_s();
      if (round == 1 || (round > 1 && seconds < best)) {
        best = seconds;
      }
    }
    return best;
  }

  const Gpu& gpu_;
  const UpdateKernel& kernel_;
  const GpuProbe& probe_;
  EventLoop loop_{{.name = "measurement"}};
  CudaDevice device_;
  DeviceStream stream_;
  DeviceStream compute_;
};

}  // namespace

at::Tensor mixed_operand(std::int64_t side, at::ScalarType type, at::Device device) {
  constexpr double kStep = 1.7;  // radians, no simple part of a turn
  return at::arange(side * side, at::TensorOptions().dtype(at::kFloat).device(device))
      .mul_(kStep)
      .sin_()
      .to(type)
      .view({side, side});
}

SimSpec measure_gpu(const Gpu& gpu, const UpdateKernel& kernel, const GpuProbe& probe) {
  return gpu_spec(gpu, kernel, BandwidthCache(""), probe);
}

SimSpec gpu_spec(const Gpu& gpu, const UpdateKernel& kernel, const BandwidthCache& cache,
                 const GpuProbe& probe) {
  Measurement measurement(gpu, kernel, probe);
  const std::string where = fmt::format("{}, {}", machine::cpu_name(), gpu.name);
  SimSpec spec;
  spec.memory_bytes = measurement.memory_bytes();
  spec.to_device_bytes_per_s =
      cache.get(where + ", copies to it", [&] { return measurement.copies(true); });
  spec.to_host_bytes_per_s =
      cache.get(where + ", copies from it", [&] { return measurement.copies(false); });
  spec.memory_bytes_per_s = cache.get(fmt::format("{}, its own {}", where, cache_key(kernel)),
                                      [&] { return measurement.updates(); });
  spec.compute_flops_per_s =
      cache.get(fmt::format("{}, matmuls of mixed values in {}", where, name_of(kernel.weight)),
                [&] { return measurement.matmuls(); });
  return spec;
}

}  // namespace tandem
