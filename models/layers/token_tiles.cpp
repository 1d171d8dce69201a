#include "models/layers/token_tiles.hpp"

#include <utility>

#include <ATen/ops/empty.h>

#include "models/layers/dropout.hpp"

namespace tandem {

LinearWeights from_token(LinearWeights linear, std::int64_t begin) {
  linear.adapters.drop = from_row(linear.adapters.drop, begin);
  return linear;
}

std::vector<Weight*> TiledGradients::of(std::span<Weight* const> weights) {
  JoinedWeights target(weights);
  if (!several_ || !target.wants_gradient() || weights.front()->value.scalar_type() == at::kFloat) {
    return {weights.begin(), weights.end()};
  }
  std::int64_t elements = 0;
  for (const Weight* weight : weights) {
    elements += weight->value.numel();
  }
  Sums& sums = sums_.emplace_back();
  sums.target = std::move(target);
  sums.values = at::empty({elements}, at::kFloat);
  std::vector<Weight*> parts;
  std::int64_t begin = 0;
  for (const Weight* weight : weights) {
    const at::Tensor of_part = sums.values.narrow(0, begin, weight->value.numel());
    sums.parts.push_back(
        std::make_unique<Weight>(Weight{.value = weight->value,
                                        .grad = of_part.view(weight->value.sizes()),
                                        .wants_grad = weight->wants_grad}));
    parts.push_back(sums.parts.back().get());
    begin += weight->value.numel();
  }
  return parts;
}

JoinedWeights TiledGradients::of(const JoinedWeights& weights) {
  return weights.empty() ? weights : JoinedWeights(of(weights.parts()));
}

LinearWeights TiledGradients::of(const LinearWeights& linear) {
  LinearWeights tiled = linear;
  tiled.weight = of(linear.weight);
  tiled.bias = of(linear.bias);
  tiled.adapters.a = of(linear.adapters.a);
  for (Adapters::Part& part : tiled.adapters.parts) {
    part.b = of(part.b);
  }
  return tiled;
}

Norm TiledGradients::of(const Norm& norm) {
  return {norm.kind, norm.eps, of(norm.weight), of(norm.bias)};
}

void TiledGradients::write() {
  for (const Sums& sums : std::exchange(sums_, {})) {
    sums.target.write_gradient(static_cast<const float*>(sums.values.const_data_ptr()));
  }
}

}  // namespace tandem
