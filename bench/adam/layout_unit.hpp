// bench/adam/layout_unit.hpp — one flat unit with Adam's state in some layout, as the benchmarks of
// the kernels use it.
//
// Invariant: gradients and moments are ordinary numbers, so that no denormal slows a kernel down.
#pragma once

#include <cstddef>
#include <string_view>

#include "actors/kernels/update/optimizer_step.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "actors/memory/arena.hpp"

namespace tandem::bench {

/// The types that an update reads and writes. kFp32: fp32 gradient, no model weight. The others:
/// bf16 gradient in, bf16 weight out.
enum class Mix { kFp32, kBf16, kSplit, kBf16Moments, kInt8Moments };

inline constexpr Mix kMixes[] = {Mix::kFp32, Mix::kBf16, Mix::kSplit, Mix::kBf16Moments,
                                 Mix::kInt8Moments};

constexpr std::string_view name_of(Mix mix) {
  constexpr std::string_view kNames[] = {"fp32", "bf16", "split", "bf16_moments", "int8_moments"};
  return kNames[static_cast<std::size_t>(mix)];
}

constexpr StateLayout layout_of(Mix mix) {
  constexpr StateLayout kLayouts[] = {StateLayout::kFp32, StateLayout::kFp32, StateLayout::kSplit,
                                      StateLayout::kBf16, StateLayout::kInt8};
  return kLayouts[static_cast<std::size_t>(mix)];
}

inline constexpr double kLearningRate = 1e-5;

class LayoutUnit {
 public:
  /// `shift`: elements by which every array is off its alignment.
  LayoutUnit(Mix mix, std::size_t elements, double weight_decay = 0.01, std::size_t shift = 0);

  /// `apart`: from the first set of buffers to the second; else the first in place.
  [[nodiscard]] UpdateBuffers buffers(bool apart = false);

  [[nodiscard]] std::size_t elements() const noexcept { return elements_; }
  [[nodiscard]] const UpdateConfig& config() const noexcept { return config_; }
  [[nodiscard]] UpdateStep next_step(double gradient_scale) {
    return UpdateStep::make(config_, ++step_, gradient_scale);
  }

  /// Gradient i times `factor`, in fp32.
  void set_gradients(float factor);
  void set_gradient(std::size_t i, float value);
  [[nodiscard]] const float* gradients_fp32() const { return fp32_gradient_.as<float>(); }

 private:
  UpdateBuffers make_set(HostBuffer& state, HostBuffer& weight) const;

  Mix mix_;
  std::size_t elements_;
  std::size_t shift_;
  UpdateConfig config_;
  std::int64_t step_ = 0;
  HostBuffer state_[2], weight_[2], gradient_, fp32_gradient_;
  UpdateBuffers sets_[2];
};

}  // namespace tandem::bench
