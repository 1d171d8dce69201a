// models/kernels/attention/attention.cpp — compiled once per SIMD target (foreach_target).
#include "models/kernels/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

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
#include "models/kernels/attention/rows-inl.hpp"
#include "models/kernels/dropout-inl.hpp"

#ifndef TANDEM_ATTENTION_SHARED
#define TANDEM_ATTENTION_SHARED
namespace tandem {
namespace {
constexpr std::int64_t kQueryRows = 64;  // of a block at most; part of the result
// Keys whose scores stand at once, near in the cache; part of the result. No power of two, since
// rows of scores that far apart would push each other out.
constexpr std::int64_t kTileKeys = 736;
constexpr std::int64_t kQueriesPerTask = 512;  // of a forward
thread_local Scratch keys_scratch, queries_scratch, scores_scratch, weights_scratch, rows_scratch,
    dscores_scratch, dcontext_scratch, dkeys_scratch, sums_scratch, states_scratch;
}  // namespace
}  // namespace tandem
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

/// The document that a task works on: the rows of qkv from `row` on, as the positions
/// [AttentionProblem::begin, length).
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

/// The queries [begin, end) of one key/value head of one document.
struct HeadQueries {
  std::int64_t document, kv_head, begin, end;
};

/// All of them, in pieces of `most` queries at most; those that take longest come first, so that no
/// thread is left with one at the end.
std::vector<HeadQueries> tasks_of(const AttentionProblem& p, std::int64_t most) {
  std::vector<HeadQueries> tasks;
  for (std::int64_t i = 0; i < documents_of(p); ++i) {
    const std::int64_t length = document_at(p, i).length;
    for (std::int64_t begin = p.begin; begin < length; begin += std::min(most, length - begin)) {
      for (std::int64_t head = 0; head < p.kv_heads; ++head) {
        tasks.push_back({i, head, begin, begin + std::min(most, length - begin)});
      }
    }
  }
  const auto work = [&](const HeadQueries& task) {
    const std::int64_t keys =
        p.window > 0 ? std::min(p.window, task.end) : (task.begin + task.end) / 2;
    return (task.end - task.begin) * keys;
  };
  std::ranges::stable_sort(tasks, std::greater<>(), work);
  return tasks;
}

/// The group of query heads that read one key/value head, some queries of it.
template <class T>
class HeadTask {
 public:
  HeadTask(const AttentionProblem& p, const HeadQueries& task)
      : p_(p),
        group_(p.heads / p.kv_heads),
        kv_head_(task.kv_head),
        document_(document_at(p, task.document)),
        begin_(task.begin),
        length_(task.end),
        most_keys_(
            std::min({kTileKeys, length_, p.window > 0 ? p.window + kQueryRows - 1 : length_})),
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
    for (std::int64_t t = first_key(begin_); t < length_; ++t) {
      transform(p.k_norm).forward(k_row(t), t, keys_ + t * p.head_dim);
    }
  }

  /// Tile by tile, with the weights of the tiles so far counted from their largest score (as in
  /// FlashAttention). Where one tile is all, weights are normalised before they meet the values.
  void forward(T* context, float* log_sums) {
    float* rows = rows_scratch.get<float>(size(group_ * kQueryRows * p_.head_dim));
    for (std::int64_t begin = begin_; begin < length_; begin += kQueryRows) {
      const Block block = make_block(begin);
      const bool whole = block.keys <= kTileKeys;
      auto* states = states_scratch.get<RowState>(size(block.all));
      std::fill_n(states, block.all, RowState());
      for_tiles(block, [&](const Tile& tile) HWY_ATTR {
        const bool first = tile.first == block.first;
        score(block, tile);
        for (std::int64_t r = 0; r < block.all; ++r) {
          const std::int64_t g = r / block.rows;
          const std::int64_t t = begin + r % block.rows;
          const Seen seen = seen_by(tile, t);
          const float before = with_drops(tile, seen, g, t, [&](auto drop) HWY_ATTR {
            return whole ? score_rows().softmax(r, seen, tile.keys, sink_of(g), states[r], drop)
                         : score_rows().weigh(r, seen, tile.keys, sink_of(g), states[r], drop);
          });
          if (!first) {
            scale_row(rows + r * p_.head_dim, before);
          }
        }
        const GemmOperand values{v_row(tile.first), kv_stride_, 1, kType};
        matmul(block.all, p_.head_dim, tile.keys, {weights_, tile.keys, 1, kType}, values,
               sum_from(rows, first));
      });
      for (std::int64_t r = 0; r < block.all; ++r) {
        const std::int64_t g = r / block.rows;
        const std::int64_t t = begin + r % block.rows;
        if (!whole) {
          scale_row(rows + r * p_.head_dim, 1.0F / states[r].sum);
        }
        if (log_sums != nullptr) {
          log_sums[log_sum_at(g, t)] = states[r].largest * p_.scale + std::log(states[r].sum);
        }
        T* to = context + context_at(g, t);
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
      auto* towards = states_scratch.get<float>(size(block.all));
      for (std::int64_t r = 0; r < block.all; ++r) {
        const std::int64_t at = context_at(r / block.rows, begin + r % block.rows);
        std::copy_n(dcontext + at, dim, dout + r * dim);
        towards[r] = delta(dout + r * dim, context + at);
      }
      if (p_.sinks != nullptr) {
        for (std::int64_t r = 0; r < block.all; ++r) {
          const std::int64_t g = r / block.rows;
          const float log_sum = log_sums[log_sum_at(g, begin + r % block.rows)];
          sums[2 * dim + g] -= std::exp(sink_of(g) - log_sum) * towards[r];
        }
      }
      for_tiles(block, [&](const Tile& tile) HWY_ATTR {
        score(block, tile);
        const GemmOperand values_across{v_row(tile.first), 1, kv_stride_, kType};
        matmul(block.all, tile.keys, dim, {dout, dim, 1, kType}, values_across,
               {dscores, tile.keys});
        for (std::int64_t r = 0; r < block.all; ++r) {
          const std::int64_t g = r / block.rows;
          const std::int64_t t = begin + r % block.rows;
          const float log_sum = log_sums[log_sum_at(g, t)];
          const Seen seen = seen_by(tile, t);
          with_drops(tile, seen, g, t, [&](auto drop) HWY_ATTR {
            score_rows().backward(r, seen, tile.keys, log_sum, towards[r], dscores, drop);
          });
        }
        // `weights_` holds P as it was dropped, and dS now lies where the type allows: fp32 in
        // dscores, bf16 over the scores' memory.
        const T* ds = score_rows().dscores_of(dscores);
        const GemmOperand ds_t{ds, 1, tile.keys, kType};
        const GemmOperand p_t{weights_, 1, tile.keys, kType};
        matmul(tile.keys, dim, block.all, p_t, {dout, dim, 1, kType},
               sum_from(dvalues + tile.first * dim, false));
        matmul(tile.keys, dim, block.all, ds_t, {queries_, dim, 1, kType},
               sum_from(dkeys + tile.first * dim, false));
        matmul(block.all, dim, tile.keys, {ds, tile.keys, 1, kType},
               {keys_ + tile.first * dim, dim, 1, kType}, sum_from(dq, tile.first == block.first));
      });
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
  /// Some of a block's keys: [first, first + keys).
  struct Tile {
    std::int64_t first, keys;
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
  [[nodiscard]] Seen seen_by(const Tile& tile, std::int64_t t) const {
    return {std::clamp<std::int64_t>(first_key(t) - tile.first, 0, tile.keys),
            std::clamp<std::int64_t>(t + 1 - tile.first, 0, tile.keys)};
  }
  template <class Call>
  static void for_tiles(const Block& block, Call call) {
    for (std::int64_t key = 0; key < block.keys; key += kTileKeys) {
      call(Tile{block.first + key, std::min(kTileKeys, block.keys - key)});
    }
  }
  /// A matmul's result [*, head_dim], in fp32: alone, or added to what is there.
  [[nodiscard]] GemmTarget sum_from(float* to, bool first) const {
    return {to, p_.head_dim, DType::kF32, first ? GemmStart::kZero : GemmStart::kResidual,
            to, p_.head_dim};
  }
  /// call(what a row's elements go through, those that query `t` sees).
  template <class Call>
  HWY_INLINE auto with_drops(const Tile& tile, Seen seen, std::int64_t g, std::int64_t t,
                             Call call) const {
    if (p_.drop.empty()) {
      return call(KeepRow());
    }
    return call(DropRow(p_.drop, log_sum_at(g, t), document_.offset + tile.first + seen.begin));
  }
  [[nodiscard]] float sink_of(std::int64_t g) const {
    return p_.sinks == nullptr ? 0.0F
                               : load_one(static_cast<const T*>(p_.sinks) + kv_head_ * group_ + g);
  }
  [[nodiscard]] std::int64_t context_at(std::int64_t g, std::int64_t t) const {
    const std::int64_t row = document_.row + t - p_.begin;
    return (row * p_.heads + kv_head_ * group_ + g) * p_.head_dim;
  }
  /// The index in all heads' queries: [batch, heads, T].
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

  void score(const Block& block, const Tile& tile) {
    matmul(block.all, tile.keys, p_.head_dim, {queries_, p_.head_dim, 1, kType},
           {keys_ + tile.first * p_.head_dim, 1, p_.head_dim, kType}, {scores_, tile.keys});
  }

  [[nodiscard]] ScoreRows<T> score_rows() const {
    return {scores_, weights_, p_.scale, p_.sinks != nullptr};
  }

  HWY_INLINE void scale_row(float* row, float factor) const {
    for_lanes(p_.head_dim, [&](auto d, auto c) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(d, row + c), hn::Set(d, factor)), d, row + c);
    });
  }

  [[nodiscard]] HWY_INLINE float delta(const T* dout, const T* out) const {
    return sum_lanes(p_.head_dim, [&](auto d, auto c) HWY_ATTR {
      return hn::Mul(load_f32(d, dout + c), load_f32(d, out + c));
    });
  }

  const AttentionProblem& p_;
  std::int64_t group_, kv_head_;
  Document document_;
  std::int64_t begin_;      // the first query
  std::int64_t length_;     // queries and keys end here
  std::int64_t most_keys_;  // of a tile
  const T* qkv_;
  const T* k_;  // the head's first key and value
  const T* v_;
  std::int64_t kv_stride_;
  T* keys_;
  T* queries_;
  float* scores_;
  T* weights_;
};

/// to[i] = the sum over documents and the heads [first, first + heads) of sums[task][i]. Halves of
/// the heads are added to each other, so that ranks with a part of the heads each have nodes of the
/// same tree.
void add_heads(const AttentionProblem& p, const float* sums, std::int64_t each, std::int64_t count,
               std::int64_t first, std::int64_t heads, float* to) {
  if (heads % 2 == 0) {
    std::vector<float> other(static_cast<std::size_t>(count));
    add_heads(p, sums, each, count, first, heads / 2, to);
    add_heads(p, sums, each, count, first + heads / 2, heads / 2, other.data());
    for (std::int64_t i = 0; i < count; ++i) {
      to[i] += other[static_cast<std::size_t>(i)];
    }
    return;
  }
  std::fill_n(to, count, 0.0F);
  const std::int64_t documents = documents_of(p);
  for (std::int64_t head = first; head < first + heads; ++head) {
    for (std::int64_t document = 0; document < documents; ++document) {
      const float* from = sums + (document * p.kv_heads + head) * each;
      for (std::int64_t i = 0; i < count; ++i) {
        to[i] += from[i];
      }
    }
  }
}

template <class T>
void backward_typed(const AttentionProblem& p, const T* context, const float* log_sums,
                    const T* dcontext, const AttentionGradients& gradients) {
  const std::int64_t tasks = documents_of(p) * p.kv_heads;
  const std::vector<HeadQueries> order = tasks_of(p, p.length);
  const std::int64_t group = p.heads / p.kv_heads;
  const std::int64_t each = 2 * p.head_dim + group;
  float* sums = sums_scratch.get<float>(static_cast<std::size_t>(tasks * each));
  parallel_tasks(tasks, [&](std::int64_t i) HWY_ATTR {
    const HeadQueries& queries = order[static_cast<std::size_t>(i)];
    const std::int64_t task = queries.document * p.kv_heads + queries.kv_head;
    HeadTask<T>(p, queries)
        .backward(context, log_sums, dcontext, static_cast<T*>(gradients.dqkv), sums + task * each);
  });
  // In a fixed order, so that the bits don't depend on threads.
  if (p.q_norm != nullptr) {
    add_heads(p, sums, each, p.head_dim, 0, p.kv_heads, gradients.dq_norm);
    add_heads(p, sums + p.head_dim, each, p.head_dim, 0, p.kv_heads, gradients.dk_norm);
  }
  for (std::int64_t head = 0; p.sinks != nullptr && head < p.kv_heads; ++head) {
    add_heads(p, sums + 2 * p.head_dim, each, group, head, 1, gradients.dsinks + head * group);
  }
}

template <class T>
void forward_typed(const AttentionProblem& p, T* context, float* log_sums) {
  const std::vector<HeadQueries> tasks = tasks_of(p, kQueriesPerTask);
  parallel_tasks(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t task) HWY_ATTR {
    HeadTask<T>(p, tasks[static_cast<std::size_t>(task)]).forward(context, log_sums);
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

std::int64_t attention_tile_keys() noexcept { return kTileKeys; }

void attention_forward(const AttentionProblem& problem, void* context, float* log_sums) {
  HWY_DYNAMIC_DISPATCH(AttentionForward)(problem, context, log_sums);
}

void attention_backward(const AttentionProblem& problem, const void* context, const float* log_sums,
                        const void* dcontext, const AttentionGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(AttentionBackward)(problem, context, log_sums, dcontext, gradients);
}
}  // namespace tandem
#endif
