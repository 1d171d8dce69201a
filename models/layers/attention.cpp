#include "models/layers/attention.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "models/kernels/attention/attention.hpp"
#include "models/layers/fused_op.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

class CausalAttention final : public FusedOp {
 public:
  CausalAttention(std::int64_t length, AttentionShape shape, AttentionWeights weights,
                  EarlierText earlier, const DropMask& drop, std::vector<std::int64_t> documents)
      : length_(length),
        shape_(std::move(shape)),
        weights_(std::move(weights)),
        earlier_(earlier),
        drop_(drop),
        documents_(std::move(documents)) {}

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
    const std::int64_t sinks = weights_.sinks.empty() ? 0 : weights_.sinks.value().numel();
    std::vector<float> sums(static_cast<std::size_t>(2 * shape_.head_dim + sinks));
    float* const dsinks = sums.data() + 2 * shape_.head_dim;
    const AttentionGradients to{.dqkv = dqkv.data_ptr(),
                                .dq_norm = sums.data(),
                                .dk_norm = sums.data() + shape_.head_dim,
                                .dsinks = dsinks + shape_.first_head};
    attention_backward(problem(qkv_), context_.const_data_ptr(),
                       static_cast<const float*>(log_sums_.const_data_ptr()),
                       dcontext.const_data_ptr(), to);
    if (!weights_.q_norm.empty()) {
      weights_.q_norm.write_gradient(to.dq_norm);
      weights_.k_norm.write_gradient(to.dk_norm);
    }
    if (!weights_.sinks.empty()) {
      weights_.sinks.write_gradient(dsinks);
    }
    return {dqkv};
  }

 private:
  [[nodiscard]] AttentionProblem problem(const at::Tensor& qkv) const {
    AttentionProblem p{.type = dtype_of(qkv),
                       .batch = qkv.size(0) / length_,
                       .length = earlier_.begin + length_,
                       .heads = shape_.heads,
                       .kv_heads = shape_.kv_heads,
                       .head_dim = shape_.head_dim,
                       .scale = shape_.score_scale(),
                       .qkv = qkv.const_data_ptr(),
                       .norm_offset = shape_.norm == NormKind::kRmsAroundOne ? 1.0F : 0.0F,
                       .norm_eps = shape_.norm_eps,
                       .window = shape_.window,
                       .drop = drop_,
                       .documents = documents_,
                       .begin = earlier_.begin};
    if (!weights_.q_norm.empty()) {
      p.q_norm = weights_.q_norm.value().const_data_ptr();
      p.k_norm = weights_.k_norm.value().const_data_ptr();
    }
    if (!weights_.sinks.empty()) {
      p.sinks = weights_.sinks.value().narrow(0, shape_.first_head, shape_.heads).const_data_ptr();
    }
    if (earlier_.memory != nullptr) {
      p.memory = earlier_.memory->const_data_ptr();
      p.memory_length = earlier_.memory->size(1);
    }
    if (shape_.rotary != nullptr) {
      const RotaryTable::View table =
          shape_.rotary->for_length(longest_document(documents_, p.length), shape_.padding);
      p.cosine = table.cosine;
      p.sine = table.sine;
      p.rotary = shape_.rotary->dim();
    }
    return p;
  }

  std::int64_t length_;  // of the rows at hand
  AttentionShape shape_;
  AttentionWeights weights_;
  EarlierText earlier_;
  DropMask drop_;
  std::vector<std::int64_t> documents_;
  at::Tensor qkv_, context_, log_sums_;
};

}  // namespace

at::Tensor causal_attention(const at::Tensor& qkv, std::int64_t length, const AttentionShape& shape,
                            AttentionWeights weights, EarlierText earlier, const DropMask& drop,
                            const at::Tensor& positions) {
  TANDEM_CHECK(drop.empty() || earlier.begin == 0, "a text is continued outside of training");
  if (earlier.memory != nullptr) {
    remember(earlier, qkv, length, shape);
  }
  return run_fused(c10::make_intrusive<CausalAttention>(length, shape, std::move(weights), earlier,
                                                        drop, document_begins(positions)),
                   {qkv})
      .front();
}

std::vector<std::int64_t> document_begins(const at::Tensor& positions) {
  if (!positions.defined()) {
    return {};
  }
  TANDEM_CHECK(positions.dim() == 2 && positions.scalar_type() == at::kLong && positions.is_cpu(),
               "the engine checked the positions");
  const at::Tensor rows = positions.contiguous();
  const auto* position = static_cast<const std::int64_t*>(rows.const_data_ptr());
  const std::int64_t length = rows.size(1);
  std::vector<std::int64_t> begins;
  for (std::int64_t i = 0; i < rows.numel(); ++i) {
    if (position[i] == 0) {
      begins.push_back(i);
    } else if (i % length == 0 || position[i] != position[i - 1] + 1) {
      throw user_error("model",
                       "token {} of row {} has position {}, and it must be {}; positions count the "
                       "tokens of each document from 0",
                       i % length, i / length, position[i],
                       i % length == 0 ? "0" : fmt::format("0 or {}", position[i - 1] + 1));
    }
  }
  begins.push_back(rows.numel());
  return begins;
}

std::int64_t longest_document(std::span<const std::int64_t> begins, std::int64_t length) {
  if (begins.empty()) {
    return length;
  }
  std::int64_t longest = 0;
  for (std::size_t i = 1; i < begins.size(); ++i) {
    longest = std::max(longest, begins[i] - begins[i - 1]);
  }
  return longest;
}

void remember(const EarlierText& earlier, const at::Tensor& qkv, std::int64_t length,
              const AttentionShape& shape) {
  const std::int64_t batch = qkv.size(0) / length;
  const std::int64_t width = 2 * shape.kv_heads * shape.head_dim;
  const std::int64_t needed = earlier.begin + length;
  at::Tensor& memory = *earlier.memory;
  if (!memory.defined() || memory.size(1) < needed) {
    const std::int64_t room = (needed + needed / 2 + 63) / 64 * 64;
    at::Tensor larger = at::empty({batch, room, width}, qkv.options().requires_grad(false));
    if (earlier.begin > 0) {
      TANDEM_CHECK(memory.defined() && memory.size(0) == batch, "the memory of these texts");
      larger.narrow(1, 0, earlier.begin).copy_(memory.narrow(1, 0, earlier.begin));
    }
    memory = larger;
  }
  const at::Tensor rows = qkv.view({batch, length, qkv.size(1)});
  memory.narrow(1, earlier.begin, length).copy_(rows.narrow(2, qkv.size(1) - width, width));
}

}  // namespace tandem
