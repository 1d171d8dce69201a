#include "models/layers/attention.hpp"

#include <cmath>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "models/kernels/attention.hpp"
#include "models/layers/fused_op.hpp"

namespace tandem {
namespace {

class CausalAttention final : public FusedOp {
 public:
  CausalAttention(std::int64_t length, AttentionShape shape, JoinedWeights q_norm,
                  JoinedWeights k_norm)
      : length_(length),
        shape_(std::move(shape)),
        q_norm_(std::move(q_norm)),
        k_norm_(std::move(k_norm)) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor& qkv = inputs[0];
    at::Tensor context = at::empty({qkv.size(0), shape_.heads * shape_.head_dim}, qkv.options());
    at::Tensor log_sums;
    if (keep) {
      log_sums = at::empty({qkv.size(0) * shape_.heads}, qkv.options().dtype(at::kFloat));
      qkv_ = qkv.detach();
      context_ = context.detach();
      log_sums_ = log_sums;
    }
    attention_forward(problem(qkv), context.data_ptr(),
                      keep ? log_sums.data_ptr<float>() : nullptr);
    return {context};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor dcontext = gradients[0].contiguous();
    at::Tensor dqkv = at::empty_like(qkv_);
    std::vector<float> dnorms(static_cast<std::size_t>(2 * shape_.head_dim));
    float* dk_norm = dnorms.data() + shape_.head_dim;
    attention_backward(problem(qkv_), context_.const_data_ptr(),
                       static_cast<const float*>(log_sums_.const_data_ptr()),
                       dcontext.const_data_ptr(), {dqkv.data_ptr(), dnorms.data(), dk_norm});
    if (!q_norm_.empty()) {
      q_norm_.write_gradient(dnorms.data());
      k_norm_.write_gradient(dk_norm);
    }
    return {dqkv};
  }

 private:
  [[nodiscard]] AttentionProblem problem(const at::Tensor& qkv) const {
    AttentionProblem p{.type = dtype_of(qkv),
                       .batch = qkv.size(0) / length_,
                       .length = length_,
                       .heads = shape_.heads,
                       .kv_heads = shape_.kv_heads,
                       .head_dim = shape_.head_dim,
                       .scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)),
                       .qkv = qkv.const_data_ptr(),
                       .norm_eps = shape_.norm_eps};
    if (!q_norm_.empty()) {
      p.q_norm = q_norm_.value().const_data_ptr();
      p.k_norm = k_norm_.value().const_data_ptr();
    }
    if (shape_.rotary != nullptr) {
      const RotaryTable::View table = shape_.rotary->for_length(length_);
      p.cosine = table.cosine;
      p.sine = table.sine;
      p.rotary = shape_.rotary->dim();
    }
    return p;
  }

  std::int64_t length_;
  AttentionShape shape_;
  JoinedWeights q_norm_, k_norm_;
  at::Tensor qkv_, context_, log_sums_;
};

}  // namespace

at::Tensor causal_attention(const at::Tensor& qkv, std::int64_t length, const AttentionShape& shape,
                            JoinedWeights q_norm, JoinedWeights k_norm) {
  return run_fused(c10::make_intrusive<CausalAttention>(length, shape, std::move(q_norm),
                                                        std::move(k_norm)),
                   {qkv})
      .front();
}

}  // namespace tandem
