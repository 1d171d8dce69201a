// actors/kernels/update/state_memory.cpp — converts one element at a time, because it runs only
// when weights are loaded or saved.
#include "actors/kernels/update/state_memory.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "actors/kernels/reduce.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {

namespace {

constexpr std::uint32_t kSignBit = 0x80000000;
constexpr std::uint32_t kMagnitude = 0x7fffffff;
constexpr std::uint32_t kInfinity = 0x7f800000;

bool is_split(const UpdateBuffers& b) {
  return b.layout != StateLayout::kFp32 && b.weight != nullptr;
}

/// The fp32 moments whose signs hold the ties of a split master.
std::uint32_t* ties_of(const UpdateBuffers& b) {
  if (b.layout != StateLayout::kSplit) {
    return nullptr;
  }
  return static_cast<std::uint32_t*>(b.state[1] != nullptr ? b.state[1] : b.state[0]);
}

bool has_ties(const UpdateBuffers& b, std::size_t array) {
  return b.state[array] != nullptr && ties_of(b) == b.state[array];
}

void split_one(float value, std::uint16_t& high, std::uint16_t& low, std::uint32_t* tie) {
  auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {
    bits = (bits | 0x00400000) & 0xffff0000;
  }
  high = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  low = static_cast<std::uint16_t>(bits);
  const bool rounded_down = (bits & 0x1ffff) == 0x8000;
  if (tie != nullptr) {
    *tie = (*tie & kMagnitude) | (rounded_down ? kSignBit : 0);
  } else if (rounded_down) {
    low = 0x7fff;
  }
}

float join_one(std::uint16_t high, std::uint16_t low, const std::uint32_t* tie) {
  const auto rest = static_cast<std::uint32_t>(static_cast<std::int16_t>(low));
  const std::uint32_t down = tie == nullptr ? 0 : *tie >> 31 << 16;
  return std::bit_cast<float>((std::uint32_t{high} << 16) + rest + down);
}

/// 8-bit codes of one block: m (signed, 16 binades) or v (32 binades).
struct CodeFormat {
  std::uint32_t binades;
  std::uint32_t greatest;

  [[nodiscard]] std::uint32_t base(std::uint8_t scale) const {
    return scale < binades ? 0 : (scale + 1 - binades) * 8;
  }
};
constexpr CodeFormat kFormats[2] = {{16, 127}, {32, 255}};

float decode(std::size_t array, std::uint8_t code, std::uint8_t scale) {
  const CodeFormat& format = kFormats[array];
  const std::uint32_t magnitude = array == 0 ? code & 0x7fU : code;
  std::uint32_t bits = magnitude == 0 ? 0 : (magnitude + format.base(scale)) << 20;
  bits |= array == 0 && (code & 0x80) != 0 ? kSignBit : 0;
  return std::bit_cast<float>(scale == 255 ? bits | 0x7fc00000 : bits);
}

std::uint8_t encode(std::size_t array, float value, std::uint8_t scale) {
  const CodeFormat& format = kFormats[array];
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & kMagnitude;
  const auto steps = static_cast<std::int64_t>((magnitude + 0x80000) >> 20);
  std::int64_t code = std::clamp<std::int64_t>(steps - format.base(scale), 1, format.greatest);
  const std::uint32_t least = (format.base(scale) + 1) << 20;
  if (magnitude < least && array == 0) {
    code = std::bit_cast<float>(magnitude) * 2 > std::bit_cast<float>(least) ? 1 : 0;
  }
  code = magnitude == 0 ? 0 : code;
  return static_cast<std::uint8_t>(array == 0 ? code | (bits >> 31 << 7) : code);
}

std::uint8_t scale_of(const float* values, std::size_t count) {
  std::uint32_t greatest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    greatest = std::max(greatest, std::bit_cast<std::uint32_t>(values[i]) & kMagnitude);
  }
  return static_cast<std::uint8_t>(
      greatest >= kInfinity ? 255 : std::min<std::uint32_t>((greatest + 0xfffff) >> 23, 254));
}

void write_codes(const UpdateBuffers& b, std::size_t array, const float* values, std::size_t begin,
                 std::size_t end) {
  TANDEM_CHECK_EQ(begin % kScaleGroup, 0U, "8-bit state is written in whole blocks");
  auto* codes = static_cast<std::uint8_t*>(b.state[array]);
  for (std::size_t first = begin; first < end; first += kScaleGroup) {
    const std::size_t count = std::min(kScaleGroup, end - first);
    const float* block = values + (first - begin);
    const std::uint8_t scale = scale_of(block, count);
    b.scale[array][first / kScaleGroup] = scale;
    for (std::size_t i = 0; i < count; ++i) {
      codes[first + i] = encode(array, block[i], scale);
    }
  }
}

}  // namespace

std::string_view why_unsupported(OptimizerKind kind, StateLayout layout, DType weight) noexcept {
  if (layout == StateLayout::kFp32) {
    return "";
  }
  if (weight == DType::kF16) {
    return "fp16 weights are no half of an fp32 master";
  }
  const OptimizerTraits& optimizer = traits_of(kind);
  if (!optimizer.supports(layout)) {
    return optimizer.refused[static_cast<std::size_t>(layout)];
  }
  return layout == StateLayout::kSplit && weight != DType::kBF16
             ? "fp32 weights are their own master, there is nothing to split"
             : "";
}

std::size_t StateSizes::total(std::size_t alignment) const noexcept {
  std::size_t bytes = 0;
  for (const std::size_t array : {master, state[0], state[1], scale[0], scale[1]}) {
    bytes += round_up(array, alignment);
  }
  return bytes;
}

StateSizes state_sizes(StateLayout layout, const UpdateConfig& config, DType weight,
                       std::size_t elements) noexcept {
  StateSizes sizes;
  if (weight != DType::kF32) {
    sizes.master = elements * (layout == StateLayout::kFp32 ? 4 : 2);
  }
  const std::size_t moment = layout == StateLayout::kInt8   ? 1
                             : layout == StateLayout::kBf16 ? 2
                                                            : 4;
  for (std::size_t array = 0; array < state_arrays(config); ++array) {
    sizes.state[array] = elements * moment;
    if (layout == StateLayout::kInt8) {
      sizes.scale[array] = (elements + kScaleGroup - 1) / kScaleGroup;
    }
  }
  return sizes;
}

std::size_t state_bytes(StateLayout layout, const UpdateConfig& config, DType weight,
                        std::size_t elements) noexcept {
  return state_sizes(layout, config, weight, elements).total();
}

UpdateSource source_of(const UpdateBuffers& b) noexcept {
  return {.master = b.master,
          .state = {b.state[0], b.state[1]},
          .scale = {b.scale[0], b.scale[1]},
          .weight = b.weight};
}

void write_master(const UpdateBuffers& b, const float* values, std::size_t begin, std::size_t end) {
  if (!is_split(b)) {
    if (b.master != nullptr) {
      std::copy_n(values, end - begin, static_cast<float*>(b.master) + begin);
    }
    if (b.weight != nullptr) {
      auto* weight = static_cast<std::byte*>(b.weight) + begin * bytes_of(b.weight_type);
      cast(values, DType::kF32, weight, b.weight_type, 0, end - begin);
    }
    return;
  }
  auto* high = static_cast<std::uint16_t*>(b.weight);
  auto* low = static_cast<std::uint16_t*>(b.master);
  std::uint32_t* ties = ties_of(b);
  for (std::size_t i = begin; i < end; ++i) {
    split_one(values[i - begin], high[i], low[i], ties == nullptr ? nullptr : ties + i);
  }
}

void read_master(const UpdateBuffers& b, float* values, std::size_t begin, std::size_t end) {
  if (!is_split(b) && b.master == nullptr) {
    const auto* weight = static_cast<const std::byte*>(b.weight) + begin * bytes_of(b.weight_type);
    cast(weight, b.weight_type, values, DType::kF32, 0, end - begin);
    return;
  }
  if (!is_split(b)) {
    std::copy_n(static_cast<const float*>(b.master) + begin, end - begin, values);
    return;
  }
  const auto* high = static_cast<const std::uint16_t*>(b.weight);
  const auto* low = static_cast<const std::uint16_t*>(b.master);
  const std::uint32_t* ties = ties_of(b);
  for (std::size_t i = begin; i < end; ++i) {
    values[i - begin] = join_one(high[i], low[i], ties == nullptr ? nullptr : ties + i);
  }
}

void write_state(const UpdateBuffers& b, std::size_t array, const float* values, std::size_t begin,
                 std::size_t end) {
  if (b.layout == StateLayout::kInt8) {
    return write_codes(b, array, values, begin, end);
  }
  if (b.layout == StateLayout::kBf16) {
    auto* state = static_cast<std::uint16_t*>(b.state[array]) + begin;
    cast(values, DType::kF32, state, DType::kBF16, 0, end - begin);
    return;
  }
  auto* state = static_cast<std::uint32_t*>(b.state[array]);
  const std::uint32_t kept = has_ties(b, array) ? kSignBit : 0;
  for (std::size_t i = begin; i < end; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i - begin]);
    state[i] = (state[i] & kept) | (bits & ~kept);
  }
}

void read_state(const UpdateBuffers& b, std::size_t array, float* values, std::size_t begin,
                std::size_t end) {
  if (b.layout == StateLayout::kInt8) {
    const auto* codes = static_cast<const std::uint8_t*>(b.state[array]);
    for (std::size_t i = begin; i < end; ++i) {
      values[i - begin] = decode(array, codes[i], b.scale[array][i / kScaleGroup]);
    }
    return;
  }
  if (b.layout == StateLayout::kBf16) {
    const auto* state = static_cast<const std::uint16_t*>(b.state[array]) + begin;
    cast(state, DType::kBF16, values, DType::kF32, 0, end - begin);
    return;
  }
  const auto* state = static_cast<const std::uint32_t*>(b.state[array]);
  const std::uint32_t kept = has_ties(b, array) ? kSignBit : 0;
  for (std::size_t i = begin; i < end; ++i) {
    values[i - begin] = std::bit_cast<float>(state[i] & ~kept);
  }
}

}  // namespace tandem
