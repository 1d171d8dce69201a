// models/gpu/row_kernels-inl.hpp — the arithmetic of row_kernels.hpp for one row, or one element,
// by a group of threads: a warp or a block on a GPU, or the one thread of the host that is all of
// its group. C++17; for nvcc and the host's compiler.
//
// A Group has first() and size(): this thread's part of a row is i = first(), first() + size() ...
// Its sum() and greatest() combine one number of each thread in a fixed order and give all threads
// the same result; no thread passes them before all have come.
#pragma once

#include <cmath>
#include <cstdint>

#include "models/gpu/elements-inl.hpp"
#include "models/gpu/row_kernels.hpp"

namespace tandem::rows {

/// Writes element i of a weight's gradient, or adds to it.
TANDEM_ROWS void give(const WeightGradient& gradient, std::int64_t i, float sum) {
  with_type(gradient.type, [&](auto type) {
    using Type = decltype(type);
    auto* to = static_cast<typename Type::Stored*>(gradient.to) + i;
    *to = Type::store(gradient.add ? Type::load(*to) + sum : sum);
  });
}

// ---- norms ----
/// kCount elements of a row at a time.
template <class Type, int kCount>
struct Rms {
  using Stored = typename Type::Stored;
  using Elements = Pack<Type, kCount>;
  RmsRows s;

  template <class Group>
  TANDEM_ROWS float inverse(const Stored* x, Group group) const {
    float squares = 0;
    for (std::int64_t i = group.first() * kCount; i < s.width; i += group.size() * kCount) {
      const Elements some = Elements::at(x + i);
      for (int k = 0; k < kCount; ++k) {
        squares += Type::load(some.of[k]) * Type::load(some.of[k]);
      }
    }
    return 1.0F / sqrtf(group.sum(squares) / static_cast<float>(s.width) + s.eps);
  }
  /// Reads one weight at a time: in the unit's block a weight begins where the one before it ends,
  /// so it may not be aligned.
  TANDEM_ROWS float weight(std::int64_t i) const {
    return Type::load(static_cast<const Stored*>(s.weight)[i]) + s.offset;
  }

  template <class Group>
  TANDEM_ROWS void forward(const Stored* x, Stored* y, Group group) const {
    const float scale = inverse(x, group);
    for (std::int64_t i = group.first() * kCount; i < s.width; i += group.size() * kCount) {
      Elements some = Elements::at(x + i);
      for (int k = 0; k < kCount; ++k) {
        some.of[k] = Type::store(Type::load(some.of[k]) * scale * weight(i + k));
      }
      some.to(y + i);
    }
  }

  /// `sums`: [width] of this group's threads, each of which adds to its own elements.
  template <class Group>
  TANDEM_ROWS void backward(const Stored* x, const Stored* dy, const Stored* residual, Stored* dx,
                            float* sums, Group group) const {
    const float scale = inverse(x, group);
    float products = 0;
    for (std::int64_t i = group.first() * kCount; i < s.width; i += group.size() * kCount) {
      const Elements some = Elements::at(x + i);
      const Elements given = Elements::at(dy + i);
      for (int k = 0; k < kCount; ++k) {
        const float product = Type::load(given.of[k]) * Type::load(some.of[k]) * scale;
        sums[i + k] += product;
        products += product * weight(i + k);
      }
    }
    const float mean = group.sum(products) / static_cast<float>(s.width);
    for (std::int64_t i = group.first() * kCount; i < s.width; i += group.size() * kCount) {
      const Elements some = Elements::at(x + i);
      Elements past{};
      if (residual != nullptr) {
        past = Elements::at(residual + i);
      }
      Elements out = Elements::at(dy + i);
      for (int k = 0; k < kCount; ++k) {
        const float normed = Type::load(some.of[k]) * scale;
        out.of[k] = Type::store(scale * (Type::load(out.of[k]) * weight(i + k) - normed * mean) +
                                (residual == nullptr ? 0.0F : Type::load(past.of[k])));
      }
      out.to(dx + i);
    }
  }
};

// ---- heads ----
template <class Type>
struct Heads {
  using Stored = typename Type::Stored;
  HeadRows s;
  const Stored* qkv;

  TANDEM_ROWS std::int64_t all() const { return s.heads + 2 * s.kv_heads; }
  TANDEM_ROWS std::int64_t items() const { return s.rows * all(); }
  TANDEM_ROWS bool is_q(std::int64_t head) const { return head < s.heads; }
  TANDEM_ROWS bool is_v(std::int64_t head) const { return head >= s.heads + s.kv_heads; }
  TANDEM_ROWS const Stored* norm_of(std::int64_t head) const {
    return static_cast<const Stored*>(is_v(head) ? nullptr : is_q(head) ? s.q_norm : s.k_norm);
  }
  /// Returns the offset of a row's head in the matrix of all q, all k or all v.
  TANDEM_ROWS std::int64_t place(std::int64_t row, std::int64_t head) const {
    const std::int64_t in = is_q(head) ? head : (head - s.heads) % s.kv_heads;
    return (row * (is_q(head) ? s.heads : s.kv_heads) + in) * s.head_dim;
  }
  template <class Group>
  TANDEM_ROWS float inverse_rms(const Stored* x, Group group) const {
    float squares = 0;
    for (std::int64_t i = group.first(); i < s.head_dim; i += group.size()) {
      const float value = Type::load(x[i]);
      squares += value * value;
    }
    return 1.0F / sqrtf(group.sum(squares) / static_cast<float>(s.head_dim) + s.norm_eps);
  }
  TANDEM_ROWS float weight(const Stored* norm, std::int64_t i) const {
    return norm == nullptr ? 1.0F : Type::load(norm[i]) + s.norm_offset;
  }

  /// Item i: head i % all() of row i / all().
  template <class Group>
  TANDEM_ROWS void forward(std::int64_t item, Stored* q, Stored* k, Stored* v, Group group) const {
    const std::int64_t row = item / all();
    const std::int64_t head = item % all();
    const Stored* x = qkv + item * s.head_dim;
    Stored* y = (is_v(head) ? v : is_q(head) ? q : k) + place(row, head);
    if (is_v(head)) {
      for (std::int64_t i = group.first(); i < s.head_dim; i += group.size()) {
        y[i] = x[i];
      }
      return;
    }
    const Stored* norm = norm_of(head);
    const float inverse = norm == nullptr ? 1.0F : inverse_rms(x, group);
    const std::int64_t half = s.rotary / 2;
    const std::int64_t angle = row % s.length * half;
    for (std::int64_t i = group.first(); i < half; i += group.size()) {
      const float c = s.cosine[angle + i];
      const float d = s.sine[angle + i];
      const float a = Type::load(x[i]) * inverse * weight(norm, i);
      const float b = Type::load(x[half + i]) * inverse * weight(norm, half + i);
      y[i] = Type::store(a * c - b * d);
      y[half + i] = Type::store(b * c + a * d);
    }
    for (std::int64_t i = s.rotary + group.first(); i < s.head_dim; i += group.size()) {
      y[i] = Type::store(Type::load(x[i]) * inverse * weight(norm, i));
    }
  }

  /// Calls call(i, du) for this thread's elements of a head: du is the gradient before the
  /// rotation, computed from `dy`, the gradient behind it.
  template <class Group, class Call>
  TANDEM_ROWS void for_gradients(const Stored* dy, std::int64_t angle, Group group,
                                 Call call) const {
    const std::int64_t half = s.rotary / 2;
    for (std::int64_t i = group.first(); i < half; i += group.size()) {
      const float c = s.cosine[angle + i];
      const float d = s.sine[angle + i];
      const float first = Type::load(dy[i]);
      const float second = Type::load(dy[half + i]);
      call(i, first * c + second * d);
      call(half + i, second * c - first * d);
    }
    for (std::int64_t i = s.rotary + group.first(); i < s.head_dim; i += group.size()) {
      call(i, Type::load(dy[i]));
    }
  }

  /// `sums`: [head_dim] of this group's threads, each of which adds to its own elements; null
  /// without norms.
  template <class Group>
  TANDEM_ROWS void backward(std::int64_t item, const HeadGradients& of, Stored* dqkv, float* q_sums,
                            float* k_sums, Group group) const {
    const std::int64_t row = item / all();
    const std::int64_t head = item % all();
    const Stored* x = qkv == nullptr ? nullptr : qkv + item * s.head_dim;
    const Stored* dy = static_cast<const Stored*>(is_v(head)   ? of.v
                                                  : is_q(head) ? of.q
                                                               : of.k) +
                       place(row, head);
    Stored* dx = dqkv + item * s.head_dim;
    if (is_v(head)) {
      for (std::int64_t i = group.first(); i < s.head_dim; i += group.size()) {
        dx[i] = dy[i];
      }
      return;
    }
    const Stored* norm = norm_of(head);
    float* const sums = is_q(head) ? q_sums : k_sums;
    const std::int64_t angle = row % s.length * (s.rotary / 2);
    float inverse = 1.0F;
    float mean = 0;  // of the normed elements times their gradients
    if (norm != nullptr) {
      inverse = inverse_rms(x, group);
      float products = 0;
      for_gradients(dy, angle, group, [&](std::int64_t i, float du) {
        const float normed = Type::load(x[i]) * inverse;
        sums[i] += du * normed;
        products += du * weight(norm, i) * normed;
      });
      mean = group.sum(products) / static_cast<float>(s.head_dim);
    }
    for_gradients(dy, angle, group, [&](std::int64_t i, float du) {
      const float normed = norm == nullptr ? 0 : Type::load(x[i]) * inverse;
      dx[i] = Type::store(inverse * (du * weight(norm, i) - normed * mean));
    });
  }
};

// ---- activations ----
TANDEM_ROWS float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

/// gelu(x) = x sigmoid(2 z), z = sqrt(2/pi) (x + 0.044715 x^3), and its slope.
struct Gelu {
  float value, slope;
  TANDEM_ROWS explicit Gelu(float x) {
    constexpr float kScale = 1.5957691216057308F;  // 2 sqrt(2/pi)
    constexpr float kCubic = 0.044715F;
    const float s = sigmoid(kScale * (x + kCubic * x * x * x));
    value = x * s;
    slope = s + x * s * (1.0F - s) * kScale * (1.0F + 3.0F * kCubic * x * x);
  }
};

TANDEM_ROWS float cut(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;
}

/// Returns the activation of gate g and up u; an activation with one input takes it as the gate.
TANDEM_ROWS float activated(Activation kind, float g, float u) {
  switch (kind) {
    case Activation::kSwiGlu:
      return g * sigmoid(g) * u;
    case Activation::kGeluTanh:
      return Gelu(g).value;
    case Activation::kGeGluTanh:
      return Gelu(g).value * u;
    case Activation::kClampedSwiGlu:
      break;
  }
  const float gate = cut(g, -INFINITY, kGateLimit);
  return (cut(u, -kGateLimit, kGateLimit) + 1.0F) * gate * sigmoid(kGateSlope * gate);
}

TANDEM_ROWS void activation_slopes(Activation kind, float g, float u, float da, float& dg,
                                   float& du) {
  switch (kind) {
    case Activation::kSwiGlu: {
      const float s = sigmoid(g);
      dg = da * u * s * (1.0F + g * (1.0F - s));
      du = da * g * s;
      return;
    }
    case Activation::kGeluTanh:
      dg = da * Gelu(g).slope;
      return;
    case Activation::kGeGluTanh: {
      const Gelu gelu(g);
      dg = da * u * gelu.slope;
      du = da * gelu.value;
      return;
    }
    case Activation::kClampedSwiGlu:
      break;
  }
  const float gate = cut(g, -INFINITY, kGateLimit);
  const float s = sigmoid(kGateSlope * gate);
  const float up = cut(u, -kGateLimit, kGateLimit) + 1.0F;
  dg = g > kGateLimit ? 0 : da * up * s * (1.0F + kGateSlope * gate * (1.0F - s));
  du = u < -kGateLimit || u > kGateLimit ? 0 : da * gate * s;
}

/// Elements [at, at + kCount) of a matrix with rows of `width`; all of them lie in one row.
template <class Type, int kCount>
struct Gates {
  using Stored = typename Type::Stored;
  Activation kind;
  std::int64_t width;

  /// Returns the offset of the first element's gate. A row's ups lie behind all its gates, or each
  /// up behind its gate.
  TANDEM_ROWS std::int64_t gate_of(std::int64_t at) const {
    if (kind == Activation::kGeluTanh) {
      return at;
    }
    return kind == Activation::kClampedSwiGlu ? 2 * at : at + at / width * width;
  }
  TANDEM_ROWS void read(const Stored* x, std::int64_t at, float* g, float* u) const {
    const bool in_turn = kind == Activation::kClampedSwiGlu;
    const Stored* from = x + gate_of(at);
    const auto first = Pack<Type, kCount>::at(from);
    const auto second = kind == Activation::kGeluTanh
                            ? first
                            : Pack<Type, kCount>::at(in_turn ? from + kCount : from + width);
    for (int k = 0; k < kCount; ++k) {
      if (in_turn) {
        g[k] = Type::load((2 * k < kCount ? first : second).of[2 * k % kCount]);
        u[k] = Type::load((2 * k + 1 < kCount ? first : second).of[(2 * k + 1) % kCount]);
      } else {
        g[k] = Type::load(first.of[k]);
        u[k] = Type::load(second.of[k]);
      }
    }
  }
  TANDEM_ROWS void write(Stored* dx, std::int64_t at, const float* dg, const float* du) const {
    Pack<Type, kCount> first{};
    Pack<Type, kCount> second{};
    const bool in_turn = kind == Activation::kClampedSwiGlu;
    for (int k = 0; k < kCount; ++k) {
      if (in_turn) {
        (2 * k < kCount ? first : second).of[2 * k % kCount] = Type::store(dg[k]);
        (2 * k + 1 < kCount ? first : second).of[(2 * k + 1) % kCount] = Type::store(du[k]);
      } else {
        first.of[k] = Type::store(dg[k]);
        second.of[k] = Type::store(du[k]);
      }
    }
    Stored* to = dx + gate_of(at);
    first.to(to);
    if (kind != Activation::kGeluTanh) {
      second.to(in_turn ? to + kCount : to + width);
    }
  }
  TANDEM_ROWS void forward(const Stored* x, Stored* a, std::int64_t at) const {
    float g[kCount];
    float u[kCount];
    read(x, at, g, u);
    Pack<Type, kCount> out;
    for (int k = 0; k < kCount; ++k) {
      out.of[k] = Type::store(activated(kind, g[k], u[k]));
    }
    out.to(a + at);
  }
  TANDEM_ROWS void backward(const Stored* x, const Stored* da, Stored* dx, std::int64_t at) const {
    float g[kCount];
    float u[kCount];
    float dg[kCount];
    float du[kCount];
    read(x, at, g, u);
    const auto given = Pack<Type, kCount>::at(da + at);
    for (int k = 0; k < kCount; ++k) {
      du[k] = 0;
      activation_slopes(kind, g[k], u[k], Type::load(given.of[k]), dg[k], du[k]);
    }
    write(dx, at, dg, du);
  }
};

// ---- losses ----
/// Writes the loss -log softmax(x)[label] of a row. With a scale the row's logits become scale
/// (softmax(x) - [i = label]). A label outside the row makes both NaN.
template <class Type, int kCount, class Group>
TANDEM_ROWS void loss_of_row(const LossRows& s, std::int64_t row, Group group) {
  using Stored = typename Type::Stored;
  Stored* x = static_cast<Stored*>(s.logits) + row * s.width;
  const std::int64_t label = s.labels[row];
  const std::int64_t packs = s.width / kCount;
  if (label == s.ignored) {
    for (std::int64_t p = group.first(); s.scale != nullptr && p < packs; p += group.size()) {
      Pack<Type, kCount>{}.to(x + p * kCount);
    }
    if (group.first() == 0) {
      s.losses[row] = 0;
    }
    return;
  }
  const bool is_one = label >= 0 && label < s.width;
  const float asked = is_one ? Type::load(x[label]) : NAN;
  // The thread's greatest value, and its sum of exp(x - greatest) so far.
  float most = -INFINITY;
  float sum = 0;
  for (std::int64_t p = group.first(); p < packs; p += group.size()) {
    const auto pack = Pack<Type, kCount>::at(x + p * kCount);
    float here = most;
    for (int k = 0; k < kCount; ++k) {
      const float value = Type::load(pack.of[k]);
      here = value > here ? value : here;
    }
    if (here > most) {
      sum *= expf(most - here);
      most = here;
    }
    if (most == -INFINITY) {
      continue;
    }
    for (int k = 0; k < kCount; ++k) {
      sum += expf(Type::load(pack.of[k]) - most);
    }
  }
  const float greatest = group.greatest(most);
  const float all = group.sum(sum == 0 ? 0 : sum * expf(most - greatest));
  if (group.first() == 0) {
    s.losses[row] = logf(all) + greatest - asked;
  }
  if (s.scale == nullptr) {
    return;
  }
  const float scale = *s.scale;
  const float share = is_one ? scale / all : NAN;
  for (std::int64_t p = group.first(); p < packs; p += group.size()) {
    auto pack = Pack<Type, kCount>::at(x + p * kCount);
    for (int k = 0; k < kCount; ++k) {
      const float of_all = share * expf(Type::load(pack.of[k]) - greatest);
      pack.of[k] = Type::store(p * kCount + k == label ? of_all - scale : of_all);
    }
    pack.to(x + p * kCount);
  }
}

}  // namespace tandem::rows
