// models/kernels/activation.cpp — compiled once per SIMD target (foreach_target).
#include "models/kernels/activation.hpp"

#include "models/kernels/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/kernels/activation.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"
#include "models/kernels/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0F);
  // Below -88 the result is zero to fp32, and beyond 104 Highway's Exp is undefined.
  const auto exponent = hn::Min(hn::Neg(x), hn::Set(d, 88.0F));
  return hn::Div(one, hn::Add(one, hn::Exp(d, exponent)));
}

/// The step of a backward between the activation's gradient and its rule: none, or a weight of the
/// row.
struct Unweighted {
  template <class D>
  HWY_INLINE hn::Vec<D> gradient(D, hn::Vec<D> da) const {
    return da;
  }
  template <class D>
  HWY_INLINE hn::Vec<D> output(D, hn::Vec<D> a, hn::Vec<D>) {
    return a;
  }
};

struct Weighted {
  float weight;
  hn::Vec<Lanes> slopes;
  float rest;  // of the tail

  template <class D>
  HWY_INLINE hn::Vec<D> gradient(D d, hn::Vec<D> da) const {
    return hn::Mul(da, hn::Set(d, weight));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> output(D d, hn::Vec<D> a, hn::Vec<D> da) {
    if constexpr (std::is_same_v<D, Lanes>) {
      slopes = hn::MulAdd(a, da, slopes);
    } else {
      rest += hn::GetLane(hn::SumOfLanes(d, hn::Mul(a, da)));
    }
    return hn::Mul(a, hn::Set(d, weight));
  }
  [[nodiscard]] HWY_INLINE float slope() const {
    return hn::GetLane(hn::SumOfLanes(Lanes(), slopes)) + rest;
  }
};

struct SwiGlu {
  template <class T>
  static void forward(std::int64_t width, const T* x, T* a) {
    for_lanes(width, [&](auto d, auto i) HWY_ATTR {
      const auto g = load_f32(d, x + i);
      const auto u = load_f32(d, x + width + i);
      store_f32(d, hn::Mul(hn::Mul(g, sigmoid(d, g)), u), a + i);
    });
  }

  template <class T, class Scale>
  static void backward(std::int64_t width, T* x, T* da, Scale& scale) {
    for_lanes(width, [&](auto d, auto i) HWY_ATTR {
      const auto g = load_f32(d, x + i);
      const auto u = load_f32(d, x + width + i);
      const auto given = load_f32(d, da + i);
      const auto gradient = scale.gradient(d, given);
      const auto s = sigmoid(d, g);
      const auto silu = hn::Mul(g, s);
      // silu'(g) = s (1 + g (1 - s)) = s + silu (1 - s)
      const auto slope = hn::MulAdd(silu, hn::Sub(hn::Set(d, 1.0F), s), s);
      store_f32(d, hn::Mul(hn::Mul(gradient, u), slope), x + i);
      store_f32(d, hn::Mul(gradient, silu), x + width + i);
      store_f32(d, scale.output(d, hn::Mul(silu, u), given), da + i);
    });
  }
};

struct ClampedSwiGlu {
  template <class T>
  static void forward(std::int64_t width, const T* x, T* a) {
    for_lanes(width, [&](auto d, auto i) HWY_ATTR {
      const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
      const auto low = load_f32(d, x + 2 * i);
      const auto high = load_f32(d, x + 2 * i + lanes);
      const auto g = hn::Min(even(d, low, high), hn::Set(d, kGateLimit));
      const auto u = clamped(d, odd(d, low, high));
      const auto glu = hn::Mul(g, sigmoid(d, hn::Mul(g, hn::Set(d, kGateSlope))));
      store_f32(d, hn::Mul(hn::Add(u, hn::Set(d, 1.0F)), glu), a + i);
    });
  }

  template <class T, class Scale>
  static void backward(std::int64_t width, T* x, T* da, Scale& scale) {
    for_lanes(width, [&](auto d, auto i) HWY_ATTR {
      const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
      const auto one = hn::Set(d, 1.0F);
      const auto alpha = hn::Set(d, kGateSlope);
      const auto low = load_f32(d, x + 2 * i);
      const auto high = load_f32(d, x + 2 * i + lanes);
      const auto gate = even(d, low, high);
      const auto up = odd(d, low, high);
      const auto g = hn::Min(gate, hn::Set(d, kGateLimit));
      const auto u = clamped(d, up);
      const auto given = load_f32(d, da + i);
      const auto gradient = scale.gradient(d, given);
      const auto s = sigmoid(d, hn::Mul(g, alpha));
      const auto glu = hn::Mul(g, s);
      // (g s(alpha g))' = s + alpha g s (1 - s)
      const auto slope = hn::MulAdd(hn::Mul(alpha, glu), hn::Sub(one, s), s);
      const auto dg = hn::Mul(hn::Mul(gradient, hn::Add(u, one)), slope);
      const auto du = hn::Mul(gradient, glu);
      // Cut values move nothing; those at the limit itself do, as PyTorch's clamp has it.
      const auto dgate = hn::IfThenElseZero(hn::Eq(g, gate), dg);
      const auto dup = hn::IfThenElseZero(hn::Eq(u, up), du);
      store_pairs(d, dgate, dup, x + 2 * i);
      store_f32(d, scale.output(d, hn::Mul(hn::Add(u, one), glu), given), da + i);
    });
  }

 private:
  template <class D>
  static HWY_INLINE hn::Vec<D> clamped(D d, hn::Vec<D> u) {
    return hn::Min(hn::Max(u, hn::Set(d, -kGateLimit)), hn::Set(d, kGateLimit));
  }
  // Two vectors of pairs <-> one of first elements and one of second ones.
  template <class D>
  static HWY_INLINE hn::Vec<D> even(D d, hn::Vec<D> low, hn::Vec<D> high) {
    if constexpr (hn::MaxLanes(D()) == 1) {
      return low;
    } else {
      return hn::ConcatEven(d, high, low);
    }
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> odd(D d, hn::Vec<D> low, hn::Vec<D> high) {
    if constexpr (hn::MaxLanes(D()) == 1) {
      return high;
    } else {
      return hn::ConcatOdd(d, high, low);
    }
  }
  template <class D, class T>
  static HWY_INLINE void store_pairs(D d, hn::Vec<D> first, hn::Vec<D> second, T* to) {
    HWY_ALIGN float pairs[2 * hn::MaxLanes(D())];
    hn::StoreInterleaved2(first, second, d, pairs);
    const std::size_t lanes = hn::Lanes(d);
    store_f32(d, hn::LoadU(d, pairs), to);
    store_f32(d, hn::LoadU(d, pairs + lanes), to + lanes);
  }
};

struct GeluTanh {
  template <class D>
  struct Value {
    hn::Vec<D> a, slope;
  };

  template <class D>
  static HWY_INLINE hn::Vec<D> of(D d, hn::Vec<D> v) {
    return hn::Mul(v, sigmoid(d, twice_z(d, v)));
  }
  template <class D>
  static HWY_INLINE Value<D> with_slope(D d, hn::Vec<D> v) {
    const auto s = sigmoid(d, twice_z(d, v));
    const auto a = hn::Mul(v, s);
    // (x s)' = s + x s (1 - s) (2 z)'
    const auto inner = hn::Mul(
        hn::Set(d, kRoot), hn::MulAdd(hn::Set(d, 3.0F * kCubic), hn::Mul(v, v), hn::Set(d, 1.0F)));
    return {a, hn::MulAdd(hn::Mul(a, hn::Sub(hn::Set(d, 1.0F), s)), inner, s)};
  }

  template <class T>
  static void forward(std::int64_t width, const T* x, T* a) {
    for_lanes(width,
              [&](auto d, auto i) HWY_ATTR { store_f32(d, of(d, load_f32(d, x + i)), a + i); });
  }

  template <class T, class Scale>
  static void backward(std::int64_t width, T* x, T* da, Scale& scale) {
    for_lanes(width, [&](auto d, auto i) HWY_ATTR {
      const auto given = load_f32(d, da + i);
      const auto gelu = with_slope(d, load_f32(d, x + i));
      store_f32(d, hn::Mul(scale.gradient(d, given), gelu.slope), x + i);
      store_f32(d, scale.output(d, gelu.a, given), da + i);
    });
  }

 private:
  static constexpr float kRoot = 1.5957691216057308F;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715F;

  template <class D>
  static HWY_INLINE hn::Vec<D> twice_z(D d, hn::Vec<D> v) {
    const auto cube = hn::Mul(hn::Mul(v, v), v);
    return hn::Mul(hn::Set(d, kRoot), hn::MulAdd(hn::Set(d, kCubic), cube, v));
  }
};

struct GeGluTanh {
  template <class T>
  static void forward(std::int64_t width, const T* x, T* a) {
    for_lanes(width, [&](auto d, auto i) HWY_ATTR {
      const auto gelu = GeluTanh::of(d, load_f32(d, x + i));
      store_f32(d, hn::Mul(gelu, load_f32(d, x + width + i)), a + i);
    });
  }

  template <class T, class Scale>
  static void backward(std::int64_t width, T* x, T* da, Scale& scale) {
    for_lanes(width, [&](auto d, auto i) HWY_ATTR {
      const auto gelu = GeluTanh::with_slope(d, load_f32(d, x + i));
      const auto u = load_f32(d, x + width + i);
      const auto given = load_f32(d, da + i);
      const auto gradient = scale.gradient(d, given);
      store_f32(d, hn::Mul(hn::Mul(gradient, u), gelu.slope), x + i);
      store_f32(d, hn::Mul(gradient, gelu.a), x + width + i);
      store_f32(d, scale.output(d, hn::Mul(gelu.a, u), given), da + i);
    });
  }
};

template <class Kind, class T>
void forward_rows(std::int64_t rows, std::int64_t width, std::int64_t inputs, const T* x, T* a) {
  parallel_blocks(rows, 32, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    for (std::int64_t r = begin; r < end; ++r) {
      Kind::forward(width, x + r * width * inputs, a + r * width);
    }
  });
}

/// weights: null for none; then `slopes` is left alone.
template <class Kind, class T>
void backward_rows(std::int64_t rows, std::int64_t width, std::int64_t inputs, T* x, T* da,
                   const float* weights, float* slopes) {
  parallel_blocks(rows, 32, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    for (std::int64_t r = begin; r < end; ++r) {
      if (weights == nullptr) {
        Unweighted scale;
        Kind::backward(width, x + r * width * inputs, da + r * width, scale);
      } else {
        Weighted scale{weights[r], hn::Zero(Lanes()), 0.0F};
        Kind::backward(width, x + r * width * inputs, da + r * width, scale);
        slopes[r] = scale.slope();
      }
    }
  });
}

template <class Call>
void choose_kind(Activation kind, DType type, Call call) {
  with_element(type, [&](auto element) HWY_ATTR {
    switch (kind) {
      case Activation::kSwiGlu:
        return call(SwiGlu(), element);
      case Activation::kGeluTanh:
        return call(GeluTanh(), element);
      case Activation::kGeGluTanh:
        return call(GeGluTanh(), element);
      case Activation::kClampedSwiGlu:
        return call(ClampedSwiGlu(), element);
    }
  });
}

void ActivationForward(Activation kind, DType type, std::int64_t rows, std::int64_t width,
                       const void* x, void* a) {
  choose_kind(kind, type, [&](auto k, auto element) HWY_ATTR {
    using T = decltype(element);
    forward_rows<decltype(k)>(rows, width, inputs_per_output(kind), static_cast<const T*>(x),
                              static_cast<T*>(a));
  });
}

void ActivationBackward(Activation kind, DType type, std::int64_t rows, std::int64_t width, void* x,
                        void* da, const float* weights, float* slopes) {
  choose_kind(kind, type, [&](auto k, auto element) HWY_ATTR {
    using T = decltype(element);
    backward_rows<decltype(k)>(rows, width, inputs_per_output(kind), static_cast<T*>(x),
                               static_cast<T*>(da), weights, slopes);
  });
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {
HWY_EXPORT(ActivationForward);
HWY_EXPORT(ActivationBackward);

void activation_forward(Activation kind, DType type, std::int64_t rows, std::int64_t width,
                        const void* x, void* a) {
  HWY_DYNAMIC_DISPATCH(ActivationForward)(kind, type, rows, width, x, a);
}

void activation_backward(Activation kind, DType type, std::int64_t rows, std::int64_t width,
                         void* x, void* da) {
  HWY_DYNAMIC_DISPATCH(ActivationBackward)(kind, type, rows, width, x, da, nullptr, nullptr);
}

void weighted_activation_backward(Activation kind, DType type, std::int64_t rows,
                                  std::int64_t width, void* x, void* da, const float* weights,
                                  float* slopes) {
  HWY_DYNAMIC_DISPATCH(ActivationBackward)(kind, type, rows, width, x, da, weights, slopes);
}
}  // namespace tandem
#endif
