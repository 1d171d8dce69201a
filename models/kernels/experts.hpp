// models/kernels/experts.hpp — routes each token to its experts, and moves its rows there and back.
//
// A token has a row at each of its experts; rows lie in the order of the experts, and within an
// expert in the order of the tokens. All orders and boundaries follow from the routes alone: every
// sum below has a fixed order, so no bit depends on the threads.
// Invariant: a token's experts are different ones, in ascending order; where logits are equal the
// lower index is chosen.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/kernels/dtype.hpp"

namespace tandem {

struct RouterRule {
  std::int64_t experts = 0;
  std::int64_t chosen = 1;  // experts of a token
  /// The chosen weights add up to 1 (the softmax over the chosen logits); else each is its share of
  /// the softmax over all.
  bool normalised = true;
};

struct Routes {
  std::int64_t tokens = 0;
  RouterRule rule;
  std::vector<std::int32_t> expert;  // [tokens][chosen]
  std::vector<float> weight;         // [tokens][chosen], rounded to the logits' type
  std::vector<std::int32_t> row;     // [tokens][chosen]
  std::vector<std::int32_t> token;   // [rows]
  std::vector<std::int64_t> begin;   // [experts + 1] first row of each

  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(token.size()); }
  /// Weights in the order of the rows.
  [[nodiscard]] std::vector<float> row_weights() const;
};

/// logits: [tokens, experts].
Routes route_tokens(const RouterRule& rule, DType type, std::int64_t tokens, const void* logits);

/// Computes `dlogits` [tokens, experts] from the gradient of the weights, which has the order of
/// the rows. `logits` are those that route_tokens() got.
void route_backward(const Routes& routes, DType type, const void* logits, const float* drow_weights,
                    void* dlogits);

/// out[r] = x[token of r]; rows of `width` elements.
void rows_of_tokens(const Routes& routes, DType type, std::int64_t width, const void* x, void* out);

/// out[t] = residual[t] + sum of weight * y[row] over t's experts in ascending order; unless
/// `weighted`, weights count as 1; a null residual counts as 0.
void tokens_of_rows(const Routes& routes, DType type, std::int64_t width, const void* y,
                    bool weighted, const void* residual, void* out);

/// sums[e] = sum over e's rows of weights[r] * x[r], fp32 [experts, width]; weights null: 1. Rows
/// in order.
void sums_of_experts(const Routes& routes, DType type, std::int64_t width, const void* x,
                     const float* weights, float* sums);

/// dots[r] += <x[r], vector of r's expert>; vectors: [experts, width] of the same type.
void add_expert_dots(const Routes& routes, DType type, std::int64_t width, const void* x,
                     const void* vectors, float* dots);

}  // namespace tandem
