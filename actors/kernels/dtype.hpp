// actors/kernels/dtype.hpp — element types of raw buffers, below LibTorch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/util/enum_names.hpp"

namespace tandem {

enum class DType : std::uint8_t { kF32, kBF16, kF16 };

constexpr std::size_t bytes_of(DType type) noexcept { return type == DType::kF32 ? 4 : 2; }
template <>
inline constexpr auto kEnumNames<DType> = std::array{
    EnumName{DType::kF32, "fp32"}, EnumName{DType::kBF16, "bf16"}, EnumName{DType::kF16, "fp16"}};

}  // namespace tandem
