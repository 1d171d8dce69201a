#include "actors/kernels/update/optimizer_step.hpp"

#include <array>
#include <cmath>

#include "actors/kernels/update/rounding_key.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "actors/kernels/update/update_rules.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

AdamStep adam_step(const UpdateConfig& c, std::int64_t step, double gradient_scale) {
  double bias1 = 1.0;
  double bias2 = 1.0;
  if (c.bias_correction) {
    bias1 = 1.0 - std::pow(c.beta1, static_cast<double>(step));
    bias2 = 1.0 - std::pow(c.beta2, static_cast<double>(step));
  }
  return {.gradient_scale = static_cast<float>(gradient_scale),
          .beta1 = static_cast<float>(c.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - c.beta1),
          .beta2 = static_cast<float>(c.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - c.beta2),
          .eps = static_cast<float>(c.eps),
          .step_size = static_cast<float>(c.lr / bias1),
          .inverse_root_bias = static_cast<float>(1.0 / std::sqrt(bias2)),
          .decay = static_cast<float>(c.adamw ? c.lr * c.weight_decay : c.weight_decay),
          .adamw = c.adamw};
}

SgdStep sgd_step(const UpdateConfig& c, std::int64_t step, double gradient_scale) {
  return {.gradient_scale = static_cast<float>(gradient_scale),
          .lr = static_cast<float>(c.lr),
          .momentum = static_cast<float>(c.momentum),
          .one_minus_dampening = static_cast<float>(1.0 - c.dampening),
          .decay = static_cast<float>(c.weight_decay),
          .first = step == 1,
          .nesterov = c.nesterov};
}

LionStep lion_step(const UpdateConfig& c, double gradient_scale) {
  return {.gradient_scale = static_cast<float>(gradient_scale),
          .lr = static_cast<float>(c.lr),
          .beta1 = static_cast<float>(c.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - c.beta1),
          .beta2 = static_cast<float>(c.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - c.beta2),
          .decay = static_cast<float>(c.lr * c.weight_decay)};
}

AdagradStep adagrad_step(const UpdateConfig& c, double gradient_scale) {
  return {.gradient_scale = static_cast<float>(gradient_scale),
          .lr = static_cast<float>(c.lr),
          .eps = static_cast<float>(c.eps),
          .decay = static_cast<float>(c.weight_decay)};
}

AlongStep along_step(const UpdateConfig& c, std::int64_t step, double scale) {
  if (c.kind == OptimizerKind::kMuon) {
    return {.rate = static_cast<float>(c.lr * scale),
            .decay = static_cast<float>(c.lr * c.weight_decay)};
  }
  double correction = 1.0;  // the decay is in the direction
  if (c.bias_correction) {
    const auto t = static_cast<double>(step);
    correction = std::sqrt(1.0 - std::pow(c.beta2, t)) / (1.0 - std::pow(c.beta1, t));
  }
  return {.rate = static_cast<float>(c.lr * correction * scale)};
}

std::size_t arrays_of(const AdamStep&) { return 2; }
std::size_t arrays_of(const SgdStep& step) { return step.momentum == 0.0F ? 0 : 1; }
std::size_t arrays_of(const LionStep&) { return 1; }
std::size_t arrays_of(const AdagradStep&) { return 1; }
std::size_t arrays_of(const AlongStep&) { return 0; }  // the direction's pass has moved them on

/// By StateLayout; null where supports() refuses the layout.
template <class Step>
using Kernels = std::array<detail::UpdateKernel<Step>*, 4>;

Kernels<AdamStep> kernels_of(const AdamStep&) {
  return {detail::update_adam, detail::update_adam_split, detail::update_adam_bf16,
          detail::update_adam_int8};
}
Kernels<SgdStep> kernels_of(const SgdStep&) { return {detail::update_sgd}; }
Kernels<LionStep> kernels_of(const LionStep&) {
  return {detail::update_lion, nullptr, detail::update_lion_bf16, detail::update_lion_int8};
}
Kernels<AdagradStep> kernels_of(const AdagradStep&) {
  return {detail::update_adagrad, detail::update_adagrad_split};
}
Kernels<AlongStep> kernels_of(const AlongStep&) { return {detail::update_along}; }

void run_kernel(const UpdateStep& step, std::uint32_t rounding_bits, const UpdateBuffers& buffers,
                std::size_t begin, std::size_t count) {
  std::visit(
      [&](const auto& rule) {
        kernels_of(rule)[static_cast<std::size_t>(buffers.layout)](rule, rounding_bits, buffers,
                                                                   begin, count);
      },
      step.rule);
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
  return std::visit([](const auto& rule) { return arrays_of(rule); },
                    UpdateStep::make(config, 1, 1.0).rule);
}

UpdateStep UpdateStep::make(const UpdateConfig& config, std::int64_t step, double gradient_scale) {
  TANDEM_CHECK_LE(1, step, "an optimizer's steps count from 1");
  const std::uint64_t rounding_bits = mixed(mixed(config.seed) + static_cast<std::uint64_t>(step));
  switch (config.kind) {
    case OptimizerKind::kAdam:
      return {adam_step(config, step, gradient_scale), rounding_bits};
    case OptimizerKind::kSgd:
      return {sgd_step(config, step, gradient_scale), rounding_bits};
    case OptimizerKind::kLion:
      return {lion_step(config, gradient_scale), rounding_bits};
    case OptimizerKind::kAdagrad:
      return {adagrad_step(config, gradient_scale), rounding_bits};
    case OptimizerKind::kLamb:
    case OptimizerKind::kMuon:
      return {along_step(config, step, gradient_scale), rounding_bits};
  }
  return {};
}

void apply_update(const UpdateStep& step, const UpdateBuffers& buffers, std::size_t begin,
                  std::size_t end) {
  TANDEM_CHECK_LE(begin, end, "a range runs forward");
  const std::size_t arrays =
      std::visit([](const auto& rule) { return arrays_of(rule); }, step.rule);
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
