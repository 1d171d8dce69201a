#include "actors/kernels/update/optimizer_step.hpp"

#include "actors/kernels/update/rounding_key.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "actors/kernels/update/update_rules.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

AdamStep adam_step(const UpdateConfig& c, std::int64_t step, double gradient_scale) {
  return AdamStep::make({.lr = c.lr,
                         .beta1 = c.beta1,
                         .beta2 = c.beta2,
                         .eps = c.eps,
                         .weight_decay = c.weight_decay,
                         .adamw = c.adamw,
                         .bias_correction = c.bias_correction},
                        step, gradient_scale);
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

std::size_t arrays_of(const AdamStep&) { return 2; }
std::size_t arrays_of(const SgdStep& step) { return step.momentum == 0.0F ? 0 : 1; }
std::size_t arrays_of(const LionStep&) { return 1; }
std::size_t arrays_of(const AdagradStep&) { return 1; }

struct UpdateFp32 {
  const UpdateBuffers& buffers;
  std::size_t begin;
  std::size_t count;

  void operator()(const AdamStep& s) const { detail::update_adam(s, buffers, begin, count); }
  void operator()(const SgdStep& s) const { detail::update_sgd(s, buffers, begin, count); }
  void operator()(const LionStep& s) const { detail::update_lion(s, buffers, begin, count); }
  void operator()(const AdagradStep& s) const { detail::update_adagrad(s, buffers, begin, count); }
};

struct UpdatePacked {
  const UpdateBuffers& buffers;
  std::uint32_t rounding_bits;
  std::size_t begin;
  std::size_t count;

  void operator()(const AdamStep& s) const {
    switch (buffers.layout) {
      case StateLayout::kSplit:
        return detail::update_adam_split(s, buffers, begin, count);
      case StateLayout::kBf16:
        return detail::update_adam_bf16(s, rounding_bits, buffers, begin, count);
      default:
        return detail::update_adam_int8(s, rounding_bits, buffers, begin, count);
    }
  }
  void operator()(const LionStep& s) const {
    if (buffers.layout == StateLayout::kBf16) {
      detail::update_lion_bf16(s, rounding_bits, buffers, begin, count);
    } else {
      detail::update_lion_int8(s, rounding_bits, buffers, begin, count);
    }
  }
  void operator()(const AdagradStep& s) const {
    detail::update_adagrad_split(s, buffers, begin, count);
  }
  void operator()(const SgdStep&) const {}
};

void update_packed(const UpdateStep& step, const UpdateBuffers& b, std::size_t begin,
                   std::size_t end) {
  const DType weight = b.weight == nullptr ? DType::kF32 : b.weight_type;
  TANDEM_CHECK(supports(step.kind(), b.layout, weight), "the layout fits optimizer and weights");
  TANDEM_CHECK(b.layout != StateLayout::kInt8 || (begin | b.position) % kStateBlock == 0,
               "8-bit state is updated in whole blocks");
  for_rounding_keys(step.rounding_bits, b.position, begin, end,
                    [&](std::uint32_t key, std::size_t first, std::size_t count) {
                      std::visit(UpdatePacked{b, key, first, count}, step.rule);
                    });
}

}  // namespace

std::size_t state_arrays(const UpdateConfig& config) noexcept {
  return std::visit([](const auto& rule) { return arrays_of(rule); },
                    UpdateStep::make(config, 1, 1.0).rule);
}

UpdateStep UpdateStep::make(const UpdateConfig& config, std::int64_t step, double gradient_scale) {
  TANDEM_CHECK(step >= 1, "an optimizer's steps count from 1");
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
  }
  return {};
}

void apply_update(const UpdateStep& step, const UpdateBuffers& buffers, std::size_t begin,
                  std::size_t end) {
  TANDEM_CHECK(begin <= end, "a range runs forward");
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
    std::visit(UpdateFp32{buffers, begin, end - begin}, step.rule);
  } else {
    update_packed(step, buffers, begin, end);
  }
}

}  // namespace tandem
