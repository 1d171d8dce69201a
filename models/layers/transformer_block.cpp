#include "models/layers/transformer_block.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "models/gemm.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/norm_linear.hpp"
#include "models/layers/plain.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

enum Group : std::uint8_t {
  kAttentionNorm,
  kQkv,
  kQkvBias,
  kQkNorm,
  kSinks,
  kOut,
  kOutBias,
  kMlpNorm,
  kUp,
  kUpBias,
  kDown,
  kDownBias,
  kGroups
};

std::array<const std::vector<std::string>*, kGroups> groups_of(const BlockNames& n) {
  return {&n.attention_norm,     &n.qkv,      &n.qkv_bias, &n.qk_norm, &n.sinks, &n.attention_out,
          &n.attention_out_bias, &n.mlp_norm, &n.up,       &n.up_bias, &n.down,  &n.down_bias};
}

class TransformerBlock final : public Segment {
 public:
  TransformerBlock(BlockShape shape, const BlockNames& names) : shape_(std::move(shape)) {
    std::size_t begin = 0;
    for (std::size_t g = 0; const auto* group : groups_of(names)) {
      begins_[g++] = begin;
      begin += group->size();
    }
    begins_[kGroups] = begin;
  }

  at::Tensor forward(const SegmentContext& context, const at::Tensor& input) const override {
    TANDEM_CHECK(context.weights.size() == begins_[kGroups], "a block gets its unit's weights");
    const std::span<Weight* const> w = context.weights;
    if (plain::takes(w)) {
      return by_plain_operations(context, input);
    }
    const std::int64_t length = input.size(1);
    const at::Tensor x = input.reshape({-1, input.size(2)});

    const auto [qkv, x1] = norm_linear(x, norm(w, kAttentionNorm), matrix(w, kQkv, kQkvBias));
    const at::Tensor attended =
        causal_attention(qkv, length, shape_.attention,
                         {part(w, kQkNorm, 0), part(w, kQkNorm, 1), part(w, kSinks, 0)},
                         {context.begin, context.memory});
    const at::Tensor middle = linear(attended, x1, matrix(w, kOut, kOutBias));

    const auto [up, x2] = norm_linear(middle, norm(w, kMlpNorm), matrix(w, kUp, kUpBias));
    return activated_linear(shape_.activation, up, x2, matrix(w, kDown, kDownBias))
        .view(input.sizes());
  }

 private:
  [[nodiscard]] at::Tensor by_plain_operations(const SegmentContext& context,
                                               const at::Tensor& input) const {
    const std::span<Weight* const> w = context.weights;
    const at::Tensor x = input.reshape({-1, input.size(2)});
    const auto linear = [&](const at::Tensor& from, Group weight, Group bias) {
      return plain::linear(from, group(w, weight), group(w, bias), shape_.input_major);
    };
    const auto normed = [&](const at::Tensor& from, Group norm) {
      return plain::norm(shape_.norm, shape_.norm_eps, from, value(w, norm, 0), value(w, norm, 1));
    };
    const at::Tensor qkv = linear(normed(x, kAttentionNorm), kQkv, kQkvBias);
    const at::Tensor attended =
        plain::attention(qkv, input.size(1), shape_.attention,
                         {value(w, kQkNorm, 0), value(w, kQkNorm, 1), value(w, kSinks, 0)},
                         {context.begin, context.memory});
    const at::Tensor middle = x + linear(attended, kOut, kOutBias);
    const at::Tensor up = linear(normed(middle, kMlpNorm), kUp, kUpBias);
    return (middle + linear(plain::activation(shape_.activation, up), kDown, kDownBias))
        .view(input.sizes());
  }
  [[nodiscard]] std::span<Weight* const> group(std::span<Weight* const> w, Group which) const {
    return w.subspan(begins_[which], begins_[which + 1] - begins_[which]);
  }
  /// Undefined if the group has no such part.
  [[nodiscard]] at::Tensor value(std::span<Weight* const> w, Group which, std::size_t part) const {
    const std::span<Weight* const> all = group(w, which);
    return part < all.size() ? all[part]->value : at::Tensor();
  }
  [[nodiscard]] JoinedWeights joined(std::span<Weight* const> w, Group which) const {
    return JoinedWeights(group(w, which));
  }
  /// One parameter of a group, or nothing if the group does not have it.
  [[nodiscard]] JoinedWeights part(std::span<Weight* const> w, Group group,
                                   std::size_t which) const {
    const std::size_t at = begins_[group] + which;
    return at < begins_[group + 1] ? JoinedWeights(w.subspan(at, 1)) : JoinedWeights();
  }
  [[nodiscard]] Norm norm(std::span<Weight* const> w, Group group) const {
    return {shape_.norm, shape_.norm_eps, part(w, group, 0), part(w, group, 1)};
  }
  [[nodiscard]] LinearWeights matrix(std::span<Weight* const> w, Group weight, Group bias) const {
    return {joined(w, weight), joined(w, bias), shape_.input_major};
  }

  BlockShape shape_;
  std::array<std::size_t, kGroups + 1> begins_{};
};

/// Working memory of attention's tasks, one per thread, as its kernel asks for it.
std::int64_t attention_scratch(const AttentionShape& a, const BatchShape& batch) {
  constexpr std::int64_t kQueryRows = 64;
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t block = a.heads / a.kv_heads * kQueryRows;
  const std::int64_t keys =
      a.window > 0 ? std::min(batch.length, a.window + kQueryRows - 1) : batch.length;
  const std::int64_t scores = block * keys * 4;
  const std::int64_t weights = size == 2 ? block * keys * size : 0;
  const std::int64_t rows = (batch.length + 2 * block) * a.head_dim * size;
  const std::int64_t gradients =
      scores + 2 * batch.length * a.head_dim * 4 + block * a.head_dim * 4;
  return batch.threads * (scores + weights + rows + gradients);
}

}  // namespace

ActivationBytes block_activations(const BlockShape& shape, const BatchShape& batch) {
  const AttentionShape& a = shape.attention;
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t tokens = batch.tokens();
  const std::int64_t q = a.heads * a.head_dim;
  const std::int64_t qkv = q + 2 * a.kv_heads * a.head_dim;
  const std::int64_t up = shape.intermediate * inputs_per_output(shape.activation);
  const std::int64_t copies = std::max<std::int64_t>(1, shape.experts_per_token);
  // Kept: qkv, context with a number per head, the middle of the block, the MLP's input to its activation; with experts
  // also the tokens in their order and what each expert gave.
  std::int64_t kept = qkv + q + shape.hidden + copies * up;
  kept += shape.experts > 0 ? 2 * copies * shape.hidden + 2 * shape.experts : 0;
  ActivationBytes bytes{.output = tokens * shape.hidden * size,
                        .kept = tokens * (kept * size + a.heads * 4)};
  // At its peak forward has the activation beside it, backward the activation's gradient and that of the output.
  bytes.forward = tokens * std::max(copies * shape.intermediate, shape.hidden) * size;
  bytes.backward = tokens * (copies * shape.intermediate + 2 * shape.hidden) * size;
  if (!batch.accelerator) {
    for (const std::int64_t width :
         {qkv, q, shape.hidden, shape.hidden, copies * up, copies * shape.intermediate}) {
      bytes.spare += kept_by_malloc(tokens * width * size);
    }
    const std::int64_t widest = std::max({shape.hidden, q, shape.intermediate});
    const std::int64_t matrix = shape.hidden * std::max(qkv, up);
    bytes.scratch =
        packed_bytes(batch.type, std::max(matrix, tokens * widest)) + attention_scratch(a, batch);
  }
  return bytes;
}

UnitSpec block_unit(std::string name, const BlockShape& shape, const BlockNames& names) {
  UnitSpec unit{std::move(name), {}};
  const AttentionShape& a = shape.attention;
  const std::int64_t q = a.heads * a.head_dim;
  const std::int64_t kv = a.kv_heads * a.head_dim;
  const std::int64_t up = shape.intermediate * inputs_per_output(shape.activation);
  const auto vectors = [&](const std::vector<std::string>& group,
                           const std::vector<std::int64_t>& extents) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      unit.parameters.push_back({group[i], {extents.size() == 1 ? extents[0] : extents[i]}});
    }
  };
  const auto matrices = [&](const std::vector<std::string>& group,
                            const std::vector<std::int64_t>& outs, std::int64_t in) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      unit.parameters.push_back(
          {group[i], shape.input_major ? std::vector{in, outs[i]} : std::vector{outs[i], in}});
    }
  };
  // Joined by the family already, or here.
  const std::vector<std::int64_t> qkv_rows =
      names.qkv.size() == 1 ? std::vector{q + 2 * kv} : std::vector{q, kv, kv};
  const std::vector<std::int64_t> up_rows =
      names.up.size() == 1 ? std::vector{up} : std::vector{up / 2, up / 2};
  TANDEM_CHECK(!shape.input_major || (names.qkv.size() == 1 && names.up.size() == 1),
               "[in, out] matrices can't be joined along their output");
  vectors(names.attention_norm, {shape.hidden});
  matrices(names.qkv, qkv_rows, shape.hidden);
  vectors(names.qkv_bias, qkv_rows);
  vectors(names.qk_norm, {a.head_dim});
  vectors(names.sinks, {a.heads});
  matrices(names.attention_out, {shape.hidden}, q);
  vectors(names.attention_out_bias, {shape.hidden});
  vectors(names.mlp_norm, {shape.hidden});
  matrices(names.up, up_rows, shape.hidden);
  vectors(names.up_bias, up_rows);
  matrices(names.down, {shape.hidden}, shape.intermediate);
  vectors(names.down_bias, {shape.hidden});
  return unit;
}

std::shared_ptr<const Segment> block_segment(const BlockShape& shape, const BlockNames& names) {
  return std::make_shared<TransformerBlock>(shape, names);
}

}  // namespace tandem
