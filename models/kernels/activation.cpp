// models/kernels/activation.cpp — see activation.hpp. Compiled once per SIMD target by Highway's foreach_target.
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

struct SwiGlu {
  template <class T>
  static void forward(std::int64_t width, const T* x, T* a) {
    for_lanes(width, [&](auto d, auto i) HWY_ATTR {
      const auto g = load_f32(d, x + i);
      const auto u = load_f32(d, x + width + i);
      store_f32(d, hn::Mul(hn::Mul(g, sigmoid(d, g)), u), a + i);
    });
  }

  template <class T>
  static void backward(std::int64_t width, T* x, T* da) {
    for_lanes(width, [&](auto d, auto i) HWY_ATTR {
      const auto g = load_f32(d, x + i);
      const auto u = load_f32(d, x + width + i);
      const auto gradient = load_f32(d, da + i);
      const auto s = sigmoid(d, g);
      const auto silu = hn::Mul(g, s);
      // silu'(g) = s (1 + g (1 - s)) = s + silu (1 - s)
      const auto slope = hn::MulAdd(silu, hn::Sub(hn::Set(d, 1.0F), s), s);
      store_f32(d, hn::Mul(hn::Mul(gradient, u), slope), x + i);
      store_f32(d, hn::Mul(gradient, silu), x + width + i);
      store_f32(d, hn::Mul(silu, u), da + i);
    });
  }
};

struct GeluTanh {
  static constexpr float kRoot = 1.5957691216057308F;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715F;

  template <class T>
  static void forward(std::int64_t width, const T* x, T* a) {
    for_lanes(width, [&](auto d, auto i) HWY_ATTR {
      const auto v = load_f32(d, x + i);
      store_f32(d, hn::Mul(v, sigmoid(d, twice_z(d, v))), a + i);
    });
  }

  template <class T>
  static void backward(std::int64_t width, T* x, T* da) {
    for_lanes(width, [&](auto d, auto i) HWY_ATTR {
      const auto v = load_f32(d, x + i);
      const auto gradient = load_f32(d, da + i);
      const auto s = sigmoid(d, twice_z(d, v));
      const auto a = hn::Mul(v, s);
      // (x s)' = s + x s (1 - s) (2 z)'
      const auto inner = hn::Mul(hn::Set(d, kRoot), hn::MulAdd(hn::Set(d, 3.0F * kCubic),
                                                               hn::Mul(v, v), hn::Set(d, 1.0F)));
      const auto slope = hn::MulAdd(hn::Mul(a, hn::Sub(hn::Set(d, 1.0F), s)), inner, s);
      store_f32(d, hn::Mul(gradient, slope), x + i);
      store_f32(d, a, da + i);
    });
  }

 private:
  template <class D>
  static HWY_INLINE hn::Vec<D> twice_z(D d, hn::Vec<D> v) {
    const auto cube = hn::Mul(hn::Mul(v, v), v);
    return hn::Mul(hn::Set(d, kRoot), hn::MulAdd(hn::Set(d, kCubic), cube, v));
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

template <class Kind, class T>
void backward_rows(std::int64_t rows, std::int64_t width, std::int64_t inputs, T* x, T* da) {
  parallel_blocks(rows, 32, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    for (std::int64_t r = begin; r < end; ++r) {
      Kind::backward(width, x + r * width * inputs, da + r * width);
    }
  });
}

template <class Call>
void choose_kind(Activation kind, DType type, Call call) {
  with_element(type, [&](auto element) HWY_ATTR {
    kind == Activation::kSwiGlu ? call(SwiGlu(), element) : call(GeluTanh(), element);
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
                        void* da) {
  choose_kind(kind, type, [&](auto k, auto element) HWY_ATTR {
    using T = decltype(element);
    backward_rows<decltype(k)>(rows, width, inputs_per_output(kind), static_cast<T*>(x),
                               static_cast<T*>(da));
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
  HWY_DYNAMIC_DISPATCH(ActivationBackward)(kind, type, rows, width, x, da);
}
}  // namespace tandem
#endif
