#include "bench/overlap/policies.hpp"

#include <algorithm>

#include "engine/device/accelerator.hpp"
#include "engine/types/stopwatch.hpp"
#include "runtime/scope.hpp"

namespace tandem::bench {
namespace {

constexpr std::size_t kChunk = std::size_t{128} * 1024;  // elements, as in CpuOptimizer

}  // namespace

Policies::Policies(const StepShape& shape)
    : shape_(shape),
      step_(UpdateStep::make({.lr = 1e-4}, 1, 1.0)),
      loop_({.name = "policies"}),
      lane_(loop_, "policy compute"),
      pool_(loop_, {.threads = shape.optimizer_threads, .name = "policy adam", .background = true}),
      device_(loop_, {.time = SimDevice::Time::kReal,
                      .memory_bytes = kSets * 2 * shape.weights_of_layer,
                      .to_device_bytes_per_s = shape.link_bytes_per_s,
                      .to_host_bytes_per_s = shape.link_bytes_per_s,
                      .acts = false}),
      to_host_(device_.stream("to host")),
      to_device_(device_.stream("to device")) {
  const std::size_t n = shape.weights_of_layer;
  for (std::size_t i = 0; i < kSets; ++i) {
    auto& set = sets_.emplace_back(std::make_unique<Set>());
    for (HostBuffer* floats : {&set->master, &set->first, &set->second}) {
      *floats = HostBuffer(n * sizeof(float));
      floats->touch();
    }
    for (HostBuffer* halves : {&set->gradient, &set->weight}) {
      *halves = HostBuffer(bytes());
      halves->touch();
    }
    set->slot = device_.allocate(bytes());
    std::fill_n(set->slot.data(), bytes(), std::byte{0});
  }
}

Task<> Policies::update(Policies* self, std::size_t layer) {
  Set& set = self->set_of(layer);
  const UpdateBuffers buffers = {.master = set.master.as<float>(),
                                 .state = {set.first.as<float>(), set.second.as<float>()},
                                 .gradient = set.gradient.data(),
                                 .gradient_type = DType::kBF16,
                                 .weight = set.weight.data(),
                                 .weight_type = DType::kBF16};
  const std::size_t elements = self->shape_.weights_of_layer;
  const UpdateStep* step = &self->step_;
  co_await self->pool_.for_chunks(
      (elements + kChunk - 1) / kChunk, [buffers, elements, step](std::size_t chunk) {
        const std::size_t begin = chunk * kChunk;
        apply_update(*step, buffers, begin, std::min(elements, begin + kChunk));
      });
}

Task<> Policies::land_and_update(Policies* self, std::size_t layer) {
  Set& set = self->set_of(layer);
  while (!set.free.is_set()) {
    co_await set.free;
  }
  set.free.reset();
  self->to_host_.to_host(set.gradient.span(), set.slot.data());
  co_await self->to_host_.record().wait();
  co_await update(self, layer);
  self->to_device_.to_device(set.slot.data(), set.weight.span());
  co_await self->to_device_.record().wait();
  set.free.set();
}

Task<> Policies::all_adam(Policies* self) {
  Scope scope(self->loop_, "adam");
  for (std::size_t layer = 0; layer < self->shape_.layers; ++layer) {
    scope.spawn("update", &Policies::update, self, layer);
  }
  co_await scope.join();
}

Task<> Policies::compute(Policies* self, double seconds) {
  auto work = [seconds] { const SegmentTime time(seconds); };
  co_await self->lane_.run(work);
}

Task<> Policies::serial(Policies* self, double forward_s, double backward_s) {
  for (const double seconds : {forward_s, backward_s}) {
    for (std::size_t layer = 0; layer < self->shape_.layers; ++layer) {
      co_await compute(self, seconds);
    }
  }
  for (std::size_t layer = 0; layer < self->shape_.layers; ++layer) {
    Set& set = self->set_of(layer);
    self->to_host_.to_host(set.gradient.span(), set.slot.data());
  }
  co_await self->to_host_.record().wait();
  co_await all_adam(self);
  for (std::size_t layer = 0; layer < self->shape_.layers; ++layer) {
    Set& set = self->set_of(layer);
    self->to_device_.to_device(set.slot.data(), set.weight.span());
  }
  co_await self->to_device_.record().wait();
}

Task<> Policies::backward_only(Policies* self, double forward_s, double backward_s) {
  for (std::size_t layer = 0; layer < self->shape_.layers; ++layer) {
    co_await compute(self, forward_s);
  }
  Scope scope(self->loop_, "layers");
  for (std::size_t layer = 0; layer < self->shape_.layers; ++layer) {
    co_await compute(self, backward_s);
    scope.spawn("layer", &Policies::land_and_update, self, layer);
  }
  co_await scope.join();
}

double Policies::adam_s() {
  const Stopwatch watch;
  loop_.run(&Policies::all_adam, this);
  return watch.elapsed_s();
}

double Policies::serial_s(double forward_s, double backward_s) {
  const Stopwatch watch;
  loop_.run(&Policies::serial, this, forward_s, backward_s);
  return watch.elapsed_s();
}

double Policies::backward_only_s(double forward_s, double backward_s) {
  const Stopwatch watch;
  loop_.run(&Policies::backward_only, this, forward_s, backward_s);
  return watch.elapsed_s();
}

}  // namespace tandem::bench
