// bench/overlap/layers.hpp — a model whose segments do nothing but last: equal layers of many
// weights, and two durations.
//
// Its weights and gradients move and are updated as any model's; only the mathematics of the
// segments is left out, so that on a simulated accelerator compute takes exactly as long as the
// benchmark says. On a device that is not simulated a layer lasts as long as a number of matmuls
// that have nothing to do with its weights.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/tensors/segment.hpp"

namespace tandem::bench {

constexpr double kForwardShare = 0.25;  // of a layer's compute

/// Seconds of one layer, which a simulated device takes, and the matmuls that another one computes
/// in their place. Both may change between steps.
struct LayerTimes {
  std::atomic<double> forward_s = 0;
  std::atomic<double> backward_s = 0;
  std::atomic<int> forward_matmuls = 0;
  std::atomic<int> backward_matmuls = 0;
};

Model timed_layers(std::int64_t layers, std::int64_t weights_of_layer,
                   const std::shared_ptr<const LayerTimes>& times);

}  // namespace tandem::bench
