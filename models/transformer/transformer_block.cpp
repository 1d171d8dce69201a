#include "models/transformer/transformer_block.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "engine/types/recomputation.hpp"
#include "models/kernels/attention/attention.hpp"
#include "models/kernels/gemm_blocks.hpp"
#include "models/layers/aten/experts.hpp"
#include "models/layers/aten/layers.hpp"
#include "models/layers/gemm.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/token_tiles.hpp"
#include "models/transformer/adapters.hpp"
#include "models/transformer/aten_memory.hpp"
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
  kOutNorm,
  kMlpNorm,
  kUp,
  kUpBias,
  kDown,
  kDownBias,
  kDownNorm,
  kRouter,
  kExperts,
  kGroups
};

std::array<const std::vector<std::string>*, kGroups> groups_of(const BlockNames& n) {
  return {&n.attention_norm,
          &n.qkv,
          &n.qkv_bias,
          &n.qk_norm,
          &n.sinks,
          &n.attention_out,
          &n.attention_out_bias,
          &n.attention_out_norm,
          &n.mlp_norm,
          &n.up,
          &n.up_bias,
          &n.down,
          &n.down_bias,
          &n.down_norm,
          &n.router,
          &n.experts};
}

class TransformerBlock final : public Segment {
 public:
  TransformerBlock(BlockShape shape, const BlockNames& names)
      : shape_(std::move(shape)), adapters_(shape_, names) {
    std::size_t begin = 0;
    for (std::size_t g = 0; const auto* group : groups_of(names)) {
      begins_[g++] = begin;
      begin += group->size();
    }
    begins_[kGroups] = begin;
    TANDEM_CHECK((!sparse() && !shape_.norms_sums) || shape_.dropout.rates.residual == 0,
                 "experts and norms add all they give");
    TANDEM_CHECK(!sparse() || !shape_.norms_sums, "what experts give is not normed");
  }

  at::Tensor forward(const SegmentContext& context, const at::Tensor& input) const override {
    TANDEM_CHECK(context.weights.size() == begins_[kGroups] + adapters_.parameters().size(),
                 "a block gets its units' weights");
    const std::span<Weight* const> w = context.weights;
    if (aten::takes(w)) {
      return by_aten(context, input);
    }
    const std::int64_t length = input.size(1);
    const at::Tensor x = input.reshape({-1, input.size(2)});

    const auto [qkv, x1] =
        norm_linear(x, norm(w, kAttentionNorm), matrix(context, AdaptedLinear::kQkv));
    const at::Tensor attended =
        causal_attention(qkv, length, shape_.attention,
                         {part(w, kQkNorm, 0), part(w, kQkNorm, 1), part(w, kSinks, 0)},
                         {context.begin, context.memory}, mask(context, DropPlace::kAttention),
                         context.batch.positions);
    const at::Tensor middle =
        added(context, DropPlace::kAttentionOut, kOutNorm, x1, [&](const at::Tensor& residual) {
          return linear(attended, residual, matrix(context, AdaptedLinear::kOut));
        });

    if (sparse()) {
      return expert_mixture(balanced(context, middle), norm(w, kMlpNorm), router(w),
                            group(w, kExperts), shape_.experts)
          .view(input.sizes());
    }
    return with_mlp(context, middle).view(input.sizes());
  }

 private:
  [[nodiscard]] at::Tensor by_aten(const SegmentContext& context, const at::Tensor& input) const {
    const std::span<Weight* const> w = context.weights;
    const at::Tensor x = input.reshape({-1, input.size(2)});
    const auto linear = [&](const at::Tensor& from, AdaptedLinear which) {
      const at::Tensor y = aten::linear(from, group(w, weight_of(which)), group(w, bias_of(which)),
                                        shape_.input_major);
      return aten::adapted(y, from, adapters(context, which));
    };
    const auto normed = [&](const at::Tensor& from, Group norm) {
      return aten::norm(shape_.norm, shape_.norm_eps, from, value(w, norm, 0), value(w, norm, 1));
    };
    const at::Tensor qkv = linear(normed(x, kAttentionNorm), AdaptedLinear::kQkv);
    const at::Tensor attended =
        aten::attention(qkv, input.size(1), shape_.attention,
                        {value(w, kQkNorm, 0), value(w, kQkNorm, 1), value(w, kSinks, 0)},
                        {context.begin, context.memory}, mask(context, DropPlace::kAttention),
                        context.batch.positions);
    const auto summand = [&](const at::Tensor& y, Group norm, DropPlace place) {
      return aten::dropped(shape_.norms_sums ? normed(y, norm) : y, mask(context, place));
    };
    const at::Tensor middle =
        x + summand(linear(attended, AdaptedLinear::kOut), kOutNorm, DropPlace::kAttentionOut);
    const at::Tensor h = normed(middle, kMlpNorm);
    if (sparse()) {
      at::Tensor logits =
          aten::linear(h, group(w, kRouter).first(1), group(w, kRouter).subspan(1), false);
      if (observed(context)) {
        logits = shape_.balance->observe(shape_.dropout.layer, logits, context.batch, logits);
      }
      return (middle + aten::experts(h, logits, group(w, kExperts), shape_.experts))
          .view(input.sizes());
    }
    const at::Tensor up = linear(h, AdaptedLinear::kUp);
    const at::Tensor down = linear(aten::activation(shape_.activation, up), AdaptedLinear::kDown);
    return (middle + summand(down, kDownNorm, DropPlace::kMlpOut)).view(input.sizes());
  }
  /// The mask of what is dropped there in this micro-batch.
  [[nodiscard]] DropMask mask(const SegmentContext& context, DropPlace place) const {
    return shape_.dropout.mask(place, context.batch.number);
  }
  /// `middle` and what the MLP adds to it.
  [[nodiscard]] at::Tensor with_mlp(const SegmentContext& context, const at::Tensor& middle) const {
    const bool plain = !shape_.norms_sums && mask(context, DropPlace::kMlpOut).empty();
    const auto [y, x] = mlp(middle,
                            {norm(context.weights, kMlpNorm), matrix(context, AdaptedLinear::kUp),
                             shape_.activation, matrix(context, AdaptedLinear::kDown)},
                            plain ? MlpSum::kAdded : MlpSum::kGiven);
    return plain ? y
                 : added(context, DropPlace::kMlpOut, kDownNorm, x,
                         [&](const at::Tensor& /*residual*/) { return y; });
  }
  /// residual plus y, its norm, or what the mask leaves of it. `layer` computes y, and adds it to a
  /// residual that it is given.
  template <class Layer>
  at::Tensor added(const SegmentContext& context, DropPlace place, Group sum_norm,
                   const at::Tensor& residual, Layer layer) const {
    if (shape_.norms_sums) {
      return normed_sum(residual, layer(at::Tensor()), norm(context.weights, sum_norm));
    }
    const DropMask drops = mask(context, place);
    return drops.empty() ? layer(residual) : dropped(layer(at::Tensor()), residual, drops);
  }
  [[nodiscard]] bool observed(const SegmentContext& context) const {
    return shape_.balance != nullptr && context.head_output == HeadOutput::kLoss;
  }
  /// The middle of the block after its router was observed, for which the logits are computed once
  /// more.
  [[nodiscard]] at::Tensor balanced(const SegmentContext& context, const at::Tensor& middle) const {
    if (!observed(context)) {
      return middle;
    }
    const auto [logits, x] =
        norm_linear(middle, norm(context.weights, kMlpNorm), router(context.weights));
    return shape_.balance->observe(shape_.dropout.layer, logits, context.batch, x);
  }
  [[nodiscard]] bool sparse() const { return begins_[kRouter] != begins_[kExperts]; }
  [[nodiscard]] LinearWeights router(std::span<Weight* const> w) const {
    return {part(w, kRouter, 0), part(w, kRouter, 1), false};
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
  static Group weight_of(AdaptedLinear linear) {
    constexpr std::array kWeights = {kQkv, kOut, kUp, kDown};
    return kWeights[static_cast<std::size_t>(linear)];
  }
  static Group bias_of(AdaptedLinear linear) {
    constexpr std::array kBiases = {kQkvBias, kOutBias, kUpBias, kDownBias};
    return kBiases[static_cast<std::size_t>(linear)];
  }
  [[nodiscard]] Adapters adapters(const SegmentContext& context, AdaptedLinear linear) const {
    return adapters_.of(linear, context.weights.subspan(begins_[kGroups]), context.batch.number);
  }
  [[nodiscard]] LinearWeights matrix(const SegmentContext& context, AdaptedLinear linear) const {
    return {joined(context.weights, weight_of(linear)), joined(context.weights, bias_of(linear)),
            shape_.input_major, adapters(context, linear)};
  }

  BlockShape shape_;
  BlockAdapters adapters_;
  std::array<std::size_t, kGroups + 1> begins_{};
};

/// Working memory of attention's tasks, one per thread, as its kernel asks for it, and the rotary
/// positions.
std::int64_t attention_scratch(const AttentionShape& a, const BatchShape& batch) {
  constexpr std::int64_t kQueryRows = 64;
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t block = a.heads / a.kv_heads * kQueryRows;
  const std::int64_t seen =
      a.window > 0 ? std::min(batch.length, a.window + kQueryRows - 1) : batch.length;
  const std::int64_t scores = block * std::min(seen, attention_tile_keys()) * 4;
  const std::int64_t weights = size == 2 ? scores / 4 * size : 0;
  const std::int64_t rows = (batch.length + 2 * block) * a.head_dim * size;
  const std::int64_t gradients =
      scores + 2 * batch.length * a.head_dim * 4 + block * a.head_dim * 4;
  const std::int64_t angles = a.rotary != nullptr ? batch.length * a.rotary->dim() * 4 : 0;
  return batch.threads * (scores + weights + rows + gradients) + angles;
}

/// Elements of the MLP half: for each token what is kept; at the peaks beyond that, for each token
/// of a tile; the blocks that malloc keeps; packed by matmuls, in all threads; the weights whose
/// gradients have sums of their own.
struct HalfElements {
  std::int64_t kept, forward, backward;
  std::vector<std::int64_t> blocks, tile_blocks;
  std::int64_t packed, weights;
};

HalfElements dense_half(const BlockShape& shape, std::int64_t tile) {
  const std::int64_t up = shape.intermediate * inputs_per_output(shape.activation);
  const bool again = is_recomputation();
  // Forward has the norm's result and the activation beside what is kept, backward the activation's
  // gradient.
  HalfElements half{.kept = again ? 0 : up,
                    .forward = shape.hidden + shape.intermediate + (again ? up : 0),
                    .backward = shape.intermediate + (again ? up : 0),
                    .blocks = {},
                    .tile_blocks = {shape.hidden, shape.intermediate},
                    .packed = std::max(shape.hidden * up, tile * shape.intermediate),
                    .weights = (up + shape.intermediate) * shape.hidden};
  (again ? half.tile_blocks : half.blocks).push_back(up);
  return half;
}

HalfElements expert_half(const BlockShape& shape, const BatchShape& batch, std::int64_t tile) {
  const ExpertShape& e = shape.experts;
  const std::int64_t up = e.width * inputs_per_output(e.activation);
  // Rows before the activation, logits, and the routes' four numbers. Beyond them the norm's
  // result, the rows at the hidden width and the activation; in backward also the gradient of the
  // output's rows.
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t routes = e.per_token * 4 * 4 / size;
  // twice an equal one
  const std::int64_t share = ceil_div(2 * tile * e.per_token, e.count);
  const std::int64_t made = e.per_token * up + e.count + routes;
  const std::int64_t observed = shape.balance != nullptr ? e.count : 0;
  const bool again = is_recomputation();
  HalfElements half{
      .kept = observed + (again ? 0 : made),
      .forward = shape.hidden + e.per_token * (shape.hidden + e.width) + (again ? made : 0),
      .backward = shape.hidden + e.per_token * shape.hidden +
                  std::max(shape.hidden, e.per_token * e.width) + (again ? made : 0),
      .blocks = {},
      .tile_blocks = {e.per_token * up, e.per_token * e.width, e.per_token * shape.hidden,
                      shape.hidden},
      .packed = batch.threads * shape.hidden * std::max(up, share),
      .weights = e.count * (up + e.width) * shape.hidden};
  return half;
}

/// Puts the experts' parameters behind the rest of the block: into its unit, or into units of their
/// own.
void append_expert_units(const BlockShape& shape, const BlockNames& names, LeafModule leaf,
                         std::vector<UnitSpec>& units) {
  const ExpertShape& e = shape.experts;
  const std::string block = units.back().name;
  if (leaf != LeafModule::kBlock) {
    units.push_back({block + " experts", {}});
  }
  units.back().parameters.push_back({names.router[0], {e.count, shape.hidden}});
  if (names.router.size() > 1) {
    units.back().parameters.push_back({names.router[1], {e.count}});
  }
  const std::vector<ParameterSpec> all = e.parameters(names.experts, shape.hidden);
  const std::size_t each = all.size() / static_cast<std::size_t>(e.count);
  const bool apart = leaf == LeafModule::kExpert && e.layout == ExpertLayout::kApart;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (apart && i % each == 0) {
      units.push_back({fmt::format("{} expert {}", block, i / each), {}});
    }
    units.back().parameters.push_back(all[i]);
  }
}

}  // namespace

BlockShape shape_of_layer(BlockShape shape, const BlockNames& names) {
  shape.attention.sinks = !names.sinks.empty();
  shape.attention.norms = !names.qk_norm.empty();
  shape.norms_sums = !names.down_norm.empty();
  if (names.router.empty()) {
    shape.experts = {};
  }
  if (std::ranges::all_of(names.adapted, &std::vector<std::size_t>::empty)) {
    shape.adapters = {};
  }
  shape.adapter_sizes = adapter_sizes(shape, names);
  return shape;
}

namespace {

ActivationBytes activations_without_adapters(const BlockShape& shape, const BatchShape& batch) {
  if (batch.accelerator) {
    return aten::block_memory(shape, batch);
  }
  const AttentionShape& a = shape.attention;
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t tokens = batch.tokens();
  const std::int64_t tile = std::min(tokens, kTileTokens);
  const std::int64_t q = a.heads * a.head_dim;
  const std::int64_t qkv = q + 2 * a.kv_heads * a.head_dim;
  const HalfElements half =
      shape.experts.count > 0 ? expert_half(shape, batch, tile) : dense_half(shape, tile);
  // Kept: qkv, context with a number per head, the middle of the block, what is normed before it
  // is added, and what the MLP keeps.
  const std::int64_t normed = shape.norms_sums ? 2 * shape.hidden : 0;
  const std::int64_t kept = qkv + q + shape.hidden + normed + half.kept;
  ActivationBytes bytes{.output = tokens * shape.hidden * size,
                        .kept = tokens * (kept * size + a.heads * 4)};
  bytes.forward = tile * half.forward * size;
  // The gradients of output and middle, and in the MLP a tile's or, its part being gone and the
  // middle with it, attention's. Dropout's gradient lies beside the residual path's.
  const std::int64_t dropped = shape.dropout.rates.residual > 0 ? shape.hidden : 0;
  const std::int64_t sums = TiledGradients::bytes(batch.type, tokens, half.weights);
  bytes.backward = tokens * (2 * shape.hidden + dropped) * size +
                   std::max(tile * half.backward * size + sums,
                            tokens * (q + qkv - shape.hidden - normed / 2 - half.kept) * size);
  if (is_recomputation() && !shape.norms_sums && dropped == 0) {
    // The output's memory is never touched.
    bytes.kept -= bytes.output;
    bytes.forward += bytes.output;
  }
  std::vector<std::int64_t> widths = {qkv, q, shape.hidden, shape.hidden};
  widths.insert(widths.end(), half.blocks.begin(), half.blocks.end());
  if (shape.norms_sums) {
    widths.insert(widths.end(), {shape.hidden, shape.hidden});
  }
  for (const std::int64_t width : widths) {
    bytes.spare += kept_by_malloc(tokens * width * size);
  }
  for (const std::int64_t width : half.tile_blocks) {
    bytes.spare += kept_by_malloc(tile * width * size);
  }
  const std::int64_t packed =
      std::max({shape.hidden * qkv, tile * std::max(shape.hidden, q), half.packed});
  bytes.scratch = packed_bytes(batch.type, packed) + attention_scratch(a, batch);
  return bytes;
}

}  // namespace

ActivationBytes block_activations(const BlockShape& shape, const BatchShape& batch) {
  ActivationBytes bytes = activations_without_adapters(shape, batch);
  const ActivationBytes more = adapter_activations(shape.adapter_sizes, shape.adapters, batch);
  bytes.kept += more.kept;
  bytes.forward += more.forward;
  bytes.backward += more.backward;
  bytes.spare += more.spare;
  return bytes;
}

std::vector<LinearShape> linear_shapes(const BlockShape& shape, const BlockNames& names,
                                       AdaptedLinear linear) {
  const AttentionShape& a = shape.attention;
  const std::int64_t q = a.heads * a.head_dim;
  const std::int64_t kv = a.kv_heads * a.head_dim;
  const std::int64_t up = shape.intermediate * inputs_per_output(shape.activation);
  const std::size_t count = names.matrices(linear).size();
  if (count == 0) {
    return {};
  }
  // Joined by the family already, or here.
  switch (linear) {
    case AdaptedLinear::kQkv:
      return count == 1 ? std::vector<LinearShape>{{shape.hidden, q + 2 * kv}}
                        : std::vector<LinearShape>{
                              {shape.hidden, q}, {shape.hidden, kv}, {shape.hidden, kv}};
    case AdaptedLinear::kOut:
      return {{q, shape.hidden}};
    case AdaptedLinear::kUp:
      return std::vector<LinearShape>(count, {shape.hidden, up / static_cast<std::int64_t>(count)});
    case AdaptedLinear::kDown:
      return {{shape.intermediate, shape.hidden}};
  }
  return {};
}

std::vector<UnitSpec> block_units(const std::string& name, const BlockShape& shape,
                                  const BlockNames& names, LeafModule leaf) {
  UnitSpec unit{name, {}};
  const AttentionShape& a = shape.attention;
  const auto vectors = [&](const std::vector<std::string>& group,
                           const std::vector<std::int64_t>& extents) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      unit.parameters.push_back({group[i], {extents.size() == 1 ? extents[0] : extents[i]}});
    }
  };
  const auto matrices = [&](AdaptedLinear linear) {
    std::vector<std::int64_t> outs;
    for (const LinearShape& matrix : linear_shapes(shape, names, linear)) {
      unit.parameters.push_back({names.matrices(linear)[outs.size()],
                                 shape.input_major ? std::vector{matrix.in, matrix.out}
                                                   : std::vector{matrix.out, matrix.in}});
      outs.push_back(matrix.out);
    }
    return outs;
  };
  TANDEM_CHECK(!shape.input_major || (names.qkv.size() == 1 && names.up.size() == 1),
               "[in, out] matrices can't be joined along their output");
  vectors(names.attention_norm, {shape.hidden});
  vectors(names.qkv_bias, matrices(AdaptedLinear::kQkv));
  vectors(names.qk_norm, {a.head_dim});
  vectors(names.sinks, {a.heads});
  vectors(names.attention_out_bias, matrices(AdaptedLinear::kOut));
  vectors(names.attention_out_norm, {shape.hidden});
  vectors(names.mlp_norm, {shape.hidden});
  vectors(names.up_bias, matrices(AdaptedLinear::kUp));
  vectors(names.down_bias, matrices(AdaptedLinear::kDown));
  vectors(names.down_norm, {shape.hidden});
  std::vector<UnitSpec> units = {std::move(unit)};
  if (!names.router.empty()) {
    append_expert_units(shape, names, leaf, units);
  }
  if (const BlockAdapters adapters(shape, names); !adapters.parameters().empty()) {
    units.push_back(
        {.name = name + " adapters", .parameters = adapters.parameters(), .stays_gathered = true});
  }
  return units;
}

std::shared_ptr<const Segment> block_segment(const BlockShape& shape, const BlockNames& names) {
  return std::make_shared<TransformerBlock>(shape, names);
}

}  // namespace tandem
