// models/layers/fused_op.hpp — a hand-written forward and backward as one node of the autograd
// graph.
//
// An op keeps what its backward needs as plain members: tensors without graph, and the weights it
// was given. Gradients of weights go straight into Weight::grad; autograd sees activations only.
// Invariant: an op is used once: one forward, at most one backward, which may destroy what was
// kept.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

namespace tandem {

using Tensors = std::vector<at::Tensor>;

class FusedOp : public torch::CustomClassHolder {
 public:
  /// Runs without autograd. `keep`: a backward may follow.
  virtual Tensors forward(const Tensors& inputs, bool keep) = 0;
  /// Takes the gradients of the outputs (undefined for an output on which nothing depends), and
  /// returns the gradients of the inputs.
  virtual Tensors backward(const Tensors& gradients) = 0;
};

/// Returns [rows of `like`, width] with the memory of one element: a result that is not read, for
/// its place in the graph.
[[nodiscard]] at::Tensor without_memory(const at::Tensor& like, std::int64_t width);

/// Runs the op; in grad mode its outputs have it as their node of the graph. Compute lane.
Tensors run_fused(c10::intrusive_ptr<FusedOp> op, const Tensors& inputs);

}  // namespace tandem
