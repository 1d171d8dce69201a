// models/gpu/elements-inl.hpp — converts elements of rows between memory and fp32, singly or 16
// bytes at a time, on a GPU and on the host.
#pragma once

#include <cstdint>
#include <cstring>

#include "actors/kernels/dtype.hpp"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define TANDEM_ROWS inline __host__ __device__
#else
#define TANDEM_ROWS inline
#endif

namespace tandem::rows {

/// An element in memory and as a number. Rounds to nearest, ties to even.
struct F32 {
  using Stored = float;
  static TANDEM_ROWS float load(Stored x) { return x; }
  static TANDEM_ROWS Stored store(float x) { return x; }
};
struct Bf16 {
  using Stored = std::uint16_t;
  static TANDEM_ROWS float load(Stored x) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  static TANDEM_ROWS Stored store(float x) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7fffffffU) > 0x7f800000U) {
      return static_cast<Stored>((bits >> 16) | 0x40U);  // stays a NaN
    }
    return static_cast<Stored>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  }
};
struct F16 {
  using Stored = std::uint16_t;
#ifdef __CUDACC__
  static TANDEM_ROWS float load(Stored x) { return __half2float(__half(__half_raw{x})); }
  static TANDEM_ROWS Stored store(float x) { return static_cast<__half_raw>(__float2half_rn(x)).x; }
#else
  static float load(Stored x) {
    _Float16 value = 0;
    std::memcpy(&value, &x, sizeof(value));
    return static_cast<float>(value);
  }
  static Stored store(float x) {
    const auto value = static_cast<_Float16>(x);
    Stored bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  }
#endif
};

/// Calls call(element type). `call` may be of the host or of the device.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <class Call>
TANDEM_ROWS void with_type(DType type, Call call) {
  switch (type) {
    case DType::kF32:
      return call(F32());
    case DType::kBF16:
      return call(Bf16());
    case DType::kF16:
      return call(F16());
  }
}

/// The elements that a thread moves at once.
template <class Type, int kCount>
struct alignas(kCount * sizeof(typename Type::Stored)) Pack {
  typename Type::Stored of[kCount];

  static TANDEM_ROWS Pack at(const void* from) { return *static_cast<const Pack*>(from); }
  TANDEM_ROWS void to(void* place) const { *static_cast<Pack*>(place) = *this; }
};

}  // namespace tandem::rows
