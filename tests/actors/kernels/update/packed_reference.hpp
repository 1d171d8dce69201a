// tests/actors/kernels/update/packed_reference.hpp — state layouts one value at a time, as
// state_layout.hpp describes them, by arithmetic on values where the kernels use tricks with bits;
// and shards in any layout to run the kernels on.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <random>
#include <utility>
#include <vector>

#include "actors/kernels/update/optimizer_step.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "actors/kernels/update/update_pass.hpp"
#include "actors/memory/arena.hpp"

namespace tandem::test {

inline std::uint64_t mixed64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
  x = (x ^ x >> 27) * 0x94d049bb133111ebU;
  return x ^ x >> 31;
}

/// The 16 random bits of an element of a state array.
inline std::uint32_t rounding_bits16(const UpdateStep& step, std::uint64_t position,
                                     std::size_t array) {
  const auto key =
      static_cast<std::uint32_t>(mixed64(step.rounding_bits ^ mixed64(position >> 32)));
  std::uint32_t x = key + static_cast<std::uint32_t>(position) * 0x9e3779b1U;
  x = (x ^ x >> 16) * 0x7feb352dU;
  x = (x ^ x >> 15) * 0x846ca68bU;
  x ^= x >> 16;
  return array == 0 ? x & 0xffff : x >> 16;
}

/// bf16, up with the probability of what is cut off.
inline float rounded_to_bf16(float value, std::uint32_t random, bool above_zero) {
  const float below = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffff0000U);
  if (!std::isfinite(value) || std::abs(value) >= 0x1.fep127F) {
    return below;
  }
  const float above = std::bit_cast<float>(std::bit_cast<std::uint32_t>(below) + 0x10000U);
  const double part = (double{value} - below) / (double{above} - below);
  const float chosen = part + random / 65536.0 >= 1 ? above : below;
  return above_zero && value > 0 && chosen == 0 ? above : chosen;
}

/// The value of a code in steps of an eighth of a binade, counted from the least number.
inline double step_value(int step) {
  const int exponent = step / 8;
  return exponent == 0 ? std::ldexp(step, -129) : std::ldexp(8 + step % 8, exponent - 130);
}

inline int step_below(double magnitude) {
  const int exponent = magnitude < 0x1p-126 ? 0 : std::ilogb(magnitude) + 127;
  return exponent == 0
             ? static_cast<int>(std::ldexp(magnitude, 129))
             : (exponent - 1) * 8 + static_cast<int>(std::ldexp(magnitude, 130 - exponent));
}

/// The block's moments as 8 bits give them back; `values` are those before rounding.
inline std::vector<float> rounded_to_codes(const std::vector<float>& values,
                                           const std::vector<std::uint32_t>& random,
                                           bool is_signed) {
  double greatest = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) {
      return std::vector<float>(values.size(), std::nanf(""));
    }
    greatest = std::max<double>(greatest, std::abs(value));
  }
  int top = step_below(greatest) / 8;  // the binade that the greatest value needs
  top += greatest > step_value(top * 8 + 7) ? 1 : 0;
  const int base = std::max(0, (top + 1 - (is_signed ? 16 : 32)) * 8);
  std::vector<float> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double magnitude = std::abs(values[i]);
    const double least = step_value(base + 1);
    double chosen = 0;
    if (is_signed && magnitude < least) {
      chosen = magnitude * 65536 > random[i] * least ? least : 0;
    } else if (magnitude > 0) {
      const int below = step_below(magnitude);
      const double part =
          (magnitude - step_value(below)) / (step_value(below + 1) - step_value(below));
      const int step = below + (part + random[i] / 65536.0 >= 1 ? 1 : 0);
      chosen = step_value(std::max(step, base + 1));
    }
    out.push_back(static_cast<float>(std::copysign(chosen, values[i])));
  }
  return out;
}

/// A master as inexact layouts keep it: a tie that was rounded down is one unit nearer to 0.
inline float backup_master(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::isnan(value) || (bits & 0x1ffff) != 0x8000 ? value : std::bit_cast<float>(bits - 1);
}

struct LayoutCase {
  StateLayout layout;
  DType weight;    // fp32: it is the master
  DType gradient;  // fp32 or as the weight
};
inline void PrintTo(const LayoutCase& one, std::ostream* out) {
  *out << name_of(one.layout) << " state, " << name_of(one.weight) << ", " << name_of(one.gradient);
}

/// One shard with its state in some layout; other shards of the same seed have the same numbers.
struct LayoutShard {
  UpdateConfig config;
  LayoutCase types;
  std::size_t elements;
  std::size_t shift;  // elements by which every array is misaligned
  HostBuffer memory, weight, gradient;
  UpdateBuffers buffers;

  LayoutShard(const UpdateConfig& c, const LayoutCase& t, std::size_t count, std::uint32_t seed,
              std::size_t misaligned = 0)
      : config(c), types(t), elements(count), shift(misaligned) {
    const std::size_t room = (count + shift) / kScaleGroup * kScaleGroup + 2 * kScaleGroup;
    memory = HostBuffer(state_bytes(t.layout, c, t.weight, room));
    weight = HostBuffer(room * 4);
    gradient = HostBuffer(room * 4);
    place_state(buffers, t.layout, c, t.weight, room, memory.data());
    const auto advance = [this](void*& array, std::size_t size) {
      array = array == nullptr ? nullptr : static_cast<std::byte*>(array) + shift * size;
    };
    const StateSizes one = state_sizes(t.layout, c, t.weight, 1);
    advance(buffers.master, one.master);
    advance(buffers.state[0], one.state[0]);
    advance(buffers.state[1], one.state[1]);
    auto* weights = weight.data() + shift * bytes_of(t.weight);
    if (t.weight == DType::kF32) {
      buffers.master = weights;
    } else {
      buffers.weight = weights;
      buffers.weight_type = t.weight;
    }
    buffers.gradient = gradient.data() + shift * bytes_of(t.gradient);
    buffers.gradient_type = t.gradient;
    fill(seed);
  }

  void fill(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(elements);
    const auto draw = [&](auto next) { std::ranges::generate(values, next); };
    for (std::size_t array = 0; array < state_arrays(config); ++array) {
      draw([&] { return std::abs(normal(random)) * std::exp(3 * normal(random)) * 1e-3F; });
      write_state(buffers, array, values.data(), 0, elements);
    }
    draw([&] { return normal(random); });
    write_master(buffers, values.data(), 0, elements);
    set_gradients(seed + 1);
  }

  void set_gradients(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < elements; ++i) {
      const float value = i % 7 == 0 ? 0.0F : normal(random) * std::exp(3 * normal(random)) * 1e-2F;
      const auto bits = std::bit_cast<std::uint32_t>(value);
      auto* at = gradient.data() + (shift + i) * bytes_of(types.gradient);
      if (types.gradient == DType::kF32) {
        std::memcpy(at, &bits, 4);
      } else {
        const auto upper = static_cast<std::uint16_t>(bits >> 16);
        std::memcpy(at, &upper, 2);
      }
    }
  }

  [[nodiscard]] float gradient_at(std::size_t i) const {
    const auto* at = gradient.data() + (shift + i) * bytes_of(types.gradient);
    std::uint32_t bits = 0;
    std::memcpy(reinterpret_cast<std::byte*>(&bits) + 4 - bytes_of(types.gradient), at,
                bytes_of(types.gradient));
    return std::bit_cast<float>(bits);
  }
  [[nodiscard]] std::vector<float> master() const {
    std::vector<float> values(elements);
    read_master(buffers, values.data(), 0, elements);
    return values;
  }
  [[nodiscard]] std::vector<float> state(std::size_t array) const {
    std::vector<float> values(elements);
    read_state(buffers, array, values.data(), 0, elements);
    return values;
  }
  void copy_from(const LayoutShard& other) const {
    std::ranges::copy(other.memory.span(), memory.data());
    std::ranges::copy(other.weight.span(), weight.data());
    std::ranges::copy(other.gradient.span(), gradient.data());
  }

  /// Every byte, what lies around the shard included.
  friend bool operator==(const LayoutShard& a, const LayoutShard& b) {
    return std::ranges::equal(a.memory.span(), b.memory.span()) &&
           std::ranges::equal(a.weight.span(), b.weight.span());
  }
};

/// A shard to update, and another of other numbers as its shadow.
struct ShardPair {
  LayoutShard home, spare;
  UpdatedUnit unit;

  ShardPair(const UpdateConfig& config, const LayoutCase& types, std::size_t elements,
            std::vector<UpdateRange> ranges)
      : home(config, types, elements, 7), spare(config, types, elements, 99) {
    const UpdateBuffers& shadow = spare.buffers;
    unit = {.buffers = home.buffers,
            .shadow = {.master = shadow.master,
                       .state = {shadow.state[0], shadow.state[1]},
                       .scale = {shadow.scale[0], shadow.scale[1]},
                       .weight = shadow.weight},
            .ranges = std::move(ranges)};
  }
};

}  // namespace tandem::test
