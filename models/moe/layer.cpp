#include "models/moe/layer.hpp"

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include "engine/exchange/exchange_tensor.hpp"
#include "models/io/random_init.hpp"
#include "models/layers/fused_op.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr double kJitter = 1e-2;

enum class Purpose : std::uint8_t { kSelection, kChoice, kJitter };

/// U(0, 1), without its ends, as a function of the draw alone.
at::Tensor uniform(const GateDraw& draw, Purpose purpose, at::IntArrayRef shape,
                   at::Device device) {
  at::Tensor values = at::empty(shape, at::kFloat);
  const std::string name = fmt::format("gate {} of micro-batch {}, {}", draw.gate, draw.micro_batch,
                                       static_cast<int>(purpose));
  float* const out = values.data_ptr<float>();
  fill_uniform(name, draw.seed, 0.5, 0, values.numel(), out);
  constexpr float kLeast = 1e-6F;
  return values.add_(0.5).clamp_(kLeast, 1 - kLeast).to(device);
}

at::Tensor gumbel(const at::Tensor& u) { return -(-u.log()).log(); }

/// Runs of the first dimension to the group's ranks, and theirs in the same order. Its backward is
/// the same exchange, since a run's gradient belongs where the run came from.
class ExchangeOp final : public FusedOp {
 public:
  explicit ExchangeOp(RankExchange& exchange) : exchange_(exchange) {}

  Tensors forward(const Tensors& inputs, bool /*keep*/) override {
    return {exchange_tensor(exchange_, inputs[0])};
  }
  Tensors backward(const Tensors& gradients) override {
    return {gradients[0].defined() ? exchange_tensor(exchange_, gradients[0]) : at::Tensor()};
  }

 private:
  RankExchange& exchange_;
};

/// Row of each choice in [E * C]; E * C where it was dropped.
at::Tensor rows_of(const GateRoutes& routes, std::int64_t experts) {
  return (routes.expert * routes.capacity + routes.location)
      .masked_fill(routes.kept.logical_not(), experts * routes.capacity);
}

/// With a row of zeros behind, for places that are empty and choices that were dropped.
at::Tensor with_zeros(const at::Tensor& rows) {
  return at::cat({rows, at::zeros({1, rows.size(1)}, rows.options())});
}

}  // namespace

GateNoise gate_noise(const GateOptions& options, const GateDraw& draw, std::int64_t tokens,
                     std::int64_t experts, at::Device device) {
  GateNoise noise;
  if (options.k == 1 && options.drops_tokens && options.random_token_selection) {
    noise.uniform = uniform(draw, Purpose::kSelection, {tokens, experts}, device);
  }
  const bool samples_first =
      options.k == 1 && options.noise == GateNoisePolicy::kRSample && draw.training();
  if (samples_first || (options.k == 2 && options.samples_second)) {
    noise.gumbel = gumbel(uniform(draw, Purpose::kChoice, {tokens, experts}, device));
  }
  return noise;
}

Experts spread_over_ranks(RankExchange& exchange, Experts part) {
  const auto exchanged = [&exchange](const at::Tensor& runs) {
    return run_fused(c10::make_intrusive<ExchangeOp>(exchange), {runs})[0];
  };
  return [exchanged, part = std::move(part)](const at::Tensor& tokens) {
    TANDEM_CHECK(tokens.dim() == 3, "experts see [E, C, H]");
    return exchanged(part(exchanged(tokens)));
  };
}

MoeOutput mixture_of_experts(const at::Tensor& x, const at::Tensor& gate,
                             const GateOptions& options, const GateDraw& draw,
                             const Experts& experts) {
  const std::int64_t tokens = x.size(0);
  const std::int64_t count = gate.size(0);
  at::Tensor seen = x.to(at::kFloat);
  if (options.noise == GateNoisePolicy::kJitter && draw.training()) {
    const at::Tensor u = uniform(draw, Purpose::kJitter, x.sizes(), x.device());
    seen = seen * (u * (2 * kJitter) + (1 - kJitter));
  }
  const at::Tensor logits = at::linear(seen, gate.to(at::kFloat));
  const GateRoutes routes =
      route(logits, options, gate_noise(options, draw, tokens, count, x.device()), draw.training());

  const at::Tensor rows = rows_of(routes, count);  // [k, S]
  const std::int64_t places = count * routes.capacity;
  const at::Tensor token = at::arange(tokens, rows.options()).expand(rows.sizes());
  const at::Tensor sender = at::full({places + 1}, tokens, rows.options())
                                .scatter_(0, rows.reshape(-1), token.reshape(-1));
  const at::Tensor sent = with_zeros(x).index_select(0, sender.narrow(0, 0, places));
  const at::Tensor answers = experts(sent.view({count, routes.capacity, x.size(1)}));
  const at::Tensor back = with_zeros(answers.reshape({places, -1}));
  at::Tensor y;
  for (std::int64_t j = 0; j < rows.size(0); ++j) {
    const at::Tensor part =
        back.index_select(0, rows[j]) * routes.weight[j].unsqueeze(1).to(back.scalar_type());
    y = y.defined() ? y + part : part;
  }
  return {.y = y, .aux_loss = routes.aux_loss, .counts = routes.counts};
}

at::Tensor residual_mix(const at::Tensor& of_experts, const at::Tensor& of_mlp,
                        const at::Tensor& coefficient) {
  const at::Tensor share = at::softmax(coefficient, 1);
  return of_experts * share.narrow(1, 0, 1) + of_mlp * share.narrow(1, 1, 1);
}

}  // namespace tandem
