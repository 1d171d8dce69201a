// tests/actors/kernels/update/update_cases.hpp — every optimizer, layout, type, pass and extent,
// with every kind of number: all update kernels beside the CPU's vectors are held to them.
// (Of a NaN only that it is one.)
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/kernels/update/state_memory.hpp"
#include "tests/actors/kernels/update/packed_reference.hpp"

namespace tandem::test {

inline constexpr std::uint32_t kSpecials[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001,  // zeros, the least denormals
    0x007fffff, 0x00800000, 0x80800000,              // the greatest denormal, the least normal
    0x7f7fffff, 0xff7fffff, 0x7f7f0000,              // the greatest of fp32 and of bf16
    0x7f800000, 0xff800000, 0x7fc00000,              // infinities and NaN
    0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001,  // ties of bf16, and their neighbours
    0x477fe000, 0x477ff000, 0x33800000, 0x33000000,  // ends of fp16
    0x5f000000, 0x1f000000};                         // their squares overflow, underflow

struct UpdateCase {
  const char* name;
  UpdateConfig config;
  std::int64_t step = 3;
};
inline void PrintTo(const UpdateCase& one, std::ostream* out) { *out << one.name; }
inline const UpdateCase kUpdateCases[] = {
    {"AdamW", {.lr = 1e-2, .weight_decay = 0.1, .seed = 5}},
    {"AdamL2", {.lr = 1e-2, .weight_decay = 0.1, .adamw = false, .seed = 5}, 1},
    {"SGD", {.kind = OptimizerKind::kSgd, .lr = 1e-2, .weight_decay = 0.1}},
    {"Momentum",
     {.kind = OptimizerKind::kSgd,
      .lr = 1e-2,
      .weight_decay = 0.1,
      .momentum = .9,
      .dampening = .1}},
    {"FirstMomentum", {.kind = OptimizerKind::kSgd, .lr = 1e-2, .momentum = .9}, 1},
    {"Nesterov", {.kind = OptimizerKind::kSgd, .lr = 1e-2, .momentum = .9, .nesterov = true}},
    {"Lion", {.kind = OptimizerKind::kLion, .lr = 1e-2, .weight_decay = 0.1, .seed = 6}},
    {"Adagrad", {.kind = OptimizerKind::kAdagrad, .lr = 1e-2, .weight_decay = 0.1}},
    {"Lamb", {.kind = OptimizerKind::kLamb, .lr = 1e-2}},
    {"Muon", {.kind = OptimizerKind::kMuon, .lr = 1e-2, .weight_decay = 0.1}},
};

inline std::vector<LayoutCase> layouts_of(OptimizerKind kind) {
  std::vector<LayoutCase> all;
  for (const StateLayout layout :
       {StateLayout::kFp32, StateLayout::kSplit, StateLayout::kBf16, StateLayout::kInt8}) {
    for (const DType weight : {DType::kF32, DType::kBF16, DType::kF16}) {
      if (supports(kind, layout, weight)) {
        all.push_back({layout, weight, DType::kF32});
        if (weight != DType::kF32) {
          all.push_back({layout, weight, weight});
        }
      }
    }
  }
  return all;
}

/// Every third number of a shard is a special one; the same for shards of the same seed.
inline void put_specials(LayoutShard& shard, std::size_t turn) {
  const auto special = [&](std::size_t i) {
    return kSpecials[(i / 3 + turn) % std::size(kSpecials)];
  };
  std::vector<float> values = shard.master();
  for (std::size_t i = 0; i < shard.elements; i += 3) {
    values[i] = std::bit_cast<float>(special(i + 7));
  }
  write_master(shard.buffers, values.data(), 0, shard.elements);
  for (std::size_t array = 0; array < state_arrays(shard.config); ++array) {
    values = shard.state(array);
    for (std::size_t i = 1; i < shard.elements; i += 3) {
      const std::uint32_t bits = special(i + array);
      values[i] = std::bit_cast<float>(array == 1 ? bits & 0x7fffffff : bits);
    }
    // One block of four has numbers that are not finite: they make a NaN of all of it.
    for (std::size_t i = 0; i < shard.elements; ++i) {
      values[i] = shard.types.layout == StateLayout::kInt8 && i / kScaleGroup % 4 != 1 &&
                          !std::isfinite(values[i])
                      ? 1.0F
                      : values[i];
    }
    write_state(shard.buffers, array, values.data(), 0, shard.elements);
  }
  auto* gradient = static_cast<std::byte*>(const_cast<void*>(shard.buffers.gradient));
  for (std::size_t i = 2; i < shard.elements; i += 3) {
    const std::uint32_t bits = special(i);
    std::array<std::byte, 4> wide{};
    std::memcpy(wide.data(), &bits, 4);
    if (shard.types.gradient == DType::kF32) {
      std::memcpy(gradient + i * 4, wide.data(), 4);
    } else {  // in fp16 the same 16 bits are other specials
      std::memcpy(gradient + i * 2, wide.data() + 2, 2);
    }
  }
}

inline bool is_nan16(std::uint16_t bits, DType type) {
  return type == DType::kBF16 ? (bits & 0x7fff) > 0x7f80 : (bits & 0x7fff) > 0x7c00;
}

/// The number of the first element that differs; -1: none.
template <class T, class Same>
std::ptrdiff_t first_difference(const void* a, const void* b, std::size_t count, Same same) {
  for (std::size_t i = 0; i < count && a != nullptr; ++i) {
    if (!same(static_cast<const T*>(a)[i], static_cast<const T*>(b)[i], i)) {
      return static_cast<std::ptrdiff_t>(i);
    }
  }
  return -1;
}

[[nodiscard]] inline std::ptrdiff_t floats_differ(const void* a, const void* b, std::size_t count) {
  return first_difference<std::uint32_t>(
      a, b, count, [](std::uint32_t x, std::uint32_t y, std::size_t) {
        return x == y || ((x & 0x7fffffff) > 0x7f800000 && (y & 0x7fffffff) > 0x7f800000);
      });
}
[[nodiscard]] inline std::ptrdiff_t words_differ(const void* a, const void* b, std::size_t count,
                                                 DType type) {
  return first_difference<std::uint16_t>(
      a, b, count, [type](std::uint16_t x, std::uint16_t y, std::size_t) {
        return x == y || (type != DType::kF32 && is_nan16(x, type) && is_nan16(y, type));
      });
}

/// All arrays of both, whatever lies in ranges and beside them.
inline void expect_same(const LayoutShard& a, const LayoutShard& b, std::size_t elements,
                        const std::string& what) {
  const UpdateBuffers& x = a.buffers;
  const UpdateBuffers& y = b.buffers;
  if (x.weight_is_half()) {
    EXPECT_EQ(words_differ(x.master, y.master, elements, DType::kF32), -1) << what << ", remainder";
  } else {
    EXPECT_EQ(floats_differ(x.master, y.master, elements), -1) << what << ", master";
  }
  EXPECT_EQ(words_differ(x.weight, y.weight, elements, x.weight_type), -1) << what << ", weight";
  for (std::size_t k = 0; k < 2; ++k) {
    const std::string array = what + ", state " + std::to_string(k);
    const auto* scales = y.scale[k];
    if (x.layout == StateLayout::kInt8) {
      const auto equal = [](std::uint8_t p, std::uint8_t q, std::size_t) { return p == q; };
      const auto means_same = [scales](std::uint8_t p, std::uint8_t q, std::size_t i) {
        return p == q || scales[i / kScaleGroup] == 255;  // NaN, whatever the code
      };
      const std::size_t blocks = (elements + kScaleGroup - 1) / kScaleGroup;
      EXPECT_EQ(first_difference<std::uint8_t>(x.scale[k], y.scale[k], blocks, equal), -1) << array;
      EXPECT_EQ(first_difference<std::uint8_t>(x.state[k], y.state[k], elements, means_same), -1)
          << array;
    } else if (x.layout == StateLayout::kBf16) {
      EXPECT_EQ(words_differ(x.state[k], y.state[k], elements, DType::kBF16), -1) << array;
    } else {
      EXPECT_EQ(floats_differ(x.state[k], y.state[k], elements), -1) << array;
    }
  }
}

/// The same passes over two equal shards: by the CPU's vectors, and as a GPU's threads.
struct Two {
  ShardPair vectors;
  ShardPair threads;
  std::size_t elements;

  Two(const UpdateConfig& config, const LayoutCase& types, std::size_t count,
      const std::vector<UpdateRange>& ranges, std::uint64_t position, std::size_t turn)
      : vectors(config, types, count, ranges),
        threads(config, types, count, ranges),
        elements(count) {
    for (ShardPair* pair : {&vectors, &threads}) {
      put_specials(pair->home, turn);
      pair->unit.buffers.position = position;
    }
  }

  /// run_threads(pass, pair, steps, begin, end) is what is put to the test.
  template <class Run>
  void run(UpdatePass pass, const UpdateStep* steps, std::size_t begin, std::size_t end,
           const char* what, Run run_threads) {
    run_update_pass(pass, vectors.unit, steps, begin, end);
    run_threads(pass, threads, steps, begin, end);
    expect_same(threads.home, vectors.home, elements, what);
    expect_same(threads.spare, vectors.spare, elements, std::string(what) + ", shadow");
  }
  void commit() {
    commit_speculative(vectors.unit);
    commit_speculative(threads.unit);
  }
};

struct Extent {
  std::size_t elements;
  std::size_t begin;  // start of the passes, which cut ranges
  std::size_t end;
  std::vector<UpdateRange> ranges;
  std::uint64_t position;
};
inline const Extent kExtents[] = {
    {1, 0, 1, {{0, 1, 0}}, 0},
    {127, 0, 127, {{0, 127, 0}}, 128},
    {1000, 0, 1000, {{0, 1000, 1}}, (std::uint64_t{1} << 32) - 512},  // over a key's end
    {5003, 640, 4992, {{0, 1024, 0}, {1152, 4096, 1}, {4224, 5003, 0}}, 640},
    {5003, 0, 5003, {{128, 131, 0}, {512, 4097, 1}, {4224, 5003, 0}}, std::uint64_t{3} << 33},
};

/// All passes of an optimizer, over every layout, and extents from number `first_extent` on.
template <class Run>
void expect_bits_of_the_vectors(const UpdateCase& optimizer, Run run_threads,
                                std::size_t first_extent = 0) {
  const auto& [name, config, step] = optimizer;
  const UpdateStep likely[] = {UpdateStep::make(config, step, 1.0),
                               UpdateStep::make(config, step, 1.0 / 1024)};
  const UpdateStep clipped[] = {UpdateStep::make(config, step, 0.1),
                                UpdateStep::make(config, step, 3e-5)};
  for (const LayoutCase& types : layouts_of(config.kind)) {
    for (const Extent& extent : std::span(kExtents).subspan(first_extent)) {
      SCOPED_TRACE(std::string(name_of(types.layout)) + " weights " +
                   std::string(name_of(types.weight)) + " gradients " +
                   std::string(name_of(types.gradient)) + ", extent " +
                   std::to_string(&extent - std::begin(kExtents)));
      Two both(config, types, extent.elements, extent.ranges, extent.position, extent.elements);
      const auto run = [&](UpdatePass pass, const UpdateStep* steps, const char* what) {
        both.run(pass, steps, extent.begin, extent.end, what, run_threads);
      };
      run(UpdatePass::kInPlace, likely, "in place");
      run(UpdatePass::kSpeculative, clipped, "ahead");
      both.commit();
      run(UpdatePass::kInPlace, likely, "after a commit");
      run(UpdatePass::kSpeculative, likely, "ahead, to be made again");
      run(UpdatePass::kRedo, clipped, "again");
      run(UpdatePass::kSpeculative, likely, "ahead, to be undone");
      run(UpdatePass::kRollback, nullptr, "back");
    }
  }
}

}  // namespace tandem::test
