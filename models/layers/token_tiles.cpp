#include "models/layers/token_tiles.hpp"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "models/layers/dropout.hpp"

namespace tandem {

LinearWeights from_token(LinearWeights linear, std::int64_t begin) {
  linear.adapters.drop = from_row(linear.adapters.drop, begin);
  return linear;
}

std::vector<Weight*> TiledGradients::of(std::span<Weight* const> weights) {
  JoinedWeights target(weights);
  const bool in_place =
      !several_ || (blocks_ == 1 && weights.front()->value.scalar_type() == at::kFloat);
  if (in_place || !target.wants_gradient()) {
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
  for (const Weight* weight : weights) {
    sums.parts.push_back(std::make_unique<Weight>(
        Weight{.value = weight->value, .grad = {}, .wants_grad = weight->wants_grad}));
    parts.push_back(sums.parts.back().get());
  }
  point_parts_at(sums);
  return parts;
}

void TiledGradients::point_parts_at(Sums& sums) {
  std::int64_t begin = 0;
  for (const auto& part : sums.parts) {
    part->grad = sums.values.narrow(0, begin, part->value.numel()).view(part->value.sizes());
    part->grad_written = false;
    begin += part->value.numel();
  }
}

// As a counter in binary counts: each bit of the number of blocks is a node of the tree.
void TiledGradients::tile_ends() {
  const std::int64_t block = ended_++;
  for (Sums& sums : sums_) {
    at::Tensor sum = sums.values;
    for (std::int64_t carry = block; carry % 2 == 1; carry /= 2) {
      sums.spare = std::move(sum);
      sum = std::move(sums.done.back());
      sums.done.pop_back();
      sum.add_(sums.spare);
    }
    if (ended_ == blocks_) {
      sums.values = std::move(sum);
      continue;
    }
    sums.done.push_back(std::move(sum));
    sums.values = sums.spare.defined() ? std::move(sums.spare) : at::empty_like(sums.done.back());
    sums.spare.reset();
    point_parts_at(sums);
  }
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
