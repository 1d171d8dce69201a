#include "models/transformer/decoder.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include "models/layers/aten/layers.hpp"
#include "models/layers/aten/row_ops.hpp"
#include "models/layers/dropout.hpp"
#include "models/layers/embedding.hpp"
#include "models/layers/gemm.hpp"
#include "models/layers/sequence/shared_rows.hpp"
#include "models/transformer/adapters.hpp"
#include "models/transformer/layer_memory.hpp"
#include "models/transformer/loss_head.hpp"

namespace tandem {
namespace {

class EmbeddingSegment final : public Segment {
 public:
  explicit EmbeddingSegment(const DecoderSpec& spec)
      : vocabulary_(spec.vocabulary),
        positions_(spec.positions.empty() ? 0 : spec.max_positions),
        padding_(spec.padding),
        scale_(spec.embedding_scale),
        dropout_(spec.block.dropout) {}

  at::Tensor forward(const SegmentContext& context, const at::Tensor&) const override {
    Weight* positions = context.weights.size() > 1 ? context.weights[1] : nullptr;
    const SharedRows shared(context);
    const DropMask mask =
        shared.of_tokens(dropout_.mask(DropPlace::kEmbedding, context.batch.number));
    const at::Tensor tokens = shared.part_of(context.batch.inputs);
    const at::Tensor places = shared.part_of(places_of(context, shared));
    Weight& table = *context.weights[0];
    const float scale = rounded(scale_, dtype_of(table.value));
    if (aten::takes(context.weights)) {
      return aten::dropped(
          aten::embedding(tokens, table, positions, padding_, context.begin, scale, places), mask);
    }
    if (places.defined()) {
      (void)document_begins(context.batch.positions);  // they count up
    }
    return dropped(embedding(tokens, table, positions, padding_, context.begin, scale, places), {},
                   mask);
  }

  void check_values(const Batch& batch) const override {
    const bool cut = batch.part.count > 0;  // what fills shared rows up has no positions
    check_embedded(cut ? batch.inputs.narrow(1, 0, batch.part.length) : batch.inputs, vocabulary_,
                   positions_, batch.memory != nullptr ? batch.memory->position : 0,
                   batch.positions);
  }

 private:
  /// Positions of whole rows, where they are not those that count from `begin`.
  static at::Tensor places_of(const SegmentContext& context, const SharedRows& shared) {
    const at::Tensor& inputs = context.batch.inputs;
    return context.batch.positions.defined() || !shared.cut()
               ? context.batch.positions
               : at::arange(inputs.size(1), inputs.options())
                     .clamp_max(context.batch.part.length - 1)  // what pads has none of its own
                     .expand(inputs.sizes());
  }
  static float rounded(double scale, DType type) {
    const auto value = static_cast<float>(scale);
    switch (type) {
      case DType::kF32:
        return value;
      case DType::kBF16:
        return c10::BFloat16(value);
      case DType::kF16:
        return c10::Half(value);
    }
    return value;
  }

  std::int64_t vocabulary_;
  std::int64_t positions_;  // 0: none are learnt
  std::optional<std::int64_t> padding_;
  double scale_;
  LayerDropout dropout_;
};

/// Weights: the final norm's, then the output matrix.
class HeadSegment final : public Segment {
 public:
  /// `balance`: of the routers, null without.
  HeadSegment(const DecoderSpec& spec, std::shared_ptr<RouterBalance> balance)
      : norm_(spec.block.norm),
        eps_(spec.block.norm_eps),
        vocabulary_(spec.vocabulary),
        balance_(std::move(balance)) {}

  at::Tensor forward(const SegmentContext& context, const at::Tensor& all) const override {
    const at::Tensor out = output(context, all);
    if (balance_ == nullptr || context.head_output == HeadOutput::kLogits) {
      return out;
    }
    const at::Tensor loss = balance_->added_to(out);
    return context.head_output == HeadOutput::kBothLosses ? at::stack({loss, out}) : loss;
  }

  void check_values(const Batch& batch) const override {
    if (batch.labels.defined()) {
      (void)count_labels(batch.labels, vocabulary_);
    }
  }

 private:
  [[nodiscard]] at::Tensor output(const SegmentContext& context, const at::Tensor& all) const {
    const auto weights = context.weights;
    // A text is continued by the logits of its last position alone.
    const at::Tensor input = context.memory != nullptr ? all.narrow(1, all.size(1) - 1, 1) : all;
    if (aten::takes(weights)) {
      const JoinedWeights bias(weights.subspan(1, norm_ == NormKind::kLayer ? 1 : 0));
      const at::Tensor h = aten::norm(norm_, eps_, input, JoinedWeights(weights.first(1)), bias).y;
      return context.head_output == HeadOutput::kLogits
                 ? aten::logits(h, *weights.back())
                 : aten::loss(h, context.batch.labels, *weights.back(), SharedRows(context));
    }
    Norm norm{norm_, eps_, JoinedWeights(weights.first(1)), {}};
    if (norm_ == NormKind::kLayer) {
      norm.bias = JoinedWeights(weights.subspan(1, 1));
    }
    JoinedWeights output(weights.last(1));
    const at::Tensor x = input.contiguous();
    return context.head_output == HeadOutput::kLogits
               ? logits_head(x, norm, output)
               : loss_head(x, context.batch.labels, std::move(norm), std::move(output),
                           SharedRows(context));
  }

  NormKind norm_;
  double eps_;
  std::int64_t vocabulary_;
  std::shared_ptr<RouterBalance> balance_;
};

/// Chooses those of a layer's matrices that have adapters.
void choose_adapted(const DecoderSpec& spec, LayerNames& names) {
  for (std::size_t linear = 0; spec.adapts && linear < kAdaptedLinears; ++linear) {
    const auto& matrices = names.matrices(static_cast<AdaptedLinear>(linear));
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      if (spec.adapts(module_of(matrices[i]))) {
        names.adapted[linear].push_back(i);
      }
    }
  }
}

/// "self_attn" of "model.layers.0.self_attn.o_proj".
std::string parent_of(std::string_view module) {
  module = module.substr(0, module.rfind('.'));
  return std::string(module.substr(module.rfind('.') + 1));
}

/// All parameters of the units from `first` on.
std::vector<WeightRef> all_from(const Model& model, std::size_t first) {
  std::vector<WeightRef> refs;
  for (std::size_t unit = first; unit < model.units.size(); ++unit) {
    for (std::size_t i = 0; i < model.units[unit].parameters.size(); ++i) {
      refs.push_back({unit, i});
    }
  }
  return refs;
}

/// The activations between two segments, of the embedding's forward and backward.
std::function<ActivationBytes(const BatchShape&)> embedding_activations(const DecoderSpec& spec) {
  // The gradient of dropout and of a scale is a boundary's, beside the one that it comes from.
  const bool drops = spec.block.dropout.rates.embedding > 0;
  const bool scales = spec.embedding_scale != 1;
  return [hidden = spec.block.hidden, drops, scales](const BatchShape& batch) {
    const std::int64_t bytes =
        batch.tokens() * hidden * static_cast<std::int64_t>(bytes_of(batch.type));
    const bool twice = scales && batch.accelerator;
    return ActivationBytes{.output = bytes,
                           .forward = twice ? bytes : 0,
                           .backward = (drops ? 2 * bytes : 0) + (twice ? 2 * bytes : 0)};
  };
}

void add_embedding(const DecoderSpec& spec, Model& model) {
  const std::int64_t hidden = spec.block.hidden;
  UnitSpec embedding{"embedding", {{spec.embedding, {spec.vocabulary, hidden}}}};
  if (!spec.positions.empty()) {
    embedding.parameters.push_back({spec.positions, {spec.max_positions, hidden}});
  }
  model.units.push_back(std::move(embedding));
  model.segments.push_back({"embedding",
                            all_from(model, 0),
                            std::make_shared<EmbeddingSegment>(spec),
                            embedding_activations(spec),
                            {.looks_up = true}});
}

void add_layer(const DecoderSpec& spec, std::int64_t layer,
               const std::shared_ptr<RouterBalance>& balance, Model& model) {
  LayerNames names = spec.layer_names(layer);
  choose_adapted(spec, names);
  LayerShape shape = shape_of_layer(spec.block, names);
  shape.dropout.layer = layer;
  shape.balance = balance;
  shape.attention.window = spec.windows.empty() ? 0 : spec.windows[static_cast<std::size_t>(layer)];
  if (shape.attention.window > 0 && spec.window_rotary != nullptr) {
    shape.attention.rotary = spec.window_rotary;
  }
  const std::size_t first = model.units.size();
  std::ranges::move(block_units(fmt::format("block {}", layer), shape, names, spec.leaf),
                    std::back_inserter(model.units));
  model.segments.push_back(
      {model.units[first].name,
       all_from(model, first),
       layer_segment(shape, names),
       [shape](const BatchShape& batch) { return layer_activations(shape, batch); },
       {.idle_weights = shape.experts.idle_elements(shape.hidden),
        .attention_width = shape.attention.heads * shape.attention.head_dim,
        .attention_window = shape.attention.window,
        .attention_module = parent_of(module_of(names.attention_out[0])),
        .experts_module = names.experts.empty() ? "" : "experts"}});
}

void add_head(const DecoderSpec& spec, const std::shared_ptr<RouterBalance>& balance,
              Model& model) {
  const std::int64_t hidden = spec.block.hidden;
  UnitSpec head{"head", {}};
  for (const std::string& name : spec.final_norm) {
    head.parameters.push_back({name, {hidden}});
  }
  if (!spec.output.empty()) {
    head.parameters.push_back({spec.output, {spec.vocabulary, hidden}});
  }
  model.units.push_back(std::move(head));
  std::vector<WeightRef> refs = all_from(model, model.units.size() - 1);
  if (spec.output.empty()) {
    refs.push_back({0, 0});
  }
  const bool learns =
      !spec.freezes || !spec.freezes(spec.output.empty() ? spec.embedding : spec.output);
  model.segments.push_back(
      {"head", std::move(refs), std::make_shared<HeadSegment>(spec, balance),
       [hidden, vocabulary = spec.vocabulary, learns](const BatchShape& batch) {
         return loss_head_activations(hidden, vocabulary, batch, learns);
       }});
}

}  // namespace

Model make_decoder(const DecoderSpec& spec) {
  Model model;
  const ExpertShape& experts = spec.block.experts;
  const auto balance = spec.router_loss > 0
                           ? std::make_shared<RouterBalance>(spec.router_loss, experts.count,
                                                             experts.per_token, spec.layers)
                           : nullptr;
  add_embedding(spec, model);
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    add_layer(spec, layer, balance, model);
  }
  add_head(spec, balance, model);
  model.heads = {.heads = spec.block.attention.heads, .kv_heads = spec.block.attention.kv_heads};
  for (UnitSpec& unit : model.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      parameter.frozen =
          spec.freezes && !is_adapter(parameter.name) && spec.freezes(parameter.name);
    }
  }
  return model;
}

}  // namespace tandem
