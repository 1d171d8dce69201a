// models/kernels/attention/attention.hpp — causal self-attention from the joined q, k, v projection
// to the context, in one pass.
//
// Softmax attention (Vaswani et al., 2017) with grouped key/value heads (Ainslie et al., 2023).
// Optional are rotary positions in the half-split form (Su et al., 2021), an RMSNorm per head of q
// and k (Qwen3), a window of keys (Beltagy et al., 2020), and sinks, a learnt logit per head beside
// the scores (gpt-oss). A sequence is one document or several, which do not see each other.
//
// A task works on one key/value head of one document: forward on 512 of its queries, backward on
// all. It normalises and rotates that head's keys and its group's queries on the fly. It takes the
// queries in blocks of rows, and the keys in tiles whose scores fit into its cache; with several
// tiles it keeps a running maximum and sum (Milakov and Gimelshein, 2018). Keys outside the window
// of all rows of a block cost nothing. Nothing of size T x T and no rotated copy of q and k is ever
// written to memory; the backward computes the scores again from the saved row sums (as in
// FlashAttention, Dao et al., 2022). Dropout of the probabilities draws its mask again in the
// backward; a query's row of it is (sequence * heads + head) * T + query, and both query and column
// are counted in the sequence. Invariant: a task sums in an order of its own, so bits do not depend
// on threads, and a document's bits do not depend on the documents beside it.
#pragma once

#include <cstdint>
#include <span>

#include "actors/kernels/dtype.hpp"
#include "models/kernels/dropout.hpp"

namespace tandem {

struct AttentionProblem {
  DType type = DType::kF32;
  std::int64_t batch = 0;
  std::int64_t length = 0;  // T
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  float scale = 1.0F;  // of the scores

  // [batch * T, (heads + 2 kv_heads) * head_dim]: q heads, k heads, v heads
  const void* qkv = nullptr;
  const void* q_norm = nullptr;  // [head_dim], null: no norm of q and k
  const void* k_norm = nullptr;
  float norm_offset = 0;  // added to the norms' weights: 1 if a weight of 0 leaves a value as it is
  double norm_eps = 0;
  const float* cosine = nullptr;  // [T, rotary / 2], null: no rotation
  const float* sine = nullptr;
  std::int64_t rotary = 0;  // leading elements of a head that are rotated; even

  std::int64_t window = 0;      // keys that a query sees, its own included; 0: all earlier ones
  const void* sinks = nullptr;  // [heads], null: none
  DropMask drop = {};           // of the probabilities [batch * heads * T, T]; whole texts only

  // The first rows of the documents among the batch * T rows, ascending, and then batch * T; each
  // sequence begins with a document. Empty: a sequence is one document. Whole texts only.
  std::span<const std::int64_t> documents = {};

  // For continuing a text (forward only): qkv has the positions [begin, T). The keys and values of
  // all T positions lie in `memory`, [batch, memory_length, 2 kv_heads * head_dim] (k heads, v
  // heads, as the projection made them).
  std::int64_t begin = 0;
  const void* memory = nullptr;
  std::int64_t memory_length = 0;

  [[nodiscard]] std::int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
};

/// context: [batch * (T - begin), heads * head_dim]; log_sums: fp32 [batch, heads, T], log of the
/// softmax denominator (may be null).
void attention_forward(const AttentionProblem& problem, void* context, float* log_sums);

/// Returns the number of keys whose scores a task holds at once, for the memory plan.
[[nodiscard]] std::int64_t attention_tile_keys() noexcept;

/// The gradients of a problem whose `begin` is 0. dqkv has the shape of qkv.
struct AttentionGradients {
  void* dqkv = nullptr;
  float* dq_norm = nullptr;  // [head_dim], overwritten (with norms only)
  float* dk_norm = nullptr;
  float* dsinks = nullptr;  // [heads], overwritten (with sinks only)
};
void attention_backward(const AttentionProblem& problem, const void* context, const float* log_sums,
                        const void* dcontext, const AttentionGradients& gradients);

}  // namespace tandem
