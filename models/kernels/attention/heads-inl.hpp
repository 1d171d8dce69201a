// models/kernels/attention/heads-inl.hpp — RMSNorm and rotary positions of one head's row, forward
// and backward; compiled once per SIMD target.
//
// Included after lanes-inl.hpp inside the foreach_target passes (hence no #pragma once).
#if defined(TANDEM_MODELS_KERNELS_HEADS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_MODELS_KERNELS_HEADS_INL
#undef TANDEM_MODELS_KERNELS_HEADS_INL
#else
#define TANDEM_MODELS_KERNELS_HEADS_INL
#endif

#include <cmath>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

constexpr std::int64_t kMaxHeadDim = 512;

/// The transform of a head of q or k between the projection and the scores.
template <class T>
struct HeadTransform {
  std::int64_t head_dim;
  const T* norm;      // null: none
  float norm_offset;  // added to the norm's weight: 0 or 1
  float eps;
  const float* cosine;  // of all positions; null: none
  const float* sine;
  std::int64_t rotary;

  [[nodiscard]] HWY_INLINE float inverse_rms(const T* raw) const {
    const float squares = sum_lanes(head_dim, [&](auto d, auto i) HWY_ATTR {
      const auto value = load_f32(d, raw + i);
      return hn::Mul(value, value);
    });
    return 1.0F / std::sqrt(squares / static_cast<float>(head_dim) + eps);
  }

  template <class D>
  HWY_INLINE hn::Vec<D> weight_at(D d, std::int64_t i) const {
    return hn::Add(load_f32(d, norm + i), hn::Set(d, norm_offset));
  }

  /// Rotates the pairs (i, i + rotary/2) by the position's angle, backwards if `direction` is -1.
  HWY_INLINE void rotate(float* row, std::int64_t position, float direction) const {
    const std::int64_t half = rotary / 2;
    const float* c = cosine + position * half;
    const float* s = sine + position * half;
    for_lanes(half, [&](auto d, auto i) HWY_ATTR {
      const auto x = hn::LoadU(d, row + i);
      const auto y = hn::LoadU(d, row + half + i);
      const auto ci = hn::LoadU(d, c + i);
      const auto si = hn::Mul(hn::LoadU(d, s + i), hn::Set(d, direction));
      hn::StoreU(hn::Sub(hn::Mul(x, ci), hn::Mul(y, si)), d, row + i);
      hn::StoreU(hn::Add(hn::Mul(y, ci), hn::Mul(x, si)), d, row + half + i);
    });
  }

  HWY_INLINE void forward(const T* raw, std::int64_t position, T* out) const {
    HWY_ALIGN float row[kMaxHeadDim];
    if (norm != nullptr) {
      const float scale = inverse_rms(raw);
      for_lanes(head_dim, [&](auto d, auto i) HWY_ATTR {
        const auto unit = hn::Mul(load_f32(d, raw + i), hn::Set(d, scale));
        hn::StoreU(hn::Mul(unit, weight_at(d, i)), d, row + i);
      });
    } else {
      for_lanes(head_dim,
                [&](auto d, auto i) HWY_ATTR { hn::StoreU(load_f32(d, raw + i), d, row + i); });
    }
    if (cosine != nullptr) {
      rotate(row, position, 1.0F);
    }
    for_lanes(head_dim,
              [&](auto d, auto i) HWY_ATTR { store_f32(d, hn::LoadU(d, row + i), out + i); });
  }

  /// `gradient`, which is overwritten, is the gradient of forward()'s output. Adds the gradient of
  /// the norm's weight to `dnorm`.
  HWY_INLINE void backward(const T* raw, std::int64_t position, float* gradient, T* draw,
                           float* dnorm) const {
    if (cosine != nullptr) {
      rotate(gradient, position, -1.0F);
    }
    if (norm == nullptr) {
      for_lanes(head_dim, [&](auto d, auto i)
                              HWY_ATTR { store_f32(d, hn::LoadU(d, gradient + i), draw + i); });
      return;
    }
    const float scale = inverse_rms(raw);
    const auto unit = [&](auto d, auto i)
                          HWY_ATTR { return hn::Mul(load_f32(d, raw + i), hn::Set(d, scale)); };
    const auto weighted = [&](auto d, auto i) HWY_ATTR {
      return hn::Mul(hn::LoadU(d, gradient + i), weight_at(d, i));
    };
    const float along =
        sum_lanes(head_dim,
                  [&](auto d, auto i) HWY_ATTR { return hn::Mul(weighted(d, i), unit(d, i)); }) /
        static_cast<float>(head_dim);
    for_lanes(head_dim, [&](auto d, auto i) HWY_ATTR {
      const auto u = unit(d, i);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, gradient + i), u, hn::LoadU(d, dnorm + i)), d, dnorm + i);
      const auto value = hn::NegMulAdd(u, hn::Set(d, along), weighted(d, i));
      store_f32(d, hn::Mul(value, hn::Set(d, scale)), draw + i);
    });
  }
};

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
