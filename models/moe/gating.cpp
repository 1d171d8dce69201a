#include "models/moe/gating.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Functions.h>

#include "runtime/util/check.hpp"

namespace tandem {
namespace {

std::int64_t capacity_of(const at::Tensor& logits, const GateRule& rule) {
  const double share = static_cast<double>(logits.size(0)) / static_cast<double>(logits.size(1));
  const auto wanted = static_cast<std::int64_t>(
      std::ceil(share * (rule.capacity_factor * static_cast<double>(rule.k))));
  // A place that no token could ever take would only be padding.
  return std::min(std::max(wanted, rule.min_capacity), std::max<std::int64_t>(logits.size(0), 1));
}

std::int64_t largest_count(const at::Tensor& counts) { return counts.max().item<std::int64_t>(); }

at::Tensor one_hot(const at::Tensor& index, const at::Tensor& like) {
  return at::zeros(like.sizes(), like.options().dtype(at::kLong))
      .scatter_(1, index.unsqueeze(1), 1);
}

/// mean(p) . mean(mask) over the experts.
at::Tensor balance(const at::Tensor& p, const at::Tensor& mask) {
  return (p.mean(0) * mask.to(at::kFloat).mean(0)).sum();
}

/// Of each column the `capacity` greatest scores, the first of equal ones: 0 or 1.
at::Tensor greatest_of_columns(const at::Tensor& scores, std::int64_t capacity) {
  const at::Tensor order =
      std::get<1>(at::sort(scores, /*stable=*/true, /*dim=*/0, /*descending=*/true));
  const at::Tensor chosen = order.narrow(0, 0, std::min(capacity, scores.size(0)));
  return at::zeros(scores.sizes(), scores.options().dtype(at::kLong)).scatter_(0, chosen, 1);
}

at::Tensor places_of(const at::Tensor& mask) { return mask.cumsum(0) - 1; }

at::Tensor normalised(const at::Tensor& weight) {
  return weight / weight.sum(1, true).clamp_min(std::numeric_limits<float>::epsilon());
}

Gated gate_one(const at::Tensor& logits, const GateRule& rule, const GateNoise& noise) {
  const at::Tensor p = at::softmax(logits, 1);
  const at::Tensor scores = noise.gumbel.defined() ? logits.detach() + noise.gumbel : p.detach();
  at::Tensor mask = one_hot(scores.argmax(1), logits);
  if (noise.used.defined()) {
    mask = mask * noise.used.to(at::kLong).unsqueeze(1);
  }
  Gated g;
  g.counts = mask.sum(0);
  g.loss = balance(p, mask) * static_cast<double>(logits.size(1));
  g.capacity = rule.drop_tokens ? capacity_of(logits, rule) : largest_count(g.counts);
  const at::Tensor priority = noise.uniform.defined() ? mask * noise.uniform : mask.to(at::kFloat);
  mask = mask * greatest_of_columns(priority, g.capacity);
  g.kept = mask.to(at::kBool);
  g.place = places_of(mask);
  g.weight = p * mask;
  return g;
}

Gated gate_two(const at::Tensor& logits, const GateRule& rule, const GateNoise& noise) {
  const at::Tensor p = at::softmax(logits, 1);
  const at::Tensor first = one_hot(p.detach().argmax(1), logits);
  const at::Tensor rest = noise.gumbel.defined() ? logits.detach() + noise.gumbel : logits.detach();
  const at::Tensor second = one_hot(
      rest.masked_fill(first.to(at::kBool), -std::numeric_limits<float>::infinity()).argmax(1),
      logits);
  Gated g;
  g.counts = (first + second).sum(0);
  g.loss = balance(p, first) * static_cast<double>(logits.size(1));
  g.capacity = rule.drop_tokens ? capacity_of(logits, rule) : largest_count(g.counts);
  // Second choices come after all first ones.
  g.place = places_of(first) * first + (places_of(second) + first.sum(0)) * second;
  g.kept = (first + second).to(at::kBool) & (g.place < g.capacity);
  g.weight = normalised(p * g.kept);
  return g;
}

Gated gate_more(const at::Tensor& logits, const GateRule& rule) {
  const at::Tensor p = at::softmax(logits, 1);
  const at::Tensor order = std::get<1>(at::sort(logits.detach(), /*stable=*/true, 1, true));
  at::Tensor mask = at::zeros(logits.sizes(), logits.options().dtype(at::kLong))
                        .scatter_(1, order.narrow(1, 0, rule.k), 1);
  Gated g;
  g.counts = mask.sum(0);
  g.loss = balance(p, mask) * (static_cast<double>(logits.size(1)) / static_cast<double>(rule.k));
  g.capacity = rule.drop_tokens ? capacity_of(logits, rule) : largest_count(g.counts);
  if (rule.drop_tokens && rule.drop_policy == DropPolicy::kProbability) {
    mask = mask * greatest_of_columns(p.detach() * mask, g.capacity);
  }
  g.place = places_of(mask);
  g.kept = mask.to(at::kBool) & (g.place < g.capacity);
  g.weight = normalised(p * g.kept);
  return g;
}

/// Of each token and expert the flat index of its place; one past the last where it has none.
at::Tensor flat_places(const Gated& g) {
  const at::Tensor experts = at::arange(g.place.size(1), g.place.options());
  return at::where(g.kept, experts * g.capacity + g.place,
                   at::full({}, g.place.size(1) * g.capacity, g.place.options()));
}

/// `rows` with one of zeros behind them.
at::Tensor padded(const at::Tensor& rows) {
  return at::cat({rows, at::zeros({1, rows.size(1)}, rows.options())});
}

}  // namespace

Gated gate(const at::Tensor& logits, const GateRule& rule, const GateNoise& noise) {
  TANDEM_CHECK(1 <= rule.k && rule.k <= logits.size(1), "as many experts as a token takes");
  return rule.k == 1   ? gate_one(logits, rule, noise)
         : rule.k == 2 ? gate_two(logits, rule, noise)
                       : gate_more(logits, rule);
}

at::Tensor dispatch(const at::Tensor& x, const Gated& gated) {
  const std::int64_t experts = gated.place.size(1);
  const std::int64_t places = experts * gated.capacity;
  const at::Tensor tokens =
      at::arange(x.size(0), gated.place.options()).unsqueeze(1).expand({-1, experts});
  const at::Tensor token_of_place =
      at::full({places + 1}, x.size(0), gated.place.options())
          .scatter_(0, flat_places(gated).reshape({-1}), tokens.reshape({-1}))
          .narrow(0, 0, places);
  return padded(x).index_select(0, token_of_place).view({experts, gated.capacity, x.size(1)});
}

at::Tensor combine(const at::Tensor& y, const Gated& gated) {
  const at::Tensor rows = padded(y.reshape({-1, y.size(2)}))
                              .index_select(0, flat_places(gated).reshape({-1}))
                              .view({gated.place.size(0), y.size(0), y.size(2)});
  return (rows * gated.weight.to(y.scalar_type()).unsqueeze(2)).sum(1);
}

}  // namespace tandem
