// models/kernels/attention/attention.cpp — compiled once per SIMD target (foreach_target).
#include "models/kernels/attention/attention.hpp"

#include <algorithm>
#include <cmath>

#include "models/kernels/gemm.hpp"
#include "models/kernels/parallel.hpp"
#include "models/kernels/scratch.hpp"
#include "runtime/util/check.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/kernels/attention/attention.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"
#include "models/kernels/lanes-inl.hpp"
// Need lanes-inl.hpp.
#include "models/kernels/attention/heads-inl.hpp"
#include "models/kernels/dropout-inl.hpp"

#ifndef TANDEM_ATTENTION_SHARED
#define TANDEM_ATTENTION_SHARED
namespace tandem {
namespace {
constexpr std::int64_t kQueryRows = 64;  // of a block at most; part of the result
thread_local Scratch keys_scratch, queries_scratch, scores_scratch, weights_scratch, rows_scratch,
    dscores_scratch, dcontext_scratch, dkeys_scratch, sums_scratch;
}  // namespace
}  // namespace tandem
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

/// What a task works on: the rows of qkv from `row` on, as the positions [AttentionProblem::begin,
/// length).
struct Document {
  std::int64_t row;
  std::int64_t length;
  std::int64_t sequence;
  std::int64_t offset;  // of its first position in the sequence
};

std::int64_t documents_of(const AttentionProblem& p) {
  return p.documents.empty() ? p.batch : static_cast<std::int64_t>(p.documents.size()) - 1;
}

Document document_at(const AttentionProblem& p, std::int64_t i) {
  if (p.documents.empty()) {
    return {i * (p.length - p.begin), p.length, i, 0};
  }
  const auto at = static_cast<std::size_t>(i);
  const std::int64_t row = p.documents[at];
  return {row, p.documents[at + 1] - row, row / p.length, row % p.length};
}

/// One key/value head of one document, with the group of query heads that read it.
template <class T>
class HeadTask {
 public:
  HeadTask(const AttentionProblem& p, std::int64_t task)
      : p_(p),
        group_(p.heads / p.kv_heads),
        kv_head_(task % p.kv_heads),
        document_(document_at(p, task / p.kv_heads)),
        length_(document_.length),
        most_keys_(p.window > 0 ? std::min(length_, p.window + kQueryRows - 1) : length_),
        qkv_(static_cast<const T*>(p.qkv) + document_.row * p.width()) {
    if (p.memory == nullptr) {
      k_ = qkv_ + k_column();
      v_ = qkv_ + v_column();
      kv_stride_ = p.width();
    } else {
      kv_stride_ = 2 * p.kv_heads * p.head_dim;
      k_ = static_cast<const T*>(p.memory) + document_.sequence * p.memory_length * kv_stride_ +
           kv_head_ * p.head_dim;
      v_ = k_ + p.kv_heads * p.head_dim;
    }
    keys_ = keys_scratch.get<T>(size(length_ * p.head_dim));
    queries_ = queries_scratch.get<T>(size(group_ * kQueryRows * p.head_dim));
    scores_ = scores_scratch.get<float>(size(group_ * kQueryRows * most_keys_));
    if constexpr (sizeof(T) == 2) {
      weights_ = weights_scratch.get<T>(size(group_ * kQueryRows * most_keys_));
    } else {
      weights_ = scores_;
    }
    for (std::int64_t t = first_key(p.begin); t < length_; ++t) {
      transform(p.k_norm).forward(k_row(t), t, keys_ + t * p.head_dim);
    }
  }

  void forward(T* context, float* log_sums) {
    float* rows = rows_scratch.get<float>(size(group_ * kQueryRows * p_.head_dim));
    for (std::int64_t begin = p_.begin; begin < length_; begin += kQueryRows) {
      const Block block = make_block(begin);
      score(block);
      for (std::int64_t g = 0; g < group_; ++g) {
        for (std::int64_t i = 0; i < block.rows; ++i) {
          const std::int64_t r = g * block.rows + i;
          const Seen seen = seen_by(block, begin + i);
          const float log_sum = with_drops(block, seen, g, begin + i, [&](auto drop) HWY_ATTR {
            return softmax_row(r, seen, block.keys, sink_of(g), drop);
          });
          if (log_sums != nullptr) {
            log_sums[log_sum_at(g, begin + i)] = log_sum;
          }
        }
      }
      const GemmOperand values{v_row(block.first), kv_stride_, 1, kType};
      matmul(block.all, p_.head_dim, block.keys, {weights_, block.keys, 1, kType}, values,
             {rows, p_.head_dim});
      for (std::int64_t r = 0; r < block.all; ++r) {
        T* to = context + context_at(r / block.rows, begin + r % block.rows);
        for_lanes(p_.head_dim, [&](auto d, auto c) HWY_ATTR {
          store_f32(d, hn::LoadU(d, rows + r * p_.head_dim + c), to + c);
        });
      }
    }
  }

  /// sums: gradients of this task, [2][head_dim] of the norms of q and k, [group] of the sinks.
  void backward(const T* context, const float* log_sums, const T* dcontext, T* dqkv, float* sums) {
    const std::int64_t dim = p_.head_dim;
    float* dq = rows_scratch.get<float>(size(group_ * kQueryRows * dim));
    T* dout = dcontext_scratch.get<T>(size(group_ * kQueryRows * dim));
    float* dscores = dscores_scratch.get<float>(size(group_ * kQueryRows * most_keys_));
    float* dkeys = dkeys_scratch.get<float>(size(2 * length_ * dim));
    float* dvalues = dkeys + length_ * dim;
    std::fill_n(dkeys, 2 * length_ * dim, 0.0F);
    std::fill_n(sums, 2 * dim + group_, 0.0F);
    T* drows = dqkv + document_.row * p_.width();
    for (std::int64_t begin = 0; begin < length_; begin += kQueryRows) {
      const Block block = make_block(begin);
      score(block);
      for (std::int64_t r = 0; r < block.all; ++r) {
        const T* from = dcontext + context_at(r / block.rows, begin + r % block.rows);
        std::copy_n(from, dim, dout + r * dim);
      }
      const GemmOperand values_across{v_row(block.first), 1, kv_stride_, kType};
      matmul(block.all, block.keys, dim, {dout, dim, 1, kType}, values_across,
             {dscores, block.keys});
      for (std::int64_t r = 0; r < block.all; ++r) {
        const std::int64_t g = r / block.rows;
        const std::int64_t t = begin + r % block.rows;
        const float log_sum = log_sums[log_sum_at(g, t)];
        const float towards = delta(dout + r * dim, context + context_at(g, t));
        const Seen seen = seen_by(block, t);
        with_drops(block, seen, g, t, [&](auto drop) HWY_ATTR {
          backward_row(r, seen, block.keys, log_sum, towards, dscores, drop);
        });
        if (p_.sinks != nullptr) {
          sums[2 * dim + g] -= std::exp(sink_of(g) - log_sum) * towards;
        }
      }
      // `weights_` holds P as it was dropped, and dS now lies where the type allows: fp32 in
      // dscores, bf16 over the scores' memory.
      const T* ds = narrow_dscores(dscores);
      const GemmOperand ds_t{ds, 1, block.keys, kType};
      const GemmOperand p_t{weights_, 1, block.keys, kType};
      matmul(block.keys, dim, block.all, p_t, {dout, dim, 1, kType},
             {dvalues + block.first * dim, dim, DType::kF32, GemmStart::kResidual,
              dvalues + block.first * dim, dim});
      matmul(block.keys, dim, block.all, ds_t, {queries_, dim, 1, kType},
             {dkeys + block.first * dim, dim, DType::kF32, GemmStart::kResidual,
              dkeys + block.first * dim, dim});
      matmul(block.all, dim, block.keys, {ds, block.keys, 1, kType},
             {keys_ + block.first * dim, dim, 1, kType}, {dq, dim});
      for (std::int64_t r = 0; r < block.all; ++r) {
        const std::int64_t head = kv_head_ * group_ + r / block.rows;
        const std::int64_t t = begin + r % block.rows;
        transform(p_.q_norm).backward(q_row(head, t), t, dq + r * dim,
                                      drows + t * p_.width() + head * dim, sums);
      }
    }
    for (std::int64_t t = 0; t < length_; ++t) {
      T* row = drows + t * p_.width();
      transform(p_.k_norm).backward(k_row(t), t, dkeys + t * dim, row + k_column(), sums + dim);
      for_lanes(dim, [&](auto d, auto c) HWY_ATTR {
        store_f32(d, hn::LoadU(d, dvalues + t * dim + c), row + v_column() + c);
      });
    }
  }

 private:
  static constexpr DType kType = kTypeOf<T>;

  struct Block {
    std::int64_t rows;   // of one head
    std::int64_t all;    // of the group
    std::int64_t first;  // [first, first + keys) are seen by some row
    std::int64_t keys;
  };
  /// Of a row, in its block's keys.
  struct Seen {
    std::int64_t begin, end;
  };

  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  [[nodiscard]] std::int64_t k_column() const { return (p_.heads + kv_head_) * p_.head_dim; }
  [[nodiscard]] std::int64_t v_column() const {
    return (p_.heads + p_.kv_heads + kv_head_) * p_.head_dim;
  }
  [[nodiscard]] const T* q_row(std::int64_t head, std::int64_t t) const {
    return qkv_ + (t - p_.begin) * p_.width() + head * p_.head_dim;
  }
  [[nodiscard]] const T* k_row(std::int64_t t) const { return k_ + t * kv_stride_; }
  [[nodiscard]] const T* v_row(std::int64_t t) const { return v_ + t * kv_stride_; }
  [[nodiscard]] std::int64_t first_key(std::int64_t t) const {
    return p_.window > 0 ? std::max<std::int64_t>(0, t - p_.window + 1) : 0;
  }
  [[nodiscard]] Seen seen_by(const Block& block, std::int64_t t) const {
    return {first_key(t) - block.first, t + 1 - block.first};
  }
  /// call(what a row's elements go through, those that query `t` sees).
  template <class Call>
  HWY_INLINE auto with_drops(const Block& block, Seen seen, std::int64_t g, std::int64_t t,
                             Call call) const {
    if (p_.drop.empty()) {
      return call(KeepRow());
    }
    return call(DropRow(p_.drop, log_sum_at(g, t), document_.offset + block.first + seen.begin));
  }
  [[nodiscard]] float sink_of(std::int64_t g) const {
    return p_.sinks == nullptr ? 0.0F
                               : load_one(static_cast<const T*>(p_.sinks) + kv_head_ * group_ + g);
  }
  [[nodiscard]] std::int64_t context_at(std::int64_t g, std::int64_t t) const {
    const std::int64_t row = document_.row + t - p_.begin;
    return (row * p_.heads + kv_head_ * group_ + g) * p_.head_dim;
  }
  /// Of all heads' queries: [batch, heads, T].
  [[nodiscard]] std::int64_t log_sum_at(std::int64_t g, std::int64_t t) const {
    const std::int64_t head = document_.sequence * p_.heads + kv_head_ * group_ + g;
    return head * p_.length + document_.offset + t;
  }
  [[nodiscard]] HeadTransform<T> transform(const void* norm) const {
    return {p_.head_dim,    static_cast<const T*>(norm),
            p_.norm_offset, static_cast<float>(p_.norm_eps),
            p_.cosine,      p_.sine,
            p_.rotary};
  }

  static void matmul(std::int64_t m, std::int64_t n, std::int64_t k, const GemmOperand& a,
                     const GemmOperand& b, const GemmTarget& c) {
    const GemmProblem problem{m, n, k, a, b, c};
    if (kType == DType::kBF16 && gemm_bf16_available()) {
      gemm_bf16(problem);
    } else {
      gemm_f32(problem);
    }
  }

  /// Queries of rows [begin, begin + kQueryRows) of every head of the group, one head after the
  /// other.
  Block make_block(std::int64_t begin) {
    const std::int64_t rows = std::min(kQueryRows, length_ - begin);
    for (std::int64_t r = 0; r < group_ * rows; ++r) {
      const std::int64_t t = begin + r % rows;
      transform(p_.q_norm).forward(q_row(kv_head_ * group_ + r / rows, t), t,
                                   queries_ + r * p_.head_dim);
    }
    const std::int64_t first = first_key(begin);
    return {rows, group_ * rows, first, begin + rows - first};
  }

  void score(const Block& block) {
    matmul(block.all, block.keys, p_.head_dim, {queries_, p_.head_dim, 1, kType},
           {keys_ + block.first * p_.head_dim, 1, p_.head_dim, kType}, {scores_, block.keys});
  }

  /// weights_ = softmax of the scores that row r sees, dropped, zero elsewhere; returns the log of
  /// the denominator, with the sink.
  template <class Drop>
  HWY_INLINE float softmax_row(std::int64_t r, Seen seen, std::int64_t keys, float sink,
                               Drop drop) {
    float* scores = scores_ + r * keys + seen.begin;
    T* weights = weights_ + r * keys + seen.begin;
    const std::int64_t count = seen.end - seen.begin;
    float largest = max_lanes(scores, count);
    if (p_.sinks != nullptr) {
      largest = std::max(largest, sink / p_.scale);
    }
    float sum = sum_lanes(count, [&](auto d, auto j) HWY_ATTR {
      const auto x = hn::Sub(hn::LoadU(d, scores + j), hn::Set(d, largest));
      const auto e = hn::Exp(d, hn::Mul(x, hn::Set(d, p_.scale)));
      hn::StoreU(e, d, scores + j);
      return e;
    });
    if (p_.sinks != nullptr) {
      sum += std::exp(sink - largest * p_.scale);
    }
    const float inverse = 1.0F / sum;
    for_lanes(count, [&](auto d, auto j) HWY_ATTR {
      const auto weight = hn::Mul(hn::LoadU(d, scores + j), hn::Set(d, inverse));
      store_f32(d, drop(d, j, weight), weights + j);
    });
    clear_unseen(weights_ + r * keys, seen, keys);
    return largest * p_.scale + std::log(sum);
  }

  static void clear_unseen(T* row, Seen seen, std::int64_t keys) {
    std::fill(row, row + seen.begin, T(0));
    std::fill(row + seen.end, row + keys, T(0));
  }

  [[nodiscard]] HWY_INLINE float delta(const T* dout, const T* out) const {
    return sum_lanes(p_.head_dim, [&](auto d, auto c) HWY_ATTR {
      return hn::Mul(load_f32(d, dout + c), load_f32(d, out + c));
    });
  }

  /// P = exp(scale s - log_sum), dropped, into weights_, dS = scale P (dP - delta) over the
  /// gradient of the dropped P. The sum over P dP, `delta`, is the same before and behind the
  /// dropping.
  template <class Drop>
  HWY_INLINE void backward_row(std::int64_t r, Seen seen, std::int64_t keys, float log_sum,
                               float delta, float* dscores, Drop drop) {
    const float* scores = scores_ + r * keys + seen.begin;
    T* weights = weights_ + r * keys + seen.begin;
    const float* ds = dscores + r * keys + seen.begin;
    T* ds_row = dscores_row(dscores + r * keys, r, keys);
    T* ds_out = ds_row + seen.begin;
    for_lanes(seen.end - seen.begin, [&](auto d, auto j) HWY_ATTR {
      const auto s = hn::LoadU(d, scores + j);
      const auto scale = hn::Set(d, p_.scale);
      const auto weight = hn::Exp(d, hn::MulSub(s, scale, hn::Set(d, log_sum)));
      const auto dp = hn::Sub(drop(d, j, hn::LoadU(d, ds + j)), hn::Set(d, delta));
      const auto value = hn::Mul(hn::Mul(weight, scale), dp);
      store_f32(d, drop(d, j, weight), weights + j);
      store_f32(d, value, ds_out + j);
    });
    clear_unseen(weights_ + r * keys, seen, keys);
    clear_unseen(ds_row, seen, keys);
  }

  /// Row r of dS: over dP in fp32; in bf16 packed into the memory of the scores, whose rows up to r
  /// are used up.
  HWY_INLINE T* dscores_row(float* ds, std::int64_t r, std::int64_t keys) {
    if constexpr (sizeof(T) == 2) {
      return reinterpret_cast<T*>(scores_) + r * keys;
    } else {
      return ds;
    }
  }
  HWY_INLINE const T* narrow_dscores(const float* dscores) const {
    if constexpr (sizeof(T) == 2) {
      return reinterpret_cast<const T*>(scores_);
    } else {
      return dscores;
    }
  }

  const AttentionProblem& p_;
  std::int64_t group_, kv_head_;
  Document document_;
  std::int64_t length_;
  std::int64_t most_keys_;  // of a block
  const T* qkv_;
  const T* k_;  // the head's first key and value
  const T* v_;
  std::int64_t kv_stride_;
  T* keys_;
  T* queries_;
  float* scores_;
  T* weights_;
};

template <class T>
void backward_typed(const AttentionProblem& p, const T* context, const float* log_sums,
                    const T* dcontext, const AttentionGradients& gradients) {
  const std::int64_t tasks = documents_of(p) * p.kv_heads;
  const std::int64_t group = p.heads / p.kv_heads;
  const std::int64_t each = 2 * p.head_dim + group;
  float* sums = sums_scratch.get<float>(static_cast<std::size_t>(tasks * each));
  parallel_tasks(tasks, [&](std::int64_t task) HWY_ATTR {
    HeadTask<T>(p, task).backward(context, log_sums, dcontext, static_cast<T*>(gradients.dqkv),
                                  sums + task * each);
  });
  // Task by task, so that the bits don't depend on threads.
  const auto add_up = [&](float* to, std::int64_t count, std::int64_t from, bool by_head) {
    if (to == nullptr) {
      return;
    }
    std::fill_n(to, by_head ? p.heads : count, 0.0F);
    for (std::int64_t task = 0; task < tasks; ++task) {
      float* row = to + (by_head ? task % p.kv_heads * group : 0);
      for (std::int64_t i = 0; i < count; ++i) {
        row[i] += sums[task * each + from + i];
      }
    }
  };
  if (p.q_norm != nullptr) {
    add_up(gradients.dq_norm, p.head_dim, 0, false);
    add_up(gradients.dk_norm, p.head_dim, p.head_dim, false);
  }
  if (p.sinks != nullptr) {
    add_up(gradients.dsinks, group, 2 * p.head_dim, true);
  }
}

template <class T>
void forward_typed(const AttentionProblem& p, T* context, float* log_sums) {
  parallel_tasks(documents_of(p) * p.kv_heads, [&](std::int64_t task) HWY_ATTR {
    HeadTask<T>(p, task).forward(context, log_sums);
  });
}

void AttentionForward(const AttentionProblem& p, void* context, float* log_sums) {
  TANDEM_CHECK(p.head_dim <= kMaxHeadDim, "a head's row lies on the stack");
  TANDEM_CHECK(p.documents.empty() || p.memory == nullptr, "a text that is continued is alone");
  with_element(p.type, [&](auto element) HWY_ATTR {
    forward_typed(p, static_cast<decltype(element)*>(context), log_sums);
  });
}

void AttentionBackward(const AttentionProblem& p, const void* context, const float* log_sums,
                       const void* dcontext, const AttentionGradients& gradients) {
  TANDEM_CHECK(p.begin == 0 && p.memory == nullptr, "only whole texts are trained on");
  with_element(p.type, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    backward_typed(p, static_cast<const T*>(context), log_sums, static_cast<const T*>(dcontext),
                   gradients);
  });
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {
HWY_EXPORT(AttentionForward);
HWY_EXPORT(AttentionBackward);

void attention_forward(const AttentionProblem& problem, void* context, float* log_sums) {
  HWY_DYNAMIC_DISPATCH(AttentionForward)(problem, context, log_sums);
}

void attention_backward(const AttentionProblem& problem, const void* context, const float* log_sums,
                        const void* dcontext, const AttentionGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(AttentionBackward)(problem, context, log_sums, dcontext, gradients);
}
}  // namespace tandem
#endif
