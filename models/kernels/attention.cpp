// models/kernels/attention.cpp — see attention.hpp. Compiled once per SIMD target by Highway's foreach_target.
#include "models/kernels/attention.hpp"

#include <algorithm>
#include <cmath>

#include "models/kernels/gemm.hpp"
#include "models/kernels/parallel.hpp"
#include "models/kernels/scratch.hpp"
#include "runtime/util/check.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/kernels/attention.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"
#include "models/kernels/lanes-inl.hpp"
// Needs lanes-inl.hpp.
#include "models/kernels/heads-inl.hpp"

#ifndef TANDEM_ATTENTION_SHARED
#define TANDEM_ATTENTION_SHARED
namespace tandem {
namespace {
constexpr std::int64_t kQueryRows = 64;  // of a block at most; part of the result
thread_local Scratch keys_scratch, queries_scratch, scores_scratch, weights_scratch, rows_scratch,
    dscores_scratch, dcontext_scratch, dkeys_scratch, norms_scratch;
}  // namespace
}  // namespace tandem
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

/// One key/value head of one sequence, with the group of query heads that read it.
template <class T>
class HeadTask {
 public:
  HeadTask(const AttentionProblem& p, std::int64_t task)
      : p_(p),
        group_(p.heads / p.kv_heads),
        sequence_(task / p.kv_heads),
        kv_head_(task % p.kv_heads),
        qkv_(static_cast<const T*>(p.qkv) + sequence_ * p.length * p.width()) {
    keys_ = keys_scratch.get<T>(size(p.length * p.head_dim));
    queries_ = queries_scratch.get<T>(size(group_ * kQueryRows * p.head_dim));
    scores_ = scores_scratch.get<float>(size(group_ * kQueryRows * p.length));
    if constexpr (sizeof(T) == 2) {
      weights_ = weights_scratch.get<T>(size(group_ * kQueryRows * p.length));
    } else {
      weights_ = scores_;
    }
    for (std::int64_t t = 0; t < p.length; ++t) {
      transform(p.k_norm).forward(k_row(t), t, keys_ + t * p.head_dim);
    }
  }

  void forward(T* context, float* log_sums) {
    float* rows = rows_scratch.get<float>(size(group_ * kQueryRows * p_.head_dim));
    for (std::int64_t begin = 0; begin < p_.length; begin += kQueryRows) {
      const Block block = make_block(begin);
      score(block);
      for (std::int64_t g = 0; g < group_; ++g) {
        for (std::int64_t i = 0; i < block.rows; ++i) {
          const std::int64_t r = g * block.rows + i;
          const float log_sum = softmax_row(r, begin + i + 1, block.keys);
          if (log_sums != nullptr) {
            log_sums[log_sum_at(g, begin + i)] = log_sum;
          }
        }
      }
      const GemmOperand values{v_row(0), p_.width(), 1, kType};
      product(block.all, p_.head_dim, block.keys, {weights_, block.keys, 1, kType}, values,
              {rows, p_.head_dim});
      for (std::int64_t r = 0; r < block.all; ++r) {
        T* to = context + context_at(r / block.rows, begin + r % block.rows);
        for_lanes(p_.head_dim, [&](auto d, auto c) HWY_ATTR {
          store_f32(d, hn::LoadU(d, rows + r * p_.head_dim + c), to + c);
        });
      }
    }
  }

  /// dnorms: [2][head_dim], gradients of the q and k norms of this task.
  void backward(const T* context, const float* log_sums, const T* dcontext, T* dqkv,
                float* dnorms) {
    const std::int64_t dim = p_.head_dim;
    float* dq = rows_scratch.get<float>(size(group_ * kQueryRows * dim));
    T* dout = dcontext_scratch.get<T>(size(group_ * kQueryRows * dim));
    float* dscores = dscores_scratch.get<float>(size(group_ * kQueryRows * p_.length));
    float* dkeys = dkeys_scratch.get<float>(size(2 * p_.length * dim));
    float* dvalues = dkeys + p_.length * dim;
    std::fill_n(dkeys, 2 * p_.length * dim, 0.0F);
    std::fill_n(dnorms, 2 * dim, 0.0F);
    T* dsequence = dqkv + sequence_ * p_.length * p_.width();
    for (std::int64_t begin = 0; begin < p_.length; begin += kQueryRows) {
      const Block block = make_block(begin);
      score(block);
      for (std::int64_t r = 0; r < block.all; ++r) {
        const T* from = dcontext + context_at(r / block.rows, begin + r % block.rows);
        std::copy_n(from, dim, dout + r * dim);
      }
      const GemmOperand values_across{v_row(0), 1, p_.width(), kType};
      product(block.all, block.keys, dim, {dout, dim, 1, kType}, values_across,
              {dscores, block.keys});
      for (std::int64_t r = 0; r < block.all; ++r) {
        const std::int64_t g = r / block.rows;
        const std::int64_t t = begin + r % block.rows;
        backward_row(r, t + 1, block.keys, log_sums[log_sum_at(g, t)],
                     delta(dout + r * dim, context + context_at(g, t)), dscores);
      }
      // `weights_` holds P, and dS now lies where the type allows: fp32 in dscores, bf16 over the scores' memory.
      const T* ds = narrow_dscores(dscores);
      const GemmOperand ds_t{ds, 1, block.keys, kType};
      const GemmOperand p_t{weights_, 1, block.keys, kType};
      product(block.keys, dim, block.all, p_t, {dout, dim, 1, kType},
              {dvalues, dim, DType::kF32, GemmStart::kResidual, dvalues, dim});
      product(block.keys, dim, block.all, ds_t, {queries_, dim, 1, kType},
              {dkeys, dim, DType::kF32, GemmStart::kResidual, dkeys, dim});
      product(block.all, dim, block.keys, {ds, block.keys, 1, kType}, {keys_, dim, 1, kType},
              {dq, dim});
      for (std::int64_t r = 0; r < block.all; ++r) {
        const std::int64_t head = kv_head_ * group_ + r / block.rows;
        const std::int64_t t = begin + r % block.rows;
        transform(p_.q_norm).backward(q_row(head, t), t, dq + r * dim,
                                      dsequence + t * p_.width() + head * dim, dnorms);
      }
    }
    for (std::int64_t t = 0; t < p_.length; ++t) {
      T* row = dsequence + t * p_.width();
      transform(p_.k_norm).backward(k_row(t), t, dkeys + t * dim, row + k_column(), dnorms + dim);
      for_lanes(dim, [&](auto d, auto c) HWY_ATTR {
        store_f32(d, hn::LoadU(d, dvalues + t * dim + c), row + v_column() + c);
      });
    }
  }

 private:
  static constexpr DType kType = kTypeOf<T>;

  struct Block {
    std::int64_t rows;  // of one head
    std::int64_t all;   // of the group
    std::int64_t keys;  // [0, keys) are seen by some row
  };

  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  [[nodiscard]] std::int64_t k_column() const { return (p_.heads + kv_head_) * p_.head_dim; }
  [[nodiscard]] std::int64_t v_column() const {
    return (p_.heads + p_.kv_heads + kv_head_) * p_.head_dim;
  }
  [[nodiscard]] const T* q_row(std::int64_t head, std::int64_t t) const {
    return qkv_ + t * p_.width() + head * p_.head_dim;
  }
  [[nodiscard]] const T* k_row(std::int64_t t) const { return qkv_ + t * p_.width() + k_column(); }
  [[nodiscard]] const T* v_row(std::int64_t t) const { return qkv_ + t * p_.width() + v_column(); }
  [[nodiscard]] std::int64_t context_at(std::int64_t g, std::int64_t t) const {
    return ((sequence_ * p_.length + t) * p_.heads + kv_head_ * group_ + g) * p_.head_dim;
  }
  [[nodiscard]] std::int64_t log_sum_at(std::int64_t g, std::int64_t t) const {
    return (sequence_ * p_.heads + kv_head_ * group_ + g) * p_.length + t;
  }
  [[nodiscard]] HeadTransform<T> transform(const void* norm) const {
    return {p_.head_dim,
            static_cast<const T*>(norm),
            static_cast<float>(p_.norm_eps),
            p_.cosine,
            p_.sine,
            p_.rotary};
  }

  static void product(std::int64_t m, std::int64_t n, std::int64_t k, const GemmOperand& a,
                      const GemmOperand& b, const GemmTarget& c) {
    const GemmProblem problem{m, n, k, a, b, c};
    if (kType == DType::kBF16 && gemm_bf16_available()) {
      gemm_bf16(problem);
    } else {
      gemm_f32(problem);
    }
  }

  /// Queries of rows [begin, begin + kQueryRows) of every head of the group, one head after the other.
  Block make_block(std::int64_t begin) {
    const std::int64_t rows = std::min(kQueryRows, p_.length - begin);
    for (std::int64_t r = 0; r < group_ * rows; ++r) {
      const std::int64_t t = begin + r % rows;
      transform(p_.q_norm).forward(q_row(kv_head_ * group_ + r / rows, t), t,
                                   queries_ + r * p_.head_dim);
    }
    return {rows, group_ * rows, begin + rows};
  }

  void score(const Block& block) {
    product(block.all, block.keys, p_.head_dim, {queries_, p_.head_dim, 1, kType},
            {keys_, 1, p_.head_dim, kType}, {scores_, block.keys});
  }

  /// weights_ = softmax of the first `seen` scores of row r, zero up to `keys`; returns the log of the denominator.
  HWY_INLINE float softmax_row(std::int64_t r, std::int64_t seen, std::int64_t keys) {
    float* scores = scores_ + r * keys;
    T* weights = weights_ + r * keys;
    const float largest = max_lanes(scores, seen);
    const float sum = sum_lanes(seen, [&](auto d, auto j) HWY_ATTR {
      const auto x = hn::Sub(hn::LoadU(d, scores + j), hn::Set(d, largest));
      const auto e = hn::Exp(d, hn::Mul(x, hn::Set(d, p_.scale)));
      hn::StoreU(e, d, scores + j);
      return e;
    });
    const float inverse = 1.0F / sum;
    for_lanes(seen, [&](auto d, auto j) HWY_ATTR {
      store_f32(d, hn::Mul(hn::LoadU(d, scores + j), hn::Set(d, inverse)), weights + j);
    });
    std::fill(weights + seen, weights + keys, T(0));
    return largest * p_.scale + std::log(sum);
  }

  [[nodiscard]] HWY_INLINE float delta(const T* dout, const T* out) const {
    return sum_lanes(p_.head_dim, [&](auto d, auto c) HWY_ATTR {
      return hn::Mul(load_f32(d, dout + c), load_f32(d, out + c));
    });
  }

  /// P = exp(scale s - log_sum) into weights_, dS = scale P (dP - delta) over dP.
  HWY_INLINE void backward_row(std::int64_t r, std::int64_t seen, std::int64_t keys, float log_sum,
                               float delta, float* dscores) {
    float* scores = scores_ + r * keys;
    T* weights = weights_ + r * keys;
    float* ds = dscores + r * keys;
    T* ds_out = dscores_row(ds, r, keys);
    for_lanes(seen, [&](auto d, auto j) HWY_ATTR {
      const auto s = hn::LoadU(d, scores + j);
      const auto scale = hn::Set(d, p_.scale);
      const auto weight = hn::Exp(d, hn::MulSub(s, scale, hn::Set(d, log_sum)));
      const auto dp = hn::Sub(hn::LoadU(d, ds + j), hn::Set(d, delta));
      const auto value = hn::Mul(hn::Mul(weight, scale), dp);
      store_f32(d, weight, weights + j);
      store_f32(d, value, ds_out + j);
    });
    std::fill(weights + seen, weights + keys, T(0));
    std::fill(ds_out + seen, ds_out + keys, T(0));
  }

  /// Row r of dS: over dP in fp32; in bf16 packed into the memory of the scores, whose rows up to r are used up.
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
  std::int64_t group_, sequence_, kv_head_;
  const T* qkv_;
  T* keys_;
  T* queries_;
  float* scores_;
  T* weights_;
};

template <class T>
void backward_typed(const AttentionProblem& p, const T* context, const float* log_sums,
                    const T* dcontext, T* dqkv, float* dq_norm, float* dk_norm) {
  const std::int64_t tasks = p.batch * p.kv_heads;
  float* dnorms = norms_scratch.get<float>(static_cast<std::size_t>(tasks * 2 * p.head_dim));
  parallel_tasks(tasks, [&](std::int64_t task) HWY_ATTR {
    HeadTask<T>(p, task).backward(context, log_sums, dcontext, dqkv,
                                  dnorms + task * 2 * p.head_dim);
  });
  if (p.q_norm == nullptr) {
    return;
  }
  std::fill_n(dq_norm, p.head_dim, 0.0F);
  std::fill_n(dk_norm, p.head_dim, 0.0F);
  for (std::int64_t task = 0; task < tasks; ++task) {
    for (std::int64_t i = 0; i < p.head_dim; ++i) {
      dq_norm[i] += dnorms[task * 2 * p.head_dim + i];
      dk_norm[i] += dnorms[(task * 2 + 1) * p.head_dim + i];
    }
  }
}

template <class T>
void forward_typed(const AttentionProblem& p, T* context, float* log_sums) {
  parallel_tasks(p.batch * p.kv_heads, [&](std::int64_t task) HWY_ATTR {
    HeadTask<T>(p, task).forward(context, log_sums);
  });
}

void AttentionForward(const AttentionProblem& p, void* context, float* log_sums) {
  TANDEM_CHECK(p.head_dim <= kMaxHeadDim, "a head's row lies on the stack");
  with_element(p.type, [&](auto element) HWY_ATTR {
    forward_typed(p, static_cast<decltype(element)*>(context), log_sums);
  });
}

void AttentionBackward(const AttentionProblem& p, const void* context, const float* log_sums,
                       const void* dcontext, void* dqkv, float* dq_norm, float* dk_norm) {
  with_element(p.type, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    backward_typed(p, static_cast<const T*>(context), log_sums, static_cast<const T*>(dcontext),
                   static_cast<T*>(dqkv), dq_norm, dk_norm);
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
                        const void* dcontext, void* dqkv, float* dq_norm, float* dk_norm) {
  HWY_DYNAMIC_DISPATCH(AttentionBackward)
  (problem, context, log_sums, dcontext, dqkv, dq_norm, dk_norm);
}
}  // namespace tandem
#endif
