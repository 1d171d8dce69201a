#include "engine/metrics/flops.hpp"

#include <algorithm>

namespace tandem {
namespace {

constexpr double kTera = 1e12;

}  // namespace

double example_tflops(const FlopShape& shape, std::int64_t sequences, std::int64_t sequence_length,
                      double step_time_s) noexcept {
  if (!(step_time_s > 0)) {
    return 0;
  }
  const double c = shape.activation_checkpointing ? 4 : 3;
  const auto s = static_cast<double>(sequence_length);
  const double dense = 2 * c * static_cast<double>(shape.parameters) * s;
  const double attention =
      4 * c * static_cast<double>(shape.layers) * static_cast<double>(shape.hidden) * s * s;
  return (dense + attention) / kTera * static_cast<double>(sequences) / step_time_s;
}

double forward_flops(const SegmentShape& shape, std::int64_t sequences, std::int64_t length,
                     CountedKeys keys) noexcept {
  const double tokens = static_cast<double>(sequences) * static_cast<double>(length);
  const double dense = 2 * static_cast<double>(shape.weights) * tokens;
  const auto window = static_cast<double>(
      shape.attention_window > 0 ? std::min(shape.attention_window, length) : length);
  // Token t sees min(t + 1, window) keys.
  const double seen = window - window * (window - 1) / (2 * static_cast<double>(length));
  const double attention = 4 * static_cast<double>(shape.attention_width) *
                           (keys == CountedKeys::kAll ? window : seen) * tokens;
  return dense + attention;
}

double backward_flops(const SegmentShape& shape, std::int64_t sequences, std::int64_t length,
                      bool recomputes, CountedKeys keys) noexcept {
  return (recomputes ? 3 : 2) * forward_flops(shape, sequences, length, keys);
}

std::int64_t multiplied_elements(const Model& model, std::size_t segment, std::size_t weight) {
  const SegmentSpec& spec = model.segments[segment];
  const WeightRef& ref = spec.weights[weight];
  const std::int64_t uses = spec.cost.looks_up       ? 0
                            : spec.cost.uses.empty() ? 1
                                                     : spec.cost.uses[weight];
  return uses * model.units[ref.unit].parameters[ref.parameter].numel();
}

SegmentShape segment_shape(const Model& model, std::size_t segment) {
  const SegmentSpec& spec = model.segments[segment];
  SegmentShape shape{.weights = -spec.cost.idle_weights,
                     .attention_width = spec.cost.attention_width,
                     .attention_window = spec.cost.attention_window};
  for (std::size_t weight = 0; weight < spec.weights.size(); ++weight) {
    shape.weights += multiplied_elements(model, segment, weight);
  }
  return shape;
}

double model_flops_per_token(const Model& model, std::int64_t length) {
  double flops = 0;
  for (std::size_t s = 0; s < model.segments.size(); ++s) {
    const SegmentShape shape = segment_shape(model, s);
    flops += forward_flops(shape, 1, length) + backward_flops(shape, 1, length, false);
  }
  return flops / static_cast<double>(length);
}

}  // namespace tandem
