#include "trainer/cifar/aten_net.hpp"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/cifar/net.hpp"

namespace tandem {

AtenNet::AtenNet(const ParameterSource& source) {
  for (const ParameterSpec& spec : cifar_parameters()) {
    at::Tensor parameter = at::empty(spec.shape, at::kFloat);
    source(spec, 0, spec.numel(), parameter.data_ptr<float>());
    parameters_.push_back(parameter.requires_grad_(true));
  }
}

float AtenNet::step(const at::Tensor& images, const at::Tensor& labels, const SgdOptions& options) {
  for (at::Tensor& parameter : parameters_) {
    parameter.mutable_grad().reset();
  }
  const at::Tensor loss = at::cross_entropy_loss(cifar_logits(images, parameters_), labels);
  torch::autograd::backward({loss}, {});
  update(options);
  return loss.item<float>();
}

/// v = momentum v + g (the first time v = g), p = p - lr v: torch's order of operations.
void AtenNet::update(const SgdOptions& options) {
  const at::NoGradGuard no_grad;
  const bool first = velocities_.empty();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (first) {
      velocities_.push_back(gradient.clone());
    } else {
      velocities_[i].mul_(options.momentum).add_(gradient);
    }
    parameters_[i].add_(velocities_[i], -options.lr);
  }
}

at::Tensor AtenNet::logits(const at::Tensor& images) const {
  const at::NoGradGuard no_grad;
  return cifar_logits(images, parameters_);
}

}  // namespace tandem
