// tests/models/layers/attention_reference.hpp — attention by the book, in double precision: norms,
// rotation, window, sinks, dropout.
#pragma once

#include <cmath>
#include <cstdint>

#include <ATen/ATen.h>

namespace tandem::test {

struct AttentionCase {
  std::int64_t batch, length, heads, kv_heads, head_dim;
  bool norms, rotary;
  std::int64_t window = 0;
  bool sinks = false;
};

inline at::Tensor rms(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.pow(2).mean(-1, true) + eps) * weight;
}

inline at::Tensor rotated(const at::Tensor& x_BHTD, double theta) {
  const std::int64_t dim = x_BHTD.size(-1);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor frequency = at::pow(theta, -at::arange(0, dim, 2, options) / dim);
  const at::Tensor angle = at::outer(at::arange(x_BHTD.size(2), options), frequency);
  const at::Tensor cosine = at::cat({angle, angle}, 1).cos();
  const at::Tensor sine = at::cat({angle, angle}, 1).sin();
  const at::Tensor halves =
      at::cat({-x_BHTD.narrow(-1, dim / 2, dim / 2), x_BHTD.narrow(-1, 0, dim / 2)}, -1);
  return x_BHTD * cosine + halves * sine;
}

/// A tensor that a case does not use may be undefined. sinks: [heads]; factors, for the
/// probabilities: [B * heads * T, T].
struct AttentionTensors {
  at::Tensor q_norm;
  at::Tensor k_norm;
  at::Tensor sinks;
  at::Tensor factors;
};

/// qkv: [B * T, (heads + 2 kv_heads) * head_dim] -> [B * T, heads * head_dim].
inline at::Tensor attention_by_the_book(const AttentionCase& c, const at::Tensor& qkv,
                                        const AttentionTensors& t) {
  const auto heads_of = [&](std::int64_t first, std::int64_t count) {
    return qkv.narrow(1, first * c.head_dim, count * c.head_dim)
        .view({c.batch, c.length, count, c.head_dim})
        .transpose(1, 2);
  };
  at::Tensor q = heads_of(0, c.heads);
  at::Tensor k = heads_of(c.heads, c.kv_heads);
  const at::Tensor v = heads_of(c.heads + c.kv_heads, c.kv_heads);
  if (c.norms) {
    q = rms(q, t.q_norm, 1e-6);
    k = rms(k, t.k_norm, 1e-6);
  }
  if (c.rotary) {
    q = rotated(q, 1e4);
    k = rotated(k, 1e4);
  }
  const std::int64_t group = c.heads / c.kv_heads;
  at::Tensor scores =
      at::matmul(q, k.repeat_interleave(group, 1).transpose(2, 3)) / std::sqrt(c.head_dim);
  at::Tensor hidden = at::ones({c.length, c.length}, at::kBool).triu(1);
  if (c.window > 0) {
    hidden = hidden.logical_or(at::ones({c.length, c.length}, at::kBool).tril(-c.window));
  }
  scores = scores.masked_fill(hidden, -INFINITY);
  if (c.sinks) {
    scores = at::cat({scores, t.sinks.view({1, -1, 1, 1}).expand({c.batch, -1, c.length, 1})}, -1);
  }
  at::Tensor weights = at::softmax(scores, -1).narrow(-1, 0, c.length);
  if (t.factors.defined()) {
    weights = weights * t.factors.view(weights.sizes());
  }
  return at::matmul(weights, v.repeat_interleave(group, 1))
      .transpose(1, 2)
      .reshape({c.batch * c.length, c.heads * c.head_dim});
}

}  // namespace tandem::test
