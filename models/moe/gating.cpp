#include "models/moe/gating.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Functions.h>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr float kSmallest = std::numeric_limits<float>::epsilon();  // of a sum of weights

/// int64 [S, E], 1 where the expert is the token's.
at::Tensor chosen_mask(const at::Tensor& expert, std::int64_t experts) {
  return at::zeros({expert.size(0), experts}, expert.options()).scatter_(1, expert.unsqueeze(1), 1);
}

/// Place of each marked token among those of its column, [S, E].
at::Tensor places_in(const at::Tensor& mask) { return at::cumsum(mask, 0) - 1; }

/// The entry of each row under its mark; 0 where there is none.
at::Tensor at_mark(const at::Tensor& values, const at::Tensor& mask) {
  return (values * mask).sum(1);
}

/// Marks in each column the `count` rows with the highest values.
at::Tensor best_rows(const at::Tensor& values, std::int64_t count) {
  const at::Tensor rows =
      std::get<1>(values.sort(/*stable=*/true, 0, /*descending=*/true)).narrow(0, 0, count);
  return at::zeros(values.sizes(), values.options().dtype(at::kLong)).scatter_(0, rows, 1);
}

/// E * sum over experts of (mean probability) * (share of choices).
at::Tensor unevenness(const at::Tensor& gates, const at::Tensor& mask) {
  return (gates.mean(0) * mask.to(at::kFloat).mean(0)).sum() * static_cast<double>(gates.size(1));
}

GateRoutes route_top1(const at::Tensor& logits, const GateOptions& options, const GateNoise& noise,
                      bool training, std::int64_t capacity, const at::Tensor& used) {
  const at::Tensor gates = at::softmax(logits, 1);
  const bool samples = training && options.noise == GateNoisePolicy::kRSample;
  const at::Tensor expert = samples ? (logits + noise.gumbel).argmax(1) : gates.argmax(1);
  at::Tensor mask = chosen_mask(expert, logits.size(1));
  if (used.defined()) {
    mask = mask * used.to(at::kLong).unsqueeze(1);
  }
  GateRoutes routes{
      .aux_loss = unevenness(gates, mask), .counts = mask.sum(0), .capacity = capacity};
  if (options.drops_tokens) {
    mask = options.random_token_selection ? mask * best_rows(mask * noise.uniform, capacity)
                                          : mask * places_in(mask).lt(capacity);
  }
  routes.expert = expert.unsqueeze(0);
  routes.location = at_mark(places_in(mask), mask).unsqueeze(0);
  routes.kept = mask.sum(1).gt(0).unsqueeze(0);
  routes.weight = at_mark(gates, mask).unsqueeze(0);
  return routes;
}

/// Each token's k choices over their sum.
void normalise(at::Tensor& weight) {
  weight = weight / weight.sum(0, /*keepdim=*/true).clamp_min(kSmallest);
}

GateRoutes route_top2(const at::Tensor& logits, const GateOptions& options, const GateNoise& noise,
                      std::int64_t capacity) {
  const at::Tensor gates = at::softmax(logits, 1);
  const at::Tensor first = gates.argmax(1);
  at::Tensor first_mask = chosen_mask(first, logits.size(1));
  const at::Tensor others = options.samples_second ? logits + noise.gumbel : logits;
  const at::Tensor second =
      others.masked_fill(first_mask.to(at::kBool), -std::numeric_limits<double>::infinity())
          .argmax(1);
  at::Tensor second_mask = chosen_mask(second, logits.size(1));
  // Second choices take the places behind all first ones.
  const at::Tensor first_places = places_in(first_mask);
  const at::Tensor second_places = places_in(second_mask) + first_mask.sum(0, /*keepdim=*/true);
  GateRoutes routes{.aux_loss = unevenness(gates, first_mask),
                    .counts = (first_mask + second_mask).sum(0),
                    .capacity = capacity};
  if (options.drops_tokens) {
    first_mask = first_mask * first_places.lt(capacity);
    second_mask = second_mask * second_places.lt(capacity);
  }
  routes.expert = at::stack({first, second});
  routes.location =
      at::stack({at_mark(first_places, first_mask), at_mark(second_places, second_mask)});
  routes.kept = at::stack({first_mask.sum(1), second_mask.sum(1)}).gt(0);
  routes.weight = at::stack({at_mark(gates, first_mask), at_mark(gates, second_mask)});
  normalise(routes.weight);
  return routes;
}

GateRoutes route_top_k(const at::Tensor& logits, const GateOptions& options,
                       std::int64_t capacity) {
  const at::Tensor gates = at::softmax(logits, 1);
  const auto [values, order] = logits.sort(/*stable=*/true, 1, /*descending=*/true);
  const at::Tensor experts = order.narrow(1, 0, options.k);  // [S, k]
  at::Tensor mask = at::zeros(logits.sizes(), experts.options()).scatter_(1, experts, 1);
  GateRoutes routes{.aux_loss = unevenness(gates, mask) / static_cast<double>(options.k),
                    .counts = mask.sum(0),
                    .capacity = capacity};
  if (options.drops_tokens && options.drop_policy == DropPolicy::kProbabilities) {
    mask = mask * best_rows(gates.detach() * mask, capacity);
  }
  const at::Tensor places = places_in(mask);
  if (options.drops_tokens && options.drop_policy == DropPolicy::kPosition) {
    mask = mask * places.lt(capacity);
  }
  routes.expert = experts.t().contiguous();
  routes.kept = mask.gather(1, experts).t().gt(0);
  routes.location = places.gather(1, experts).t() * routes.kept;
  routes.weight = (gates * mask).gather(1, experts).t();
  normalise(routes.weight);
  return routes;
}

}  // namespace

std::int64_t gate_capacity(std::int64_t tokens, std::int64_t experts, const GateOptions& options,
                           bool training) {
  if (!options.drops_tokens) {
    return tokens;
  }
  const double factor = (training ? options.capacity_factor : options.eval_capacity_factor) *
                        static_cast<double>(options.k);
  const double share = static_cast<double>(tokens) / static_cast<double>(experts) * factor;
  return std::min(tokens,
                  std::max(static_cast<std::int64_t>(std::ceil(share)), options.min_capacity));
}

GateRoutes route(const at::Tensor& logits, const GateOptions& options, const GateNoise& noise,
                 bool training, const at::Tensor& used) {
  TANDEM_CHECK(logits.dim() == 2 && logits.scalar_type() == at::kFloat, "logits are fp32 [S, E]");
  TANDEM_CHECK(options.k == 1 || !used.defined(), "only the top-1 gate leaves tokens out");
  const std::int64_t capacity = gate_capacity(logits.size(0), logits.size(1), options, training);
  if (options.k == 1) {
    return route_top1(logits, options, noise, training, capacity, used);
  }
  return options.k == 2 ? route_top2(logits, options, noise, capacity)
                        : route_top_k(logits, options, capacity);
}

void require_gate(const GateOptions& options, std::int64_t experts, std::string_view where) {
  if (options.k < 1 || options.k > experts) {
    throw user_error(where, "top-k is {} with {} expert{}; use 1 to {}", options.k, experts,
                     experts == 1 ? "" : "s", experts);
  }
  if (!(options.capacity_factor > 0 && options.eval_capacity_factor > 0)) {
    throw user_error(where, "a capacity factor is {}; use a number above 0",
                     std::min(options.capacity_factor, options.eval_capacity_factor));
  }
  if (options.min_capacity < 0) {
    throw user_error(where, "min_capacity is {}; use 0 or more", options.min_capacity);
  }
}

}  // namespace tandem
