// Element types of safetensors files, and their conversion from and to fp32.
#include <array>
#include <bit>
#include <cstring>

#include <fmt/ranges.h>

#include "actors/kernels/reduce.hpp"
#include "actors/storage/safetensors.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

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

// An array that is at least as large does not stay in a core's second-level cache anyway.
constexpr std::size_t kPastCachesElements = std::size_t{1} << 18;

/// F32, BF16 and F16: those that the kernels know.
DType kernel_type_of(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return DType::kF32;
    case TensorType::kBF16:
      return DType::kBF16;
    default:
      TANDEM_CHECK(type == TensorType::kF16, "weights are F32, BF16 or F16");
      return DType::kF16;
  }
}

}  // namespace

std::string_view name_of(TensorType type) noexcept {
  return kTypes[static_cast<std::size_t>(type)].name;
}

std::size_t bytes_of(TensorType type) noexcept {
  return kTypes[static_cast<std::size_t>(type)].bytes;
}

std::optional<TensorType> type_named(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].name == name) {
      return static_cast<TensorType>(i);
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> checked_size_bytes(std::span<const std::int64_t> shape,
                                                TensorType type) noexcept {
  auto bytes = static_cast<std::int64_t>(bytes_of(type));
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return static_cast<std::uint64_t>(bytes);
}

std::string_view torch_dtype_of(TensorType type) noexcept {
  return type == TensorType::kBF16 ? "bfloat16" : type == TensorType::kF16 ? "float16" : "float32";
}

TensorType tensor_type_of(std::string_view torch_dtype) {
  for (const TensorType type : {TensorType::kF32, TensorType::kBF16, TensorType::kF16}) {
    if (torch_dtype_of(type) == torch_dtype) {
      return type;
    }
  }
  throw user_error("checkpoint", "unknown type \"{}\"; weights are float32, bfloat16 or float16",
                   torch_dtype);
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
  if (type == TensorType::kF64) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      double value = 0;
      std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
      out[i] = static_cast<float>(value);
    }
  } else if (out.size() >= kPastCachesElements) {
    widen_past_caches(bytes.data(), kernel_type_of(type), out.data(), out.size());
  } else {
    cast(bytes.data(), kernel_type_of(type), out.data(), DType::kF32, 0, out.size());
  }
}

void convert_from_f32(TensorType type, std::span<const float> values, std::span<std::byte> out) {
  TANDEM_CHECK(out.size() == values.size() * bytes_of(type), "whole elements at a time");
  cast(values.data(), DType::kF32, out.data(), kernel_type_of(type), 0, values.size());
}

}  // namespace tandem
