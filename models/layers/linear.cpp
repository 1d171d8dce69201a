#include "models/layers/linear.hpp"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "models/layers/fused_op.hpp"

namespace tandem {
namespace {

Tensors inputs_of(const at::Tensor& x, const at::Tensor& residual) {
  return residual.defined() ? Tensors{x, residual} : Tensors{x};
}

/// Gradients of inputs_of(): that of the residual is dy itself.
Tensors gradients_of(at::Tensor dx, const at::Tensor& dy, bool residual) {
  return residual ? Tensors{std::move(dx), dy} : Tensors{std::move(dx)};
}

class Linear final : public FusedOp {
 public:
  explicit Linear(LinearWeights weights) : weights_(std::move(weights)) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    residual_ = inputs.size() > 1;
    if (keep) {
      x_ = inputs[0].detach();
    }
    return {weights_.forward(inputs[0], residual_ ? inputs[1] : at::Tensor())};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x_);
    weights_.backward_weight(dy, x_);
    weights_.backward_input(dy, dx);
    return gradients_of(std::move(dx), dy, residual_);
  }

 private:
  LinearWeights weights_;
  at::Tensor x_;
  bool residual_ = false;
};

class ActivatedLinear final : public FusedOp {
 public:
  ActivatedLinear(Activation activation, LinearWeights weights)
      : activation_(activation), weights_(std::move(weights)) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor& x = inputs[0];
    residual_ = inputs.size() > 1;
    if (keep) {
      x_ = x.detach();
    }
    const std::int64_t width = x.size(1) / inputs_per_output(activation_);
    const at::Tensor a = at::empty({x.size(0), width}, x.options());
    activation_forward(activation_, dtype_of(x), x.size(0), width, x.const_data_ptr(),
                       a.data_ptr());
    return {weights_.forward(a, residual_ ? inputs[1] : at::Tensor())};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor dy = gradients[0].contiguous();
    const std::int64_t width = x_.size(1) / inputs_per_output(activation_);
    const at::Tensor da = at::empty({x_.size(0), width}, x_.options());
    weights_.backward_input(dy, da);
    activation_backward(activation_, dtype_of(x_), x_.size(0), width, x_.data_ptr(), da.data_ptr());
    weights_.backward_weight(dy, da);  // by now the activation itself
    return gradients_of(std::move(x_), dy, residual_);
  }

 private:
  Activation activation_;
  LinearWeights weights_;
  at::Tensor x_;
  bool residual_ = false;
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& residual, LinearWeights weights) {
  return run_fused(c10::make_intrusive<Linear>(std::move(weights)), inputs_of(x, residual)).front();
}

at::Tensor activated_linear(Activation activation, const at::Tensor& x, const at::Tensor& residual,
                            LinearWeights weights) {
  return run_fused(c10::make_intrusive<ActivatedLinear>(activation, std::move(weights)),
                   inputs_of(x, residual))
      .front();
}

}  // namespace tandem
