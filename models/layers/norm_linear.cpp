#include "models/layers/norm_linear.hpp"

#include <ATen/ops/empty_like.h>

#include "models/layers/fused_op.hpp"

namespace tandem {
namespace {

class NormLinear final : public FusedOp {
 public:
  NormLinear(Norm norm, LinearWeights linear)
      : norm_(std::move(norm)), linear_(std::move(linear)) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor& x = inputs[0];
    if (keep) {
      x_ = x.detach();
    }
    return {linear_.forward(norm_.forward(x)), x};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor& residual = gradients[1];
    if (!gradients[0].defined()) {
      return {residual};
    }
    const at::Tensor dy = gradients[0].contiguous();
    // One buffer holds in turn the normalised input (computed again), its gradient, and row by row
    // the gradient of x.
    const at::Tensor h = norm_.forward(x_);
    linear_.backward_weight(dy, h);
    linear_.backward_input(dy, h);
    norm_.backward(x_, h, residual.defined() ? residual.contiguous() : residual, h);
    return {h};
  }

 private:
  Norm norm_;
  LinearWeights linear_;
  at::Tensor x_;
};

}  // namespace

std::pair<at::Tensor, at::Tensor> norm_linear(const at::Tensor& x, Norm norm,
                                              LinearWeights linear) {
  Tensors out = run_fused(c10::make_intrusive<NormLinear>(std::move(norm), std::move(linear)), {x});
  return {std::move(out[0]), std::move(out[1])};
}

}  // namespace tandem
