#include "engine/layout/update_config.hpp"

#include "actors/kernels/update/state_memory.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

UpdateConfig update_config(const OptimizerConfig& optimizer) {
  return {.kind = optimizer.kind,
          .lr = optimizer.rate(),
          .beta1 = optimizer.betas[0],
          .beta2 = optimizer.betas[1],
          .eps = optimizer.eps,
          .weight_decay = optimizer.weight_decay,
          .adamw = optimizer.adam_w_mode,
          .bias_correction = optimizer.bias_correction,
          .momentum = optimizer.momentum,
          .dampening = optimizer.dampening,
          .nesterov = optimizer.nesterov || optimizer.kind == OptimizerKind::kMuon,
          .min_coeff = optimizer.min_coeff,
          .max_coeff = optimizer.max_coeff,
          .eps_inside_sqrt = optimizer.eps_inside_sqrt};
}

std::vector<UpdateConfig> update_groups(UpdateConfig group, double adam_lr_factor) {
  if (group.kind != OptimizerKind::kMuon) {
    return {group};
  }
  UpdateConfig other = group;
  other.kind = OptimizerKind::kAdam;
  other.lr *= adam_lr_factor;
  return {group, other};
}

void require_state_layout(const UpdateConfig& update, StateLayout layout, DType type) {
  if (const std::string_view why = why_unsupported(update.kind, layout, type); !why.empty()) {
    throw user_error("engine", "optimizer_state is {}, and {}; use fp32", name_of(layout), why);
  }
}

DType compute_type(Precision precision) noexcept {
  switch (precision) {
    case Precision::kF32:
      return DType::kF32;
    case Precision::kBF16:
      return DType::kBF16;
    case Precision::kF16:
      return DType::kF16;
  }
  return DType::kF32;
}

}  // namespace tandem
