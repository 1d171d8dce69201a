// models/cifar/fused_net.hpp — the CIFAR-10 net as one operation on the CPU, images in parallel.
//
// The arithmetic is fp32. 16-bit weights are widened; images are first rounded to the weights'
// type, and gradients are rounded to it at the end. The steps between are more exact than ATen's
// 16-bit operations, and several times as fast.
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

#include "engine/tensors/segment.hpp"

namespace tandem {

/// Returns whether the operations below take such weights: fp32, bf16 or fp16 in host memory.
bool fused_cifar_takes(const at::Tensor& weight);

/// Returns the mean loss (fp32 scalar) of images fp32 [B, 3, 32, 32] with labels int64 [B]; its
/// backward writes the weights' gradients. The weights are those of cifar_parameters(). Throws
/// user_error for a label outside the classes. Compute lane.
at::Tensor fused_cifar_loss(const at::Tensor& images, const at::Tensor& labels,
                            std::span<Weight* const> weights);

/// Returns cifar_trunk() of images fp32 [B, 3, 32, 32], in the weights' type; its backward writes
/// the weights' gradients. The weights are the first kCifarTrunkParameters of cifar_parameters().
/// Compute lane.
at::Tensor fused_cifar_trunk(const at::Tensor& images, std::span<Weight* const> weights);

/// Returns logits fp32 [B, 10], without an autograd graph. Compute lane.
at::Tensor fused_cifar_logits(const at::Tensor& images, std::span<Weight* const> weights);

}  // namespace tandem
