#include "models/cifar/moe_net.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include "models/cifar/fused_net.hpp"
#include "models/cifar/net.hpp"
#include "models/moe/layer.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::int64_t kWidth = 84;  // of fc2's output, and of every expert

std::string mixture_name(std::size_t mixture) { return fmt::format("moe_layer_list.{}.", mixture); }

std::string expert_name(std::size_t mixture, std::int64_t expert) {
  return fmt::format("{}deepspeed_moe.experts.deepspeed_experts.{}.", mixture_name(mixture),
                     expert);
}

/// The parameters that are not an expert's: the trunk, gates, coefficients, the residual layer,
/// fc4; in the order of Shared.
std::vector<ParameterSpec> shared_parameters(const CifarMoe& shape) {
  std::vector<ParameterSpec> all(cifar_parameters().begin(),
                                 cifar_parameters().begin() + kCifarTrunkParameters);
  for (std::size_t m = 0; m < shape.experts.size(); ++m) {
    all.push_back({mixture_name(m) + "deepspeed_moe.gate.wg.weight", {shape.experts[m], kWidth}});
  }
  if (shape.residual) {
    for (std::size_t m = 0; m < shape.experts.size(); ++m) {
      all.push_back({mixture_name(m) + "coefficient.weight", {2, kWidth}});
      all.push_back({mixture_name(m) + "coefficient.bias", {2}});
    }
    all.push_back({mixture_name(0) + "mlp.weight", {kWidth, kWidth}});
    all.push_back({mixture_name(0) + "mlp.bias", {kWidth}});
  }
  all.push_back({"fc4.weight", {kCifarClasses, kWidth}});
  all.push_back({"fc4.bias", {kCifarClasses}});
  return all;
}

/// Weights and biases in turn.
std::vector<ParameterSpec> expert_parameters(const CifarMoe& shape, std::size_t mixture) {
  std::vector<ParameterSpec> all;
  for (std::int64_t e = 0; e < shape.experts[mixture]; ++e) {
    all.push_back({expert_name(mixture, e) + "weight", {kWidth, kWidth}, shape.expert_group});
    all.push_back({expert_name(mixture, e) + "bias", {kWidth}, shape.expert_group});
  }
  return all;
}

class MoeNetSegment final : public Segment {
 public:
  explicit MoeNetSegment(CifarMoe shape) : shape_(std::move(shape)) {}

  at::Tensor forward(const SegmentContext& context, const at::Tensor& /*input*/) const override {
    std::size_t next = kCifarTrunkParameters;
    const auto take = [&]() -> const at::Tensor& { return context.weights[next++]->value; };
    std::vector<at::Tensor> gates;
    for (std::size_t m = 0; m < shape_.experts.size(); ++m) {
      gates.push_back(take());
    }
    std::vector<at::Tensor> coefficients;  // weight, bias of each mixture
    std::vector<at::Tensor> mlp;           // weight, bias
    for (std::size_t i = 0; shape_.residual && i < 2 * shape_.experts.size(); ++i) {
      coefficients.push_back(take());
    }
    for (std::size_t i = 0; shape_.residual && i < 2; ++i) {
      mlp.push_back(take());
    }
    const at::Tensor last = take();
    const at::Tensor last_bias = take();

    at::Tensor x = trunk(context);
    at::Tensor aux_loss;
    for (std::size_t m = 0; m < shape_.experts.size(); ++m) {
      Experts experts = [&](const at::Tensor& tokens) {
        return expert_layers(take, shape_.experts[m], tokens);
      };
      if (shape_.expert_ranks > 1) {
        experts = spread_over_ranks(*context.exchange, std::move(experts));
      }
      const GateDraw draw = {.seed = shape_.seed, .gate = m, .micro_batch = context.batch.number};
      const MoeOutput mixed = mixture_of_experts(x, gates[m], shape_.gate, draw, experts);
      aux_loss = aux_loss.defined() ? aux_loss + mixed.aux_loss : mixed.aux_loss;
      x = shape_.residual
              ? residual_mix(mixed.y, at::linear(x, mlp[0], mlp[1]),
                             at::linear(x, coefficients[2 * m], coefficients[2 * m + 1]))
              : mixed.y;
    }
    const at::Tensor logits = at::linear(x, last, last_bias).to(at::kFloat);
    if (context.head_output == HeadOutput::kLogits) {
      return logits;
    }
    const at::Tensor loss = at::cross_entropy_loss(logits, context.batch.labels);
    return shape_.aux_loss_coefficient == 0 ? loss : loss + shape_.aux_loss_coefficient * aux_loss;
  }

 private:
  static at::Tensor trunk(const SegmentContext& context) {
    const auto weights = context.weights.first(kCifarTrunkParameters);
    const at::Tensor& first = weights.front()->value;
    if (fused_cifar_takes(first)) {
      return fused_cifar_trunk(context.batch.inputs, weights);
    }
    std::vector<at::Tensor> values;
    for (const Weight* weight : weights) {
      values.push_back(weight->value);
    }
    return cifar_trunk(context.batch.inputs.to(first.scalar_type()), values);
  }

  /// One matmul for all experts. tokens: [E, C, 84].
  template <class Take>
  static at::Tensor expert_layers(Take& take, std::int64_t experts, const at::Tensor& tokens) {
    std::vector<at::Tensor> weights;
    std::vector<at::Tensor> biases;
    for (std::int64_t e = 0; e < experts; ++e) {
      weights.push_back(take().t());
      biases.push_back(take());
    }
    return at::baddbmm(at::stack(biases).unsqueeze(1), tokens, at::stack(weights));
  }

  CifarMoe shape_;
};

}  // namespace

std::vector<ParameterSpec> cifar_moe_parameters(const CifarMoe& shape) {
  std::vector<ParameterSpec> all = shared_parameters(shape);
  for (std::size_t m = 0; m < shape.experts.size(); ++m) {
    require_gate(shape.gate, shape.experts[m], "moe");
    if (shape.experts[m] % shape.expert_ranks != 0) {
      throw user_error("moe",
                       "the {} experts of mixture {} cannot be spread over {} ranks alike; use a "
                       "divisor of {}",
                       shape.experts[m], m, shape.expert_ranks, shape.experts[m]);
    }
    const std::vector<ParameterSpec> experts = expert_parameters(shape, m);
    all.insert(all.end(), experts.begin(), experts.end());
  }
  return all;
}

ParameterSource cifar_moe_initial_weights(const CifarMoe& shape, std::uint64_t seed) {
  const std::vector<ParameterSpec> all = cifar_moe_parameters(shape);
  return [all, seed](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end,
                     float* out) {
    const std::string kind = parameter.name.substr(parameter.name.rfind('.'));
    const bool is_copy = parameter.name.find("deepspeed_experts.") != std::string::npos ||
                         parameter.name.find(".mlp.") != std::string::npos;
    fill_layer(all, parameter, is_copy ? "fc3" + kind : parameter.name, seed, begin, end, out);
  };
}

Model make_cifar_moe_model(const CifarMoe& shape, ParameterSource source) {
  (void)cifar_moe_parameters(shape);  // the gates can be
  Model model;
  model.units.push_back({"net", shared_parameters(shape)});
  for (std::size_t m = 0; m < shape.experts.size(); ++m) {
    model.units.push_back({.name = fmt::format("experts {}", m),
                           .parameters = expert_parameters(shape, m),
                           .experts = shape.experts[m],
                           .ep_size = shape.expert_ranks});
  }
  SegmentSpec segment{
      .name = "net", .run = std::make_shared<MoeNetSegment>(shape), .one_thread = true};
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    for (std::size_t i = 0; i < model.units[unit].parameters.size(); ++i) {
      segment.weights.push_back({.unit = unit, .parameter = i});
    }
    std::ranges::copy(cifar_uses(model.units[unit].parameters),
                      std::back_inserter(segment.cost.uses));
  }
  for (std::size_t i = 0; i < segment.weights.size(); ++i) {  // one layer, of all mixtures
    const WeightRef& ref = segment.weights[i];
    if (model.units[ref.unit].parameters[ref.parameter].name.ends_with(".mlp.weight")) {
      segment.cost.uses[i] = static_cast<std::int64_t>(shape.experts.size());
    }
  }
  for (const std::int64_t experts : shape.experts) {
    segment.cost.idle_weights += (experts - shape.gate.k) * kWidth * kWidth;
  }
  segment.cost.experts_module = "experts";
  model.segments.push_back(std::move(segment));
  model.source = std::move(source);
  return model;
}

}  // namespace tandem
