// actors/dtype.hpp — element types of raw buffers, below LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem {

enum class DType : std::uint8_t { kF32, kBF16 };

constexpr std::size_t bytes_of(DType type) noexcept { return type == DType::kF32 ? 4 : 2; }
constexpr std::string_view name_of(DType type) noexcept {
  return type == DType::kF32 ? "fp32" : "bf16";
}

}  // namespace tandem
