// models/kernels/experts.cpp — compiled once per SIMD target (foreach_target).
#include "models/kernels/experts.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "models/kernels/parallel.hpp"
#include "runtime/util/check.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/kernels/experts.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"
#include "models/kernels/lanes-inl.hpp"

#ifndef TANDEM_EXPERTS_BLOCKS
#define TANDEM_EXPERTS_BLOCKS
namespace tandem {
namespace {
constexpr std::int64_t kTokensPerTask = 32;
constexpr std::int64_t kColumnsPerTask = 512;
}  // namespace
}  // namespace tandem
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

/// The experts of the greatest logits, ascending; of equal ones the first.
HWY_INLINE void choose(const RouterRule& rule, const float* logits, std::int32_t* expert) {
  for (std::int64_t j = 0; j < rule.chosen; ++j) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < rule.experts; ++e) {
      const bool taken = std::find(expert, expert + j, e) != expert + j;
      if (!taken && (best < 0 || logits[e] > logits[best])) {
        best = e;
      }
    }
    expert[j] = static_cast<std::int32_t>(best);
  }
  std::sort(expert, expert + rule.chosen);
}

/// Sum of exp(logit - greatest) over those that share the weight: the chosen ones, or all.
HWY_INLINE float partition(const RouterRule& rule, const float* logits, const std::int32_t* expert,
                           float greatest) {
  float sum = 0;
  if (rule.normalised) {
    for (std::int64_t j = 0; j < rule.chosen; ++j) {
      sum += std::exp(logits[expert[j]] - greatest);
    }
  } else {
    for (std::int64_t e = 0; e < rule.experts; ++e) {
      sum += std::exp(logits[e] - greatest);
    }
  }
  return sum;
}

HWY_INLINE float greatest_of(const RouterRule& rule, const float* logits,
                             const std::int32_t* expert) {
  float greatest = logits[expert[0]];
  for (std::int64_t j = 1; j < rule.chosen; ++j) {
    greatest = std::max(greatest, logits[expert[j]]);
  }
  return greatest;
}

template <class T>
void widen_row(const T* from, std::int64_t n, float* to) {
  for_lanes(n, [&](auto d, auto i) HWY_ATTR { hn::StoreU(load_f32(d, from + i), d, to + i); });
}

template <class T>
void route_typed(const T* logits, Routes& routes) {
  const RouterRule& rule = routes.rule;
  parallel_blocks(
      routes.tokens, kTokensPerTask, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
        std::vector<float> row(static_cast<std::size_t>(rule.experts));
        for (std::int64_t t = begin; t < end; ++t) {
          widen_row(logits + t * rule.experts, rule.experts, row.data());
          std::int32_t* expert = routes.expert.data() + t * rule.chosen;
          float* weight = routes.weight.data() + t * rule.chosen;
          choose(rule, row.data(), expert);
          const float greatest = greatest_of(rule, row.data(), expert);
          const float sum = partition(rule, row.data(), expert, greatest);
          for (std::int64_t j = 0; j < rule.chosen; ++j) {
            T rounded;
            store_one(std::exp(row[static_cast<std::size_t>(expert[j])] - greatest) / sum,
                      &rounded);
            weight[j] = load_one(&rounded);
          }
        }
      });
}

void Route(DType type, const void* logits, Routes& routes) {
  with_element(type, [&](auto element) HWY_ATTR {
    route_typed(static_cast<const decltype(element)*>(logits), routes);
  });
}

/// The backward of a softmax over `members` (indices, or all): d logit_i = p_i (g_i - sum of p g).
template <class T>
void route_backward_typed(const Routes& routes, const T* logits, const float* drow, T* dlogits) {
  const RouterRule& rule = routes.rule;
  parallel_blocks(
      routes.tokens, kTokensPerTask, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
        std::vector<float> row(static_cast<std::size_t>(rule.experts));
        std::vector<float> out(static_cast<std::size_t>(rule.experts));
        for (std::int64_t t = begin; t < end; ++t) {
          widen_row(logits + t * rule.experts, rule.experts, row.data());
          const std::int32_t* expert = routes.expert.data() + t * rule.chosen;
          const std::int32_t* place = routes.row.data() + t * rule.chosen;
          const float greatest = greatest_of(rule, row.data(), expert);
          const float sum = partition(rule, row.data(), expert, greatest);
          float mean = 0;
          for (std::int64_t j = 0; j < rule.chosen; ++j) {
            mean += std::exp(row[static_cast<std::size_t>(expert[j])] - greatest) / sum *
                    drow[place[j]];
          }
          for (std::int64_t e = 0; e < rule.experts; ++e) {
            const auto at = static_cast<std::size_t>(e);
            out[at] = rule.normalised ? 0.0F : -std::exp(row[at] - greatest) / sum * mean;
          }
          for (std::int64_t j = 0; j < rule.chosen; ++j) {
            const auto at = static_cast<std::size_t>(expert[j]);
            out[at] = std::exp(row[at] - greatest) / sum * (drow[place[j]] - mean);
          }
          for_lanes(rule.experts, [&](auto d, auto i) HWY_ATTR {
            store_f32(d, hn::LoadU(d, out.data() + i), dlogits + t * rule.experts + i);
          });
        }
      });
}

void RouteBackward(const Routes& routes, DType type, const void* logits, const float* drow,
                   void* dlogits) {
  with_element(type, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    route_backward_typed(routes, static_cast<const T*>(logits), drow, static_cast<T*>(dlogits));
  });
}

template <class T>
void tokens_typed(const Routes& routes, std::int64_t width, const T* y, bool weighted,
                  const T* residual, T* out) {
  const std::int64_t chosen = routes.rule.chosen;
  parallel_blocks(
      routes.tokens, kTokensPerTask, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
        for (std::int64_t t = begin; t < end; ++t) {
          const std::int32_t* row = routes.row.data() + t * chosen;
          const float* weight = routes.weight.data() + t * chosen;
          for_lanes(width, [&](auto d, auto i) HWY_ATTR {
            auto sum = hn::Zero(d);
            for (std::int64_t j = 0; j < chosen; ++j) {
              const auto value = load_f32(d, y + row[j] * width + i);
              sum = weighted ? hn::MulAdd(value, hn::Set(d, weight[j]), sum) : hn::Add(value, sum);
            }
            if (residual != nullptr) {
              sum = hn::Add(load_f32(d, residual + t * width + i), sum);
            }
            store_f32(d, sum, out + t * width + i);
          });
        }
      });
}

void TokensOfRows(const Routes& routes, DType type, std::int64_t width, const void* y,
                  bool weighted, const void* residual, void* out) {
  with_element(type, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    tokens_typed(routes, width, static_cast<const T*>(y), weighted, static_cast<const T*>(residual),
                 static_cast<T*>(out));
  });
}

template <class T>
void sums_typed(const Routes& routes, std::int64_t width, const T* x, const float* weights,
                float* sums) {
  const std::int64_t pieces = (width + kColumnsPerTask - 1) / kColumnsPerTask;
  parallel_tasks(routes.rule.experts * pieces, [&](std::int64_t task) HWY_ATTR {
    const std::int64_t e = task / pieces;
    const std::int64_t column = task % pieces * kColumnsPerTask;
    const std::int64_t columns = std::min(kColumnsPerTask, width - column);
    float* sum = sums + e * width + column;
    std::fill_n(sum, columns, 0.0F);
    for (std::int64_t r = routes.begin[static_cast<std::size_t>(e)];
         r < routes.begin[static_cast<std::size_t>(e + 1)]; ++r) {
      const float weight = weights == nullptr ? 1.0F : weights[r];
      for_lanes(columns, [&](auto d, auto i) HWY_ATTR {
        const auto value = load_f32(d, x + r * width + column + i);
        hn::StoreU(hn::MulAdd(value, hn::Set(d, weight), hn::LoadU(d, sum + i)), d, sum + i);
      });
    }
  });
}

void SumsOfExperts(const Routes& routes, DType type, std::int64_t width, const void* x,
                   const float* weights, float* sums) {
  with_element(type, [&](auto element) HWY_ATTR {
    sums_typed(routes, width, static_cast<const decltype(element)*>(x), weights, sums);
  });
}

template <class T>
void dots_typed(const Routes& routes, std::int64_t width, const T* x, const T* vectors,
                float* dots) {
  parallel_tasks(routes.rule.experts, [&](std::int64_t e) HWY_ATTR {
    const T* vector = vectors + e * width;
    for (std::int64_t r = routes.begin[static_cast<std::size_t>(e)];
         r < routes.begin[static_cast<std::size_t>(e + 1)]; ++r) {
      dots[r] += sum_lanes(width, [&](auto d, auto i) HWY_ATTR {
        return hn::Mul(load_f32(d, x + r * width + i), load_f32(d, vector + i));
      });
    }
  });
}

void AddExpertDots(const Routes& routes, DType type, std::int64_t width, const void* x,
                   const void* vectors, float* dots) {
  with_element(type, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    dots_typed(routes, width, static_cast<const T*>(x), static_cast<const T*>(vectors), dots);
  });
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {
HWY_EXPORT(Route);
HWY_EXPORT(RouteBackward);
HWY_EXPORT(TokensOfRows);
HWY_EXPORT(SumsOfExperts);
HWY_EXPORT(AddExpertDots);

namespace {

/// A counting sort: rows by expert, and by token within one.
void place_rows(Routes& routes) {
  for (const std::int32_t e : routes.expert) {
    ++routes.begin[static_cast<std::size_t>(e) + 1];
  }
  for (std::size_t e = 1; e < routes.begin.size(); ++e) {
    routes.begin[e] += routes.begin[e - 1];
  }
  std::vector<std::int64_t> next(routes.begin.begin(), routes.begin.end() - 1);
  for (std::size_t i = 0; i < routes.expert.size(); ++i) {
    const std::int64_t row = next[static_cast<std::size_t>(routes.expert[i])]++;
    routes.row[i] = static_cast<std::int32_t>(row);
    routes.token[static_cast<std::size_t>(row)] =
        static_cast<std::int32_t>(static_cast<std::int64_t>(i) / routes.rule.chosen);
  }
}

}  // namespace

std::vector<float> Routes::row_weights() const {
  std::vector<float> weights(token.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    weights[static_cast<std::size_t>(row[i])] = weight[i];
  }
  return weights;
}

Routes route_tokens(const RouterRule& rule, DType type, std::int64_t tokens, const void* logits) {
  TANDEM_CHECK(1 <= rule.chosen && rule.chosen <= rule.experts, "as many experts as are chosen");
  const auto rows = static_cast<std::size_t>(tokens * rule.chosen);
  Routes routes{.tokens = tokens, .rule = rule};
  routes.expert.resize(rows);
  routes.weight.resize(rows);
  routes.row.resize(rows);
  routes.token.resize(rows);
  routes.begin.assign(static_cast<std::size_t>(rule.experts + 1), 0);
  HWY_DYNAMIC_DISPATCH(Route)(type, logits, routes);
  place_rows(routes);
  return routes;
}

void route_backward(const Routes& routes, DType type, const void* logits, const float* drow_weights,
                    void* dlogits) {
  HWY_DYNAMIC_DISPATCH(RouteBackward)(routes, type, logits, drow_weights, dlogits);
}

void rows_of_tokens(const Routes& routes, DType type, std::int64_t width, const void* x,
                    void* out) {
  const std::int64_t bytes = width * static_cast<std::int64_t>(bytes_of(type));
  parallel_blocks(routes.rows(), kTokensPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::memcpy(
          static_cast<std::byte*>(out) + r * bytes,
          static_cast<const std::byte*>(x) + routes.token[static_cast<std::size_t>(r)] * bytes,
          static_cast<std::size_t>(bytes));
    }
  });
}

void tokens_of_rows(const Routes& routes, DType type, std::int64_t width, const void* y,
                    bool weighted, const void* residual, void* out) {
  HWY_DYNAMIC_DISPATCH(TokensOfRows)(routes, type, width, y, weighted, residual, out);
}

void sums_of_experts(const Routes& routes, DType type, std::int64_t width, const void* x,
                     const float* weights, float* sums) {
  HWY_DYNAMIC_DISPATCH(SumsOfExperts)(routes, type, width, x, weights, sums);
}

void add_expert_dots(const Routes& routes, DType type, std::int64_t width, const void* x,
                     const void* vectors, float* dots) {
  HWY_DYNAMIC_DISPATCH(AddExpertDots)(routes, type, width, x, vectors, dots);
}
}  // namespace tandem
#endif
