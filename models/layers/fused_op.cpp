#include "models/layers/fused_op.hpp"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tandem {
namespace {

class FusedNode : public torch::autograd::Function<FusedNode> {
 public:
  static Tensors forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                         const c10::intrusive_ptr<FusedOp>& op) {
    context->set_materialize_grads(false);
    context->saved_data["op"] = c10::IValue::make_capsule(op);
    return op->forward(inputs.vec(), true);
  }

  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    // The op is taken out, so that what it kept is freed now and not with the last segment's graph.
    const c10::IValue capsule = std::exchange(context->saved_data["op"], {});
    Tensors result = static_cast<FusedOp*>(capsule.toCapsule().get())->backward(gradients);
    result.emplace_back();  // the op itself
    return result;
  }
};

}  // namespace

at::Tensor without_memory(const at::Tensor& like, std::int64_t width) {
  return at::empty_strided({like.size(0), width}, {0, 0}, like.options());
}

Tensors run_fused(c10::intrusive_ptr<FusedOp> op, const Tensors& inputs) {
  if (!at::GradMode::is_enabled()) {
    return op->forward(inputs, false);
  }
  const at::TensorList list = inputs;
  return FusedNode::apply(list, op);
}

}  // namespace tandem
