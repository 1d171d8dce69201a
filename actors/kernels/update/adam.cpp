// actors/kernels/update/adam.cpp — compiled once per SIMD target (foreach_target).
#include "actors/kernels/update/adam.hpp"

#include <cmath>

#include "actors/kernels/update/update_rules.hpp"
#include "runtime/util/check.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/update/adam.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/update/adam_rule-inl.hpp"
#include "actors/kernels/update/update-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

void adam_elements(const AdamStep& step, const UpdateBuffers& buffers, std::size_t begin,
                   std::size_t count) {
  if (step.adamw) {
    update_elements(AdamRule<true>{step}, buffers, begin, count);
  } else {
    update_elements(AdamRule<false>{step}, buffers, begin, count);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(adam_elements);

void detail::update_adam(const AdamStep& step, const UpdateBuffers& buffers, std::size_t begin,
                         std::size_t count) {
  HWY_DYNAMIC_DISPATCH(adam_elements)(step, buffers, begin, count);
}

AdamStep AdamStep::make(const AdamConfig& config, std::int64_t step, double gradient_scale) {
  TANDEM_CHECK(step >= 1, "Adam's steps count from 1");
  double bias1 = 1.0;
  double bias2 = 1.0;
  if (config.bias_correction) {
    bias1 = 1.0 - std::pow(config.beta1, static_cast<double>(step));
    bias2 = 1.0 - std::pow(config.beta2, static_cast<double>(step));
  }
  const double decay = config.adamw ? config.lr * config.weight_decay : config.weight_decay;
  return {.gradient_scale = static_cast<float>(gradient_scale),
          .beta1 = static_cast<float>(config.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - config.beta1),
          .beta2 = static_cast<float>(config.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - config.beta2),
          .eps = static_cast<float>(config.eps),
          .step_size = static_cast<float>(config.lr / bias1),
          .inverse_root_bias = static_cast<float>(1.0 / std::sqrt(bias2)),
          .decay = static_cast<float>(decay),
          .adamw = config.adamw};
}

void adam_update(const AdamStep& step, const AdamBuffers& buffers, std::size_t begin,
                 std::size_t end) {
  apply_update({step},
               {.master = buffers.master,
                .state = {buffers.exp_avg, buffers.exp_avg_sq},
                .gradient = buffers.gradient,
                .gradient_type = buffers.gradient_type,
                .weight = buffers.weight,
                .weight_type = buffers.weight_type},
               begin, end);
}

}  // namespace tandem
#endif
