// actors/kernels/dtype.hpp — element types of raw buffers, below LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem {

enum class DType : std::uint8_t { kF32, kBF16, kF16 };

constexpr std::size_t bytes_of(DType type) noexcept { return type == DType::kF32 ? 4 : 2; }
constexpr std::string_view name_of(DType type) noexcept {
  switch (type) {
    case DType::kF32:
      return "fp32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "fp16";
  }
  return "";
}

}  // namespace tandem
