#include "actors/kernels/update/optimizer_step.hpp"

#include <variant>

#include "actors/kernels/update/rounding_key.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "actors/kernels/update/update_kernel.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

/// The constants of the optimizer with the number kKind, or of one of those behind it.
template <std::size_t kKind = 0>
StepConstants constants_of(const UpdateConfig& config, std::int64_t step, double gradient_scale) {
  if constexpr (kKind + 1 < std::variant_size_v<StepConstants>) {
    if (static_cast<std::size_t>(config.kind) != kKind) {
      return constants_of<kKind + 1>(config, step, gradient_scale);
    }
  }
  return std::variant_alternative_t<kKind, StepConstants>::make(config, step, gradient_scale);
}

template <class Step, StateLayout kLayout>
void run_in_layout(const Step& step, std::uint32_t rounding_bits, const UpdateBuffers& buffers,
                   std::size_t begin, std::size_t count) {
  if constexpr (Step::traits().supports(kLayout)) {
    detail::update_kernel<Step, kLayout>(step, rounding_bits, buffers, begin, count);
  }
}

void run_kernel(const UpdateStep& step, std::uint32_t rounding_bits, const UpdateBuffers& buffers,
                std::size_t begin, std::size_t count) {
  const auto run = [&]<class Step>(const Step& rule) {
    switch (buffers.layout) {
      case StateLayout::kFp32:
        return run_in_layout<Step, StateLayout::kFp32>(rule, rounding_bits, buffers, begin, count);
      case StateLayout::kSplit:
        return run_in_layout<Step, StateLayout::kSplit>(rule, rounding_bits, buffers, begin, count);
      case StateLayout::kBf16:
        return run_in_layout<Step, StateLayout::kBf16>(rule, rounding_bits, buffers, begin, count);
      case StateLayout::kInt8:
        return run_in_layout<Step, StateLayout::kInt8>(rule, rounding_bits, buffers, begin, count);
    }
  };
  std::visit(run, step.rule);
}

void update_packed(const UpdateStep& step, const UpdateBuffers& b, std::size_t begin,
                   std::size_t end) {
  const DType weight = b.weight == nullptr ? DType::kF32 : b.weight_type;
  TANDEM_CHECK(supports(step.kind(), b.layout, weight), "the layout fits optimizer and weights");
  TANDEM_CHECK(b.layout != StateLayout::kInt8 || (begin | b.position) % kScaleGroup == 0,
               "8-bit state is updated in whole blocks");
  for_rounding_keys(step.rounding_bits, b.position, begin, end,
                    [&](std::uint32_t key, std::size_t first, std::size_t count) {
                      run_kernel(step, key, b, first, count);
                    });
}

}  // namespace

std::size_t state_arrays(const UpdateConfig& config) noexcept {
  if (updates_jointly(config.kind)) {
    return 2;
  }
  return std::visit([](const auto& rule) { return rule.arrays(); },
                    UpdateStep::make(config, 1, 1.0).rule);
}

UpdateStep UpdateStep::make(const UpdateConfig& config, std::int64_t step, double gradient_scale) {
  TANDEM_CHECK_LE(1, step, "an optimizer's steps count from 1");
  const std::uint64_t rounding_bits = mixed(mixed(config.seed) + static_cast<std::uint64_t>(step));
  return {constants_of(config, step, gradient_scale), rounding_bits};
}

void apply_update(const UpdateStep& step, const UpdateBuffers& buffers, std::size_t begin,
                  std::size_t end) {
  TANDEM_CHECK_LE(begin, end, "a range runs forward");
  const std::size_t arrays = std::visit([](const auto& rule) { return rule.arrays(); }, step.rule);
  TANDEM_CHECK(
      begin == end || (buffers.master && buffers.gradient && (arrays < 1 || buffers.state[0]) &&
                       (arrays < 2 || buffers.state[1])),
      "an update needs master, state and a gradient");
  TANDEM_CHECK(buffers.gradient_type == DType::kF32 ||
                   (buffers.weight != nullptr && buffers.weight_type == buffers.gradient_type),
               "gradients of 16 bits come with weights of their type");
  if (buffers.layout == StateLayout::kFp32) {
    run_kernel(step, 0, buffers, begin, end - begin);  // fp32 state is never rounded
  } else {
    update_packed(step, buffers, begin, end);
  }
}

}  // namespace tandem
