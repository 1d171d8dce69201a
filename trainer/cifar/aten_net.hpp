// trainer/cifar/aten_net.hpp — the CIFAR-10 net and stochastic gradient descent on plain LibTorch
// tensors: a training loop without the engine, as the baseline of measurements. One thread.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/types/model.hpp"

namespace tandem {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0.9;
};

class AtenNet {
 public:
  /// fp32 parameters filled from `source`.
  explicit AtenNet(const ParameterSource& source);

  /// Zeroes gradients, runs forward, backward and update; returns the loss before the update.
  /// images fp32 [B, 3, 32, 32], labels int64 [B].
  float step(const at::Tensor& images, const at::Tensor& labels, const SgdOptions& options);
  /// Logits [B, 10], without a graph.
  [[nodiscard]] at::Tensor logits(const at::Tensor& images) const;
  /// In the order of cifar_parameters().
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }

 private:
  void update(const SgdOptions& options);

  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> velocities_;  // empty before the first step
};

}  // namespace tandem
