#include "models/transformer/transformer_layer.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "engine/types/recomputation.hpp"
#include "models/layers/aten/experts.hpp"
#include "models/layers/aten/layers.hpp"
#include "models/layers/aten/row_ops.hpp"
#include "models/layers/gemm.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/sequence/shared_rows.hpp"
#include "models/layers/token_tiles.hpp"
#include "models/transformer/adapters.hpp"
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

std::array<const std::vector<std::string>*, kGroups> groups_of(const LayerNames& n) {
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

class TransformerLayer final : public Segment {
 public:
  TransformerLayer(LayerShape shape, const LayerNames& names)
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

    auto [qkv, x1] = norm_linear(x, norm(w, kAttentionNorm), matrix(context, AdaptedLinear::kQkv));
    const SharedRows shared(context);
    const AttentionShape& all = shape_.attention;
    // A tensor that no backward needs goes before the next is made.
    at::Tensor whole = shared.to_heads(std::exchange(qkv, {}), length, all);
    at::Tensor of_heads = causal_attention(
        std::exchange(whole, {}), shared.length(length), shared.share_of(all),
        {part(w, kQkNorm, 0), part(w, kQkNorm, 1), part(w, kSinks, 0)},
        {context.begin, context.memory}, attention_mask(context), context.batch.positions);
    at::Tensor attended = shared.to_tokens(std::exchange(of_heads, {}), length, all);
    const at::Tensor middle =
        added(context, DropPlace::kAttentionOut, kOutNorm, x1, [&](const at::Tensor& residual) {
          return linear(std::exchange(attended, {}), residual,
                        matrix(context, AdaptedLinear::kOut));
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
    // The output has no values in a recomputation, and the matmul before it none that a norm needs.
    const auto output = is_recomputation() ? aten::Result::kUnread : aten::Result::kRead;
    const auto down_result = shape_.norms_sums ? aten::Result::kRead : output;
    const auto linear = [&](const at::Tensor& from, AdaptedLinear which,
                            aten::Result result = aten::Result::kRead) {
      const at::Tensor y = aten::linear(from, joined(w, weight_of(which)),
                                        joined(w, bias_of(which)), shape_.input_major, result);
      return aten::adapted(y, from, adapters(context, which));
    };
    const auto normed = [&](const at::Tensor& from, Group norm) {
      return aten::norm(shape_.norm, shape_.norm_eps, from, part(w, norm, 0), part(w, norm, 1));
    };
    const aten::Normed first = normed(x, kAttentionNorm);
    at::Tensor qkv = linear(first.y, AdaptedLinear::kQkv);
    const SharedRows shared(context);
    const std::int64_t length = input.size(1);
    const AttentionShape& all = shape_.attention;
    const at::Tensor of_heads = aten::attention(
        shared.to_heads(std::exchange(qkv, {}), length, all), shared.length(length),
        shared.share_of(all), {part(w, kQkNorm, 0), part(w, kQkNorm, 1), part(w, kSinks, 0)},
        {context.begin, context.memory}, attention_mask(context), context.batch.positions);
    const at::Tensor attended = shared.to_tokens(of_heads, length, all);
    const auto summand = [&](const at::Tensor& y, Group norm, DropPlace place) {
      return aten::dropped(shape_.norms_sums ? normed(y, norm).y : y, mask(context, place));
    };
    const auto [h, middle] = normed(first.x + summand(linear(attended, AdaptedLinear::kOut),
                                                      kOutNorm, DropPlace::kAttentionOut),
                                    kMlpNorm);
    if (sparse()) {
      at::Tensor logits = aten::linear(h, part(w, kRouter, 0), part(w, kRouter, 1), false);
      if (observed(context)) {
        logits =
            shape_.balance->observe(shape_.dropout.layer, logits, context.batch, logits, shared);
      }
      return aten::sum(middle, aten::experts(h, logits, group(w, kExperts), shape_.experts, output),
                       output)
          .view(input.sizes());
    }
    const at::Tensor up = linear(h, AdaptedLinear::kUp);
    const at::Tensor down =
        linear(aten::activation(shape_.activation, up), AdaptedLinear::kDown, down_result);
    return aten::sum(middle, summand(down, kDownNorm, DropPlace::kMlpOut), output)
        .view(input.sizes());
  }
  /// The mask of what is dropped of the tokens' rows there in this micro-batch.
  [[nodiscard]] DropMask mask(const SegmentContext& context, DropPlace place) const {
    return SharedRows(context).of_tokens(shape_.dropout.mask(place, context.batch.number));
  }
  /// The mask of attention's probabilities.
  [[nodiscard]] DropMask attention_mask(const SegmentContext& context) const {
    return SharedRows(context).of_heads(
        shape_.dropout.mask(DropPlace::kAttention, context.batch.number), shape_.attention);
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
    return shape_.balance != nullptr && context.head_output != HeadOutput::kLogits;
  }
  /// The middle of the block after its router was observed, for which the logits are computed once
  /// more.
  [[nodiscard]] at::Tensor balanced(const SegmentContext& context, const at::Tensor& middle) const {
    if (!observed(context)) {
      return middle;
    }
    const auto [logits, x] =
        norm_linear(middle, norm(context.weights, kMlpNorm), router(context.weights));
    return shape_.balance->observe(shape_.dropout.layer, logits, context.batch, x,
                                   SharedRows(context));
  }
  [[nodiscard]] bool sparse() const { return begins_[kRouter] != begins_[kExperts]; }
  [[nodiscard]] LinearWeights router(std::span<Weight* const> w) const {
    return {part(w, kRouter, 0), part(w, kRouter, 1), false};
  }
  [[nodiscard]] std::span<Weight* const> group(std::span<Weight* const> w, Group which) const {
    return w.subspan(begins_[which], begins_[which + 1] - begins_[which]);
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
    Adapters adapters =
        adapters_.of(linear, context.weights.subspan(begins_[kGroups]), context.batch.number);
    adapters.drop = SharedRows(context).of_tokens(adapters.drop);
    return adapters;
  }
  [[nodiscard]] LinearWeights matrix(const SegmentContext& context, AdaptedLinear linear) const {
    return {joined(context.weights, weight_of(linear)), joined(context.weights, bias_of(linear)),
            shape_.input_major, adapters(context, linear)};
  }

  LayerShape shape_;
  LayerAdapters adapters_;
  std::array<std::size_t, kGroups + 1> begins_{};
};

/// Puts the experts' parameters behind the rest of the block: into its unit, or into units of their
/// own.
void append_expert_units(const LayerShape& shape, const LayerNames& names, LeafModule leaf,
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

LayerShape shape_of_layer(LayerShape shape, const LayerNames& names) {
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

std::vector<LinearShape> linear_shapes(const LayerShape& shape, const LayerNames& names,
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

std::vector<UnitSpec> block_units(const std::string& name, const LayerShape& shape,
                                  const LayerNames& names, LeafModule leaf) {
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
  if (const LayerAdapters adapters(shape, names); !adapters.parameters().empty()) {
    units.push_back(
        {.name = name + " adapters", .parameters = adapters.parameters(), .stays_gathered = true});
  }
  return units;
}

std::shared_ptr<const Segment> layer_segment(const LayerShape& shape, const LayerNames& names) {
  return std::make_shared<TransformerLayer>(shape, names);
}

}  // namespace tandem
