// Element types of safetensors files, and their conversion from and to fp32.
#include <array>
#include <bit>
#include <cstring>

#include <fmt/ranges.h>

#include "models/io/safetensors.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

static_assert(std::endian::native == std::endian::little, "the format stores little-endian values");

struct TypeRow {
  std::string_view name;
  std::size_t bytes;
};
// In the order of TensorType.
constexpr std::array<TypeRow, 17> kTypes = {{{"BOOL", 1},
                                             {"U8", 1},
                                             {"I8", 1},
                                             {"F8_E4M3", 1},
                                             {"F8_E5M2", 1},
                                             {"F8_E8M0", 1},
                                             {"U16", 2},
                                             {"I16", 2},
                                             {"F16", 2},
                                             {"BF16", 2},
                                             {"U32", 4},
                                             {"I32", 4},
                                             {"F32", 4},
                                             {"U64", 8},
                                             {"I64", 8},
                                             {"F64", 8},
                                             {"C64", 8}}};

template <class T>
T load(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void store(std::byte* to, T value) noexcept {
  std::memcpy(to, &value, sizeof value);
}

float f16_to_f32(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1Fu;
  const std::uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0x1F) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  }
  if (exponent == 0) {  // zero, denormal: mantissa * 2^-24
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

std::uint16_t f32_to_f16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<std::uint16_t>(sign | 0x7E00u);
  }
  if (magnitude >= 0x477FF000u) {  // 65520 and above round to infinity
    return static_cast<std::uint16_t>(sign | 0x7C00u);
  }
  if (magnitude <
      0x38800000u) {  // below 2^-14: adding 0.5 leaves the rounded denormal in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xFFFu + odd) >> 13));
}

std::uint16_t f32_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // stays NaN
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace

std::string_view name_of(TensorType type) noexcept {
  return kTypes[static_cast<std::size_t>(type)].name;
}

std::size_t bytes_of(TensorType type) noexcept {
  return kTypes[static_cast<std::size_t>(type)].bytes;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool is_float(TensorType type) noexcept {
  return type == TensorType::kF32 || type == TensorType::kBF16 || type == TensorType::kF16 ||
         type == TensorType::kF64;
}

void convert_to_f32(TensorType type, std::span<const std::byte> bytes, std::span<float> out) {
  TANDEM_CHECK(is_float(type) && bytes.size() == out.size() * bytes_of(type),
               "only float tensors are converted, whole elements at a time");
  const std::byte* from = bytes.data();
  switch (type) {
    case TensorType::kBF16:
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(from + 2 * i))
                                      << 16);
      }
      break;
    case TensorType::kF16:
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = f16_to_f32(load<std::uint16_t>(from + 2 * i));
      }
      break;
    case TensorType::kF64:
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<float>(load<double>(from + 8 * i));
      }
      break;
    default:
      if (!out.empty()) {
        std::memcpy(out.data(), from, bytes.size());
      }
  }
}

void convert_from_f32(TensorType type, std::span<const float> values, std::span<std::byte> out) {
  TANDEM_CHECK(out.size() == values.size() * bytes_of(type), "whole elements at a time");
  std::byte* to = out.data();
  switch (type) {
    case TensorType::kF32:
      if (!values.empty()) {
        std::memcpy(to, values.data(), out.size());
      }
      break;
    case TensorType::kBF16:
      for (std::size_t i = 0; i < values.size(); ++i) {
        store(to + 2 * i, f32_to_bf16(values[i]));
      }
      break;
    case TensorType::kF16:
      for (std::size_t i = 0; i < values.size(); ++i) {
        store(to + 2 * i, f32_to_f16(values[i]));
      }
      break;
    default:
      TANDEM_CHECK(false, "weights are written as F32, BF16 or F16");
  }
}

}  // namespace tandem
