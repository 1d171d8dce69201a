// models/kernels/cross_entropy.cpp — compiled once per SIMD target by
// Highway's foreach_target.
#include "models/kernels/cross_entropy.hpp"

#include <cmath>

#include "models/kernels/parallel.hpp"
#include "models/kernels/scratch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/kernels/cross_entropy.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"
#include "models/kernels/lanes-inl.hpp"

#ifndef TANDEM_CROSS_ENTROPY_SHARED
#define TANDEM_CROSS_ENTROPY_SHARED
namespace tandem {
namespace {
thread_local Scratch exponential_scratch;
}  // namespace
}  // namespace tandem
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

template <class From, class To>
double cross_entropy_row(const From* logits, To* gradient, std::int64_t label,
                         std::int64_t vocabulary, float scale) {
  const float largest = max_lanes(logits, vocabulary);
  const float target = load_one(logits + label);
  auto* exponentials = exponential_scratch.get<float>(static_cast<std::size_t>(vocabulary));
  const float sum = sum_lanes(vocabulary, [&](auto d, auto i) HWY_ATTR {
    const auto e = hn::Exp(d, hn::Sub(load_f32(d, logits + i), hn::Set(d, largest)));
    hn::StoreU(e, d, exponentials + i);
    return e;
  });
  if (gradient != nullptr) {
    const float factor = scale / sum;
    for_lanes(vocabulary, [&](auto d, auto i) HWY_ATTR {
      store_f32(d, hn::Mul(hn::LoadU(d, exponentials + i), hn::Set(d, factor)), gradient + i);
    });
    store_one(exponentials[label] * factor - scale, gradient + label);
  }
  return std::log(static_cast<double>(sum)) + static_cast<double>(largest) -
         static_cast<double>(target);
}

template <class From, class To>
void cross_entropy_rows(const From* logits, To* gradient, const std::int64_t* labels,
                        std::int64_t rows, std::int64_t vocabulary, float scale, double* losses) {
  parallel_blocks(rows, 16, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    for (std::int64_t r = begin; r < end; ++r) {
      To* to = gradient == nullptr ? nullptr : gradient + r * vocabulary;
      losses[r] = cross_entropy_row(logits + r * vocabulary, to, labels[r], vocabulary, scale);
    }
  });
}

void CrossEntropy(DType logits_type, void* logits, DType gradient_type, void* gradient,
                  const std::int64_t* labels, std::int64_t rows, std::int64_t vocabulary,
                  float scale, double* losses) {
  const auto run = [&](auto from, auto to) HWY_ATTR {
    cross_entropy_rows(static_cast<const decltype(from)*>(logits),
                       static_cast<decltype(to)*>(gradient), labels, rows, vocabulary, scale,
                       losses);
  };
  with_element(logits_type, [&](auto from) HWY_ATTR {
    with_element(gradient_type, [&](auto to) HWY_ATTR { run(from, to); });
  });
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {
HWY_EXPORT(CrossEntropy);

void cross_entropy(DType logits_type, void* logits, DType gradient_type, void* gradient,
                   const std::int64_t* labels, std::int64_t rows, std::int64_t vocabulary,
                   float scale, double* losses) {
  HWY_DYNAMIC_DISPATCH(CrossEntropy)
  (logits_type, logits, gradient_type, gradient, labels, rows, vocabulary, scale, losses);
}
}  // namespace tandem
#endif
