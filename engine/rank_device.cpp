// engine/rank_device.cpp — what a rank does only where there is a device; see rank.hpp.
#include <fmt/format.h>

#include "engine/metrics/flops.hpp"
#include "engine/rank.hpp"

namespace tandem {

std::byte* Rank::allocate_on_device(std::size_t bytes, std::string_view purpose) {
  std::byte* memory = accelerator_->allocate(bytes, purpose);
  resident_bytes_.device = accelerator_->used_bytes();
  return memory;
}

std::byte* Rank::slots_on_device(const SlotPools& pools, std::size_t pool, Name name,
                                 std::size_t bytes) {
  std::string_view largest;
  for (std::size_t unit = 0; unit < layouts_.size(); ++unit) {
    if (pools.pool_of[unit] == pool &&
        layouts_[unit].block.padded_elements == pools.slot_elements[pool]) {
      largest = model_.units[unit].name;
    }
  }
  return allocate_on_device(bytes,
                            fmt::format("{}, each as large as unit \"{}\"", name.c_str(), largest));
}

SegmentTime Rank::time_of(std::size_t segment, Phase phase, const Batch& batch,
                          TimePoint inputs_there) {
  if (!accelerator_) {
    return {};
  }
  const SegmentSpec& spec = model_.segments[segment];
  const bool is_backward = phase == Phase::kBackward;
  if (spec.cost.seconds) {
    return {spec.cost.seconds(is_backward), inputs_there, device_time_};
  }
  SegmentShape shape{.attention_width = spec.cost.attention_width};
  for (const WeightRef& ref : spec.weights) {
    shape.weights +=
        spec.cost.looks_up ? 0 : model_.units[ref.unit].parameters[ref.parameter].numel();
  }
  const std::int64_t rows = batch.inputs.size(0);
  const std::int64_t length = batch.inputs.is_floating_point() ? 1 : batch.inputs.size(1);
  // The last segment's graph is kept: nothing of it is computed twice.
  const bool recomputes = options_.recomputes && segment + 1 < model_.segments.size();
  const double flops = is_backward ? backward_flops(shape, rows, length, recomputes)
                                   : forward_flops(shape, rows, length);
  return {accelerator_->seconds_of(flops), inputs_there, device_time_};
}

}  // namespace tandem
