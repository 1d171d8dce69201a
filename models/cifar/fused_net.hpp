// models/cifar/fused_net.hpp — the CIFAR-10 net as one operation: fp32 on the CPU, pictures in parallel.
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

#include "engine/model.hpp"

namespace tandem {

/// Mean loss (scalar) of images fp32 [B, 3, 32, 32] with labels int64 [B]; its backward writes the weights' gradients. The
/// weights are those of cifar_parameters(). Throws user_error for a label that is no class. Compute lane.
at::Tensor fused_cifar_loss(const at::Tensor& images, const at::Tensor& labels,
                            std::span<Weight* const> weights);

/// Logits [B, 10], without a graph. Compute lane.
at::Tensor fused_cifar_logits(const at::Tensor& images, std::span<Weight* const> weights);

}  // namespace tandem
