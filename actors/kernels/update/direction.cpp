// actors/kernels/update/direction.cpp — compiled once per SIMD target (foreach_target).
#include "actors/kernels/update/direction.hpp"

#include <algorithm>
#include <cmath>

#include "actors/kernels/reduce.hpp"
#include "runtime/util/check.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "actors/kernels/update/direction.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;

/// p, and what is read and written: gradient or direction, and the moments.
struct DirectionArrays {
  const float* p;
  float* g;
  float* m;
  float* v;
};

struct LambRule {
  LambDirection s;

  HWY_INLINE VF32 operator()(F32 d, VF32 p, VF32 g, VF32& m, VF32& v) const {
    m = hn::Add(hn::Mul(hn::Set(d, s.beta1), m), hn::Mul(hn::Set(d, s.one_minus_beta1), g));
    v = hn::Add(hn::Mul(hn::Set(d, s.beta2), v),
                hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g));
    const auto eps = hn::Set(d, s.eps);
    const auto denominator =
        s.eps_inside_sqrt ? hn::Sqrt(hn::Add(v, eps)) : hn::Add(hn::Sqrt(v), eps);
    return hn::Add(hn::Div(m, denominator), hn::Mul(hn::Set(d, s.decay), p));
  }
};

struct MuonRule {
  MuonDirection s;

  HWY_INLINE VF32 operator()(F32 d, VF32 /*p*/, VF32 g, VF32& m, VF32& /*v*/) const {
    const auto kept = hn::Set(d, s.momentum);
    const auto share = hn::Mul(hn::Set(d, s.one_minus_momentum), g);
    m = hn::Add(hn::Mul(kept, m), share);
    return s.nesterov ? hn::Add(share, hn::Mul(kept, m)) : m;
  }
};

template <bool kHasSecond, class Rule>
HWY_INLINE void one_vector(const Rule& rule, const DirectionArrays& a, std::size_t i) {
  const F32 d;
  const auto g = hn::Mul(hn::LoadU(d, a.g + i), hn::Set(d, rule.s.gradient_scale));
  auto m = hn::LoadU(d, a.m + i);
  auto v = hn::Zero(d);
  if constexpr (kHasSecond) {
    v = hn::LoadU(d, a.v + i);
  }
  const auto u = rule(d, hn::LoadU(d, a.p + i), g, m, v);
  hn::StoreU(m, d, a.m + i);
  if constexpr (kHasSecond) {
    hn::StoreU(v, d, a.v + i);
  }
  hn::StoreU(u, d, a.g + i);
}

/// The rest of a vector goes through full ones on the stack.
template <bool kHasSecond, class Rule>
void direction_of(const Rule& shared, DirectionArrays a, std::size_t count) {
  const Rule rule = shared;
  const std::size_t lanes = hn::Lanes(F32());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    one_vector<kHasSecond>(rule, a, i);
  }
  if (i == count) {
    return;
  }
  constexpr std::size_t kLanes = hn::MaxLanes(F32());
  float p[kLanes] = {};
  float g[kLanes] = {};
  float m[kLanes] = {};
  float v[kLanes] = {};
  const std::size_t rest = count - i;
  std::copy_n(a.p + i, rest, p);
  std::copy_n(a.g + i, rest, g);
  std::copy_n(a.m + i, rest, m);
  if constexpr (kHasSecond) {
    std::copy_n(a.v + i, rest, v);
  }
  one_vector<kHasSecond>(rule, {p, g, m, v}, 0);
  std::copy_n(g, rest, a.g + i);
  std::copy_n(m, rest, a.m + i);
  if constexpr (kHasSecond) {
    std::copy_n(v, rest, a.v + i);
  }
}

void lamb_direction(const LambDirection& step, const float* p, float* g, float* m, float* v,
                    std::size_t count) {
  direction_of<true>(LambRule{step}, {p, g, m, v}, count);
}

void muon_direction(const MuonDirection& step, const float* p, float* g, float* m, float* v,
                    std::size_t count) {
  direction_of<false>(MuonRule{step}, {p, g, m, v}, count);
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(lamb_direction);
HWY_EXPORT(muon_direction);

namespace {

/// visit(first, last) for what lies between two multiples of kNormTile.
template <class Visit>
void for_blocks(std::size_t begin, std::size_t end, Visit visit) {
  for (std::size_t first = begin; first < end;) {
    const std::size_t last = std::min(end, (first / kNormTile + 1) * kNormTile);
    visit(first, last);
    first = last;
  }
}

void add_block(const float* values, std::size_t first, std::size_t last, ExactSum& sum) {
  GradientNorm norm;
  add_norm(values + first, DType::kF32, 0, last - first, norm);
  sum.merge(norm.sum_of_squares);
}

/// Pieces of the elements [begin, end); they ascend.
std::span<DirectionPiece> pieces_in(Direction& direction, std::size_t begin, std::size_t end) {
  const auto first = std::ranges::lower_bound(direction.pieces, begin, {}, &DirectionPiece::begin);
  const auto last = std::ranges::lower_bound(direction.pieces, end, {}, &DirectionPiece::begin);
  return {first, last};
}

void write_piece(const LambDirection& step, const UpdateBuffers& b, float* u,
                 DirectionPiece& piece) {
  const float* p = b.whole_master();
  auto* m = static_cast<float*>(b.state[0]);
  auto* v = static_cast<float*>(b.state[1]);
  piece.weights = {};
  piece.directions = {};
  for_blocks(piece.begin, piece.end, [&](std::size_t first, std::size_t last) {
    HWY_DYNAMIC_DISPATCH(lamb_direction)
    (step, p + first, u + first, m + first, v + first, last - first);
    add_block(p, first, last, piece.weights);
    add_block(u, first, last, piece.directions);
  });
}

void write_piece(const MuonDirection& step, const UpdateBuffers& b, float* u,
                 DirectionPiece& piece) {
  HWY_DYNAMIC_DISPATCH(muon_direction)
  (step, b.whole_master() + piece.begin, u + piece.begin,
   static_cast<float*>(b.state[0]) + piece.begin, nullptr, piece.end - piece.begin);
}

void write_piece(std::monostate, const UpdateBuffers&, float*, DirectionPiece&) {}

}  // namespace

DirectionStep direction_step(const UpdateConfig& c, double gradient_scale) {
  if (c.kind == OptimizerKind::kLamb) {
    return LambDirection{.gradient_scale = static_cast<float>(gradient_scale),
                         .beta1 = static_cast<float>(c.beta1),
                         .one_minus_beta1 = static_cast<float>(1.0 - c.beta1),
                         .beta2 = static_cast<float>(c.beta2),
                         .one_minus_beta2 = static_cast<float>(1.0 - c.beta2),
                         .eps = static_cast<float>(c.eps),
                         .decay = static_cast<float>(c.weight_decay),
                         .eps_inside_sqrt = c.eps_inside_sqrt};
  }
  if (c.kind == OptimizerKind::kMuon) {
    return MuonDirection{.gradient_scale = static_cast<float>(gradient_scale),
                         .momentum = static_cast<float>(c.momentum),
                         .one_minus_momentum = static_cast<float>(1.0 - c.momentum),
                         .nesterov = c.nesterov};
  }
  return std::monostate();
}

Direction Direction::of(std::span<const UpdateRange> ranges, float* values,
                        std::size_t chunk_elements) {
  TANDEM_CHECK(chunk_elements > 0 && chunk_elements % kNormTile == 0,
               "chunks end at block boundaries");
  Direction direction{.values = values, .pieces = {}};
  for (std::size_t range = 0; range < ranges.size(); ++range) {
    for (std::size_t first = ranges[range].begin; first < ranges[range].end;) {
      const std::size_t last =
          std::min(ranges[range].end, (first / chunk_elements + 1) * chunk_elements);
      direction.pieces.push_back(
          {.begin = first, .end = last, .range = range, .weights = {}, .directions = {}});
      first = last;
    }
  }
  return direction;
}

void write_direction(const UpdatedUnit& unit, const DirectionStep* steps, Direction& direction,
                     std::size_t begin, std::size_t end) {
  const UpdateBuffers& b = unit.buffers;
  TANDEM_CHECK(b.gradient == direction.values && b.gradient_type == DType::kF32 &&
                   b.layout == StateLayout::kFp32,
               "a direction is written over a gradient of fp32, beside state of fp32");
  for (DirectionPiece& piece : pieces_in(direction, begin, end)) {
    std::visit([&](const auto& step) { write_piece(step, b, direction.values, piece); },
               steps[unit.ranges[piece.range].group]);
  }
}

void add_squares(const Direction& direction, DirectionPiece& piece) {
  piece.directions = {};
  for_blocks(piece.begin, piece.end, [&](std::size_t first, std::size_t last) {
    add_block(direction.values, first, last, piece.directions);
  });
}

double trust_ratio(const UpdateConfig& config, const ExactSum& weights,
                   const ExactSum& direction) noexcept {
  const double w = std::sqrt(weights.value());
  const double u = std::sqrt(direction.value());
  if (w == 0.0 || u == 0.0) {
    return 1.0;
  }
  return std::clamp(w / u, config.min_coeff, config.max_coeff);
}

}  // namespace tandem
#endif
