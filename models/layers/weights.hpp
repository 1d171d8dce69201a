// models/layers/weights.hpp — weights as the fused layers see them: joined where they lie side by
// side.
//
// Parameters of one unit that are listed one after the other are adjacent in memory, weights and
// gradients alike. So the projections q, k, v are one matrix [q; k; v] to a single matmul, and
// likewise gate and up.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "actors/kernels/dtype.hpp"
#include "engine/tensors/segment.hpp"
#include "models/kernels/dropout.hpp"
#include "models/layers/gemm.hpp"

namespace tandem {

/// gradient = or += `sums`, by the weights' contract; does nothing if the gradient is not wanted.
void write_gradient(Weight& weight, const at::Tensor& sums);

/// One or more adjacent parameters of equal trailing extents, as one along their first dimension.
class JoinedWeights {
 public:
  JoinedWeights() = default;
  explicit JoinedWeights(std::span<Weight* const> parts) : parts_(parts.begin(), parts.end()) {}

  [[nodiscard]] bool empty() const { return parts_.empty(); }
  [[nodiscard]] std::span<Weight* const> parts() const { return parts_; }
  /// Whether any part learns; the gradients of the others are not computed.
  [[nodiscard]] bool wants_gradient() const;
  /// Returns a view without autograd; valid while the weights are bound.
  [[nodiscard]] at::Tensor value() const;
  /// gradient = or += `sums` (fp32, [numel]), by the weights' contract.
  void write_gradient(const float* sums, float scale = 1.0F) const;
  /// gradient = or += a b, by the weights' contract; a: [rows of all parts, K].
  void write_gradient_matmul(const at::Tensor& a, const at::Tensor& b) const;
  /// Appends the matmuls of write_gradient_matmul(), for a call that runs many. The caller must run
  /// them: the gradients count as written.
  void append_gradient_matmuls(const at::Tensor& a, const at::Tensor& b,
                               std::vector<Matmul>& matmuls) const;
  /// For weights to which nothing contributes: the gradient becomes zero unless it was written
  /// before.
  void write_zero_gradient() const;
  /// For a kernel that writes or adds by itself: calls call(gradient, add) for each part that
  /// learns.
  template <class Call>
  void write_gradient_with(Call call) const {
    for (Weight* part : parts_) {
      if (part->wants_grad) {
        call(part->grad, part->grad_written);
        part->grad_written = true;
      }
    }
  }

 private:
  std::vector<Weight*> parts_;
};

/// Low-rank adapters (LoRA: Hu et al., 2021) of the projections that a linear layer joins, or of
/// some of them:
///   y[:, begin ...] += scale D(x) A^T B^T
/// for each, with A [rank, in], B [out, rank], and D dropout with one mask for all of them. Nothing
/// is kept for the backward: x A^T is computed again.
struct Adapters {
  struct Part {
    JoinedWeights b;         // [out, rank]
    std::int64_t begin = 0;  // its first column in y
  };
  JoinedWeights a;  // of all parts, side by side: [parts * rank, in]
  std::vector<Part> parts;
  float scale = 1;
  DropMask drop;

  [[nodiscard]] bool empty() const { return parts.empty(); }
  /// x: [rows, in], y: [rows, out of the whole layer], added to.
  void add_forward(const at::Tensor& x, const at::Tensor& y) const;
  void add_backward_input(const at::Tensor& dy, const at::Tensor& dx) const;
  void backward_weight(const at::Tensor& dy, const at::Tensor& x) const;

 private:
  /// scale D(x) A^T, [rows, parts * rank].
  [[nodiscard]] at::Tensor narrowed(const at::Tensor& x) const;
  /// The gradient of x A^T: scale dy B.
  [[nodiscard]] at::Tensor narrowed_gradient(const at::Tensor& dy) const;
};

/// y = x W^T + b with W [out, in] (torch's Linear), or y = x W + b with W [in, out] (GPT-2's
/// Conv1D), and what its adapters add.
struct LinearWeights {
  JoinedWeights weight;
  JoinedWeights bias;  // may be empty
  bool input_major = false;
  Adapters adapters = {};  // may be empty

  [[nodiscard]] std::int64_t out_features() const;
  /// Returns y [rows, out] for x [rows, in]; y starts from `residual` [rows, out] if given.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& residual = {}) const;
  /// The same into `y`.
  void forward_into(const at::Tensor& x, const at::Tensor& y,
                    const at::Tensor& residual = {}) const;
  /// Writes the gradient of x into `dx` [rows, in].
  void backward_input(const at::Tensor& dy, const at::Tensor& dx) const;
  /// Adds the gradient of x to `dx`.
  void add_backward_input(const at::Tensor& dy, const at::Tensor& dx) const;
  void backward_weight(const at::Tensor& dy, const at::Tensor& x) const;
};

}  // namespace tandem
