#include "engine/update_config.hpp"

namespace tandem {

UpdateConfig update_config(const OptimizerConfig& optimizer) {
  return {.kind = optimizer.kind,
          .lr = optimizer.lr,
          .beta1 = optimizer.betas[0],
          .beta2 = optimizer.betas[1],
          .eps = optimizer.eps,
          .weight_decay = optimizer.weight_decay,
          .adamw = optimizer.adam_w_mode,
          .bias_correction = optimizer.bias_correction,
          .momentum = optimizer.momentum,
          .dampening = optimizer.dampening,
          .nesterov = optimizer.nesterov};
}

}  // namespace tandem
