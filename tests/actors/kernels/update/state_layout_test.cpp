#include "actors/kernels/state_layout.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "actors/kernels/reduce.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "tests/actors/kernels/simd_targets.hpp"
#include "tests/actors/kernels/update/packed_reference.hpp"

namespace tandem {
namespace {

using test::LayoutCase;
using test::LayoutShard;

const UpdateConfig kAdamW{.kind = OptimizerKind::kAdam, .lr = 1e-2, .weight_decay = 0.1, .seed = 5};
const UpdateConfig kAdamL2{
    .kind = OptimizerKind::kAdam, .lr = 1e-2, .weight_decay = 0.1, .adamw = false};
const UpdateConfig kLion{
    .kind = OptimizerKind::kLion, .lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1, .seed = 5};
const UpdateConfig kAdagrad{.kind = OptimizerKind::kAdagrad, .lr = 1e-2, .eps = 1e-8};

struct Case {
  std::string name;
  UpdateConfig config;
  LayoutCase types;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

std::vector<Case> all_cases() {
  const std::pair<const char*, UpdateConfig> optimizers[] = {
      {"adamw", kAdamW}, {"adam", kAdamL2}, {"lion", kLion}, {"adagrad", kAdagrad}};
  std::vector<Case> cases;
  for (const auto& [name, config] : optimizers) {
    for (const StateLayout layout : {StateLayout::kSplit, StateLayout::kBf16, StateLayout::kInt8}) {
      for (const DType weight : {DType::kBF16, DType::kF32}) {
        for (const DType gradient : {DType::kF32, DType::kBF16}) {
          if (supports(config.kind, layout, weight) &&
              (gradient == DType::kF32 || gradient == weight)) {
            const std::string types =
                fmt::format("{}_{}_{}", name_of(layout), name_of(gradient), name_of(weight));
            cases.push_back({name + ("_" + types), config, {layout, weight, gradient}});
          }
        }
      }
    }
  }
  return cases;
}

class StateLayouts : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, StateLayouts, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// Master and moments in fp32 as the layout's description leads to them, from the shard's; block by
/// block, as 8 bits need.
struct Expected {
  std::vector<float> master, state[2];

  Expected(const LayoutShard& from, const UpdateStep& step, std::size_t begin, std::size_t end)
      : master(from.master()) {
    const std::size_t arrays = state_arrays(from.config);
    for (std::size_t k = 0; k < arrays; ++k) {
      state[k] = from.state(k);
    }
    std::vector<float> gradients;
    for (std::size_t i = 0; i < from.elements; ++i) {
      gradients.push_back(from.gradient_at(i));
    }
    // Other tests cover the rule's arithmetic on fp32 numbers.
    UpdateBuffers fp32{.master = master.data(), .gradient = gradients.data()};
    for (std::size_t k = 0; k < arrays; ++k) {
      fp32.state[k] = state[k].data();
    }
    apply_update(step, fp32, begin, end);
    if (from.types.weight != DType::kF32 && from.types.layout != StateLayout::kSplit) {
      std::transform(master.begin() + begin, master.begin() + end, master.begin() + begin,
                     test::backup_master);
    }
    for (std::size_t k = 0; k < arrays; ++k) {
      round(from, step, k, begin, end);
    }
  }

  void round(const LayoutShard& from, const UpdateStep& step, std::size_t k, std::size_t begin,
             std::size_t end) {
    const auto random = [&](std::size_t i) {
      return test::rounding_bits16(step, from.buffers.position + i, k);
    };
    if (from.types.layout == StateLayout::kBf16) {
      for (std::size_t i = begin; i < end; ++i) {
        state[k][i] = test::rounded_to_bf16(state[k][i], random(i), k == 1);
      }
    } else if (from.types.layout == StateLayout::kInt8) {
      for (std::size_t first = begin; first < end; first += kScaleGroup) {
        const std::size_t last = std::min(end, first + kScaleGroup);
        std::vector<std::uint32_t> bits;
        for (std::size_t i = first; i < last; ++i) {
          bits.push_back(random(i));
        }
        const std::vector<float> values(state[k].begin() + first, state[k].begin() + last);
        std::ranges::copy(test::rounded_to_codes(values, bits, k == 0), state[k].begin() + first);
      }
    }
  }
};

void expect_as_described(const LayoutShard& got, const Expected& want) {
  ASSERT_TRUE(same_bits(got.master(), want.master));
  for (std::size_t k = 0; k < state_arrays(got.config); ++k) {
    ASSERT_TRUE(same_bits(got.state(k), want.state[k])) << "state " << k;
  }
  if (got.types.weight == DType::kBF16) {
    std::vector<std::uint16_t> weights(got.elements);
    cast(want.master.data(), DType::kF32, weights.data(), DType::kBF16, 0, got.elements);
    ASSERT_TRUE(std::ranges::equal(
        weights, std::span(static_cast<const std::uint16_t*>(got.buffers.weight), got.elements)));
  }
}

TEST_P(StateLayouts, EveryTargetLengthAndAlignmentDoesAsDescribed) {
  const auto& [name, config, types] = GetParam();
  const UpdateStep step = UpdateStep::make(config, 3, 0.37);
  const bool blocks = types.layout == StateLayout::kInt8;
  for (std::size_t length = 0; length <= 150; ++length) {
    const std::size_t begin = blocks ? length % 3 * kScaleGroup : length % 29;
    const std::size_t elements = begin + length + (blocks ? 0 : 5);
    LayoutShard start(config, types, elements, 7, length % 4 == 0 ? 0 : length % 37);
    const Expected want(start, step, begin, begin + length);
    test::for_each_simd_target([&] {
      LayoutShard got(config, types, elements, 7, start.shift);
      apply_update(step, got.buffers, begin, begin + length);
      ASSERT_NO_FATAL_FAILURE(expect_as_described(got, want)) << "length " << length;
    });
  }
}

TEST_P(StateLayouts, OutOfPlaceGivesTheBitsOfInPlaceAndLeavesTheSource) {
  const auto& [name, config, types] = GetParam();
  const UpdateStep step = UpdateStep::make(config, 3, 0.37);
  test::for_each_simd_target([&] {
    for (const std::size_t length : {0UL, 1UL, 31UL, 128UL, 384UL, 391UL, 512UL}) {
      for (const std::size_t shift : {0UL, 3UL, 64UL}) {
        const LayoutShard source(config, types, length, 7, shift);
        const LayoutShard kept(config, types, length, 7, shift);
        LayoutShard in_place(config, types, length, 7, shift);
        LayoutShard apart(config, types, length, 99, shift);
        apart.buffers.gradient = source.buffers.gradient;
        apart.buffers.from = source_of(source.buffers);
        apply_update(UpdateStep::make(config, 3, HUGE_VAL), apart.buffers, 0, length);
        apply_update(step, apart.buffers, 0, length);  // forgets the one before
        apply_update(step, in_place.buffers, 0, length);
        ASSERT_TRUE(source == kept);
        ASSERT_TRUE(apart == in_place) << "length " << length << " shift " << shift;
      }
    }
  });
}

TEST_P(StateLayouts, ChunksThreadsAndRanksGiveTheSameBits) {
  const auto& [name, config, types] = GetParam();
  const UpdateStep step = UpdateStep::make(config, 3, 0.37);
  constexpr std::size_t kElements = 4099;
  // Random bits are another key's from position 2^32 on.
  constexpr std::uint64_t kPosition = (std::uint64_t{1} << 32) - 1024;
  LayoutShard whole(config, types, kElements, 7);
  whole.buffers.position = kPosition;
  LayoutShard got(config, types, kElements, 7);
  got.buffers.position = kPosition;
  const Expected want(got, step, 0, kElements);
  apply_update(step, whole.buffers, 0, kElements);
  expect_as_described(whole, want);
  for (const std::size_t chunk : {128UL, 512UL, 1280UL}) {
    got.copy_from(LayoutShard(config, types, kElements, 7));
    std::vector<std::thread> pool;
    for (std::size_t t = 0; t < 3; ++t) {
      pool.emplace_back([&, t] {
        for (std::size_t at = t * chunk; at < kElements; at += 3 * chunk) {
          apply_update(step, got.buffers, at, std::min(kElements, at + chunk));
        }
      });
    }
    for (auto& thread : pool) {
      thread.join();
    }
    EXPECT_TRUE(got == whole) << "chunk " << chunk;
  }
}

TEST_P(StateLayouts, WhatIsReadCanBeWrittenBack) {
  const auto& [name, config, types] = GetParam();
  LayoutShard one(config, types, 1000, 7);
  for (int t = 1; t <= 5; ++t) {
    apply_update(UpdateStep::make(config, t, 1.0), one.buffers, 0, 1000);
  }
  LayoutShard two(config, types, 1000, 8);
  two.gradient = HostBuffer(one.gradient.size_bytes());
  std::ranges::copy(one.gradient.span(), two.gradient.data());
  two.buffers.gradient = two.gradient.data();
  write_master(two.buffers, one.master().data(), 0, 1000);
  for (std::size_t k = 0; k < state_arrays(config); ++k) {
    write_state(two.buffers, k, one.state(k).data(), 0, 1000);
  }
  for (int t = 6; t <= 8; ++t) {
    EXPECT_TRUE(same_bits(one.master(), two.master()));
    for (std::size_t k = 0; k < state_arrays(config); ++k) {
      EXPECT_TRUE(same_bits(one.state(k), two.state(k))) << "state " << k;
    }
    apply_update(UpdateStep::make(config, t, 1.0), one.buffers, 0, 1000);
    apply_update(UpdateStep::make(config, t, 1.0), two.buffers, 0, 1000);
  }
}

TEST_P(StateLayouts, NotFiniteGradientsStayVisible) {
  const auto& [name, config, types] = GetParam();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), HUGE_VALF, -HUGE_VALF}) {
    LayoutShard shard(config, types, 256, 7);
    std::vector<float> gradients(256, 1e-3F);
    gradients[3] = bad;
    shard.buffers.gradient = gradients.data();
    shard.buffers.gradient_type = DType::kF32;
    apply_update(UpdateStep::make(config, 1, 1.0), shard.buffers, 0, 256);
    EXPECT_FALSE(std::isfinite(shard.state(0)[3]));
    EXPECT_TRUE(std::isfinite(shard.master()[2]) && std::isfinite(shard.state(0)[200]));
    apply_update(UpdateStep::make(config, 2, 1.0), shard.buffers, 0, 256);
    EXPECT_FALSE(std::isfinite(shard.state(0)[3]));
    EXPECT_TRUE(std::isfinite(shard.state(0)[200]));
  }
}

/// Masters of every upper half, with the lower halves where roundings change.
std::vector<float> masters_of_every_class() {
  std::vector<float> masters;
  std::mt19937 random(3);
  const auto low_half = [&random] { return static_cast<std::uint32_t>(random() & 0xffff); };
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      masters.push_back(std::bit_cast<float>(high << 16 | low));
    }
    masters.push_back(std::bit_cast<float>(high << 16 | low_half()));
  }
  return masters;
}

TEST(SplitMaster, HoldsEveryClassOfMasters) {
  const std::vector<float> masters = masters_of_every_class();
  const std::size_t n = masters.size();
  std::vector<std::uint16_t> weights(n);
  cast(masters.data(), DType::kF32, weights.data(), DType::kBF16, 0, n);
  UpdateConfig still = kAdamW;
  still.lr = 0;
  const UpdateStep step = UpdateStep::make(still, 1, 1.0);
  const LayoutCase types{StateLayout::kSplit, DType::kBF16, DType::kF32};
  LayoutShard shard(still, types, n, 1);
  std::ranges::fill(shard.gradient.span(), std::byte{0});
  const auto check = [&](const char* when, bool stepped) {
    const std::vector<float> got = shard.master();
    for (std::size_t i = 0; i < n; ++i) {
      const auto want = std::bit_cast<std::uint32_t>(masters[i]);
      if (std::isnan(masters[i]) || (stepped && std::isinf(masters[i]))) {
        ASSERT_TRUE(std::isnan(got[i])) << when << std::hex << want;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), want) << when << std::hex << want;
      }
      if (!stepped || std::isfinite(masters[i])) {
        ASSERT_EQ(static_cast<std::uint16_t*>(shard.buffers.weight)[i], weights[i])
            << when << std::hex << want;
      }
    }
  };
  write_master(shard.buffers, masters.data(), 0, n);
  check("written ", false);
  test::for_each_simd_target([&] {
    write_master(shard.buffers, masters.data(), 0, n);
    // With a learning rate of 0 each finite master comes through the kernel unchanged: read, and
    // split again.
    apply_update(step, shard.buffers, 0, n);
    ASSERT_NO_FATAL_FAILURE(check("stepped ", true));
  });
}

TEST(SplitMaster, TrainsWithTheBitsOfFp32) {
  for (const UpdateConfig& config : {kAdamW, kAdamL2, kAdagrad}) {
    constexpr std::size_t kElements = 3000;
    LayoutShard fp32(config, {StateLayout::kFp32, DType::kBF16, DType::kBF16}, kElements, 7);
    LayoutShard split(config, {StateLayout::kSplit, DType::kBF16, DType::kBF16}, kElements, 7);
    for (int t = 1; t <= 200; ++t) {
      fp32.set_gradients(t);
      split.set_gradients(t);
      const UpdateStep step = UpdateStep::make(config, t, 0.8);
      apply_update(step, fp32.buffers, 0, kElements);
      apply_update(step, split.buffers, 0, kElements);
      ASSERT_TRUE(same_bits(fp32.master(), split.master())) << "step " << t;
      ASSERT_TRUE(std::ranges::equal(fp32.weight.span(), split.weight.span())) << "step " << t;
      for (std::size_t k = 0; k < state_arrays(config); ++k) {
        ASSERT_TRUE(same_bits(fp32.state(k), split.state(k))) << "step " << t << " state " << k;
      }
    }
  }
}

/// Moments that all elements have before rounding, and their mean after it.
void expect_unbiased(StateLayout layout, float m, float v) {
  constexpr std::size_t kElements = 1 << 17;
  UpdateConfig config = kAdamW;
  config.beta1 = config.beta2 = 0;  // the gradient alone decides
  LayoutShard shard(config, {layout, DType::kBF16, DType::kF32}, kElements, 7);
  auto* gradients = shard.gradient.as<float>();
  for (std::size_t i = 0; i < kElements; ++i) {
    gradients[i] = i % kScaleGroup == 0 ? 1.0F : m;  // the greatest of its block
  }
  apply_update(UpdateStep::make(config, 1, 1.0), shard.buffers, 0, kElements);
  for (std::size_t k = 0; k < 2; ++k) {
    const std::vector<float> got = shard.state(k);
    const double want = k == 0 ? m : v;
    double sum = 0;
    double squares = 0;
    std::size_t count = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      if (i % kScaleGroup != 0) {
        sum += got[i] - want;
        squares += (got[i] - want) * (got[i] - want);
        ++count;
      }
    }
    const double mean = sum / static_cast<double>(count);
    const double deviation = std::sqrt(squares) / static_cast<double>(count);
    EXPECT_GT(deviation, 0) << name_of(layout) << " state " << k << " was not rounded";
    EXPECT_LT(std::abs(mean), 4 * deviation) << name_of(layout) << " state " << k << " of " << m;
  }
}

TEST(RandomRounding, KeepsTheMean) {
  for (const StateLayout layout : {StateLayout::kBf16, StateLayout::kInt8}) {
    for (const float m : {0.7013F, 0.3001F, -0.0123F, 7.77e-4F}) {
      expect_unbiased(layout, m, m * m);
    }
  }
}

TEST(RandomRounding, StepsSeedsAndArraysDiffer) {
  const auto moments = [](std::uint64_t seed, int t, std::size_t array) {
    UpdateConfig config = kAdamW;
    config.seed = seed;
    config.beta1 = config.beta2 = 0;
    LayoutShard shard(config, {StateLayout::kBf16, DType::kBF16, DType::kF32}, 4096, 7);
    std::ranges::fill(std::span(shard.gradient.as<float>(), 4096), 0.7013F);
    apply_update(UpdateStep::make(config, t, 1.0), shard.buffers, 0, 4096);
    std::vector<bool> up;
    for (const float value : shard.state(array)) {
      up.push_back(value > (array == 0 ? 0.7013F : 0.7013F * 0.7013F));
    }
    return up;
  };
  const auto agreement = [](const std::vector<bool>& a, const std::vector<bool>& b) {
    // Returns the correlation of two series of bits: 1 for the same bits, 0 for independent ones.
    double sum_a = 0, sum_b = 0, both = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum_a += a[i];
      sum_b += b[i];
      both += a[i] && b[i];
    }
    const double n = static_cast<double>(a.size());
    const double covariance = both / n - sum_a / n * (sum_b / n);
    return covariance / std::sqrt((sum_a / n) * (1 - sum_a / n) * (sum_b / n) * (1 - sum_b / n));
  };
  const std::vector<bool> base = moments(1, 1, 0);
  EXPECT_NEAR(agreement(base, moments(1, 1, 0)), 1, 1e-9);
  EXPECT_NEAR(agreement(base, moments(2, 1, 0)), 0, 0.07);
  EXPECT_NEAR(agreement(base, moments(1, 2, 0)), 0, 0.07);
  EXPECT_NEAR(agreement(base, moments(1, 1, 1)), 0, 0.07);
  std::vector<bool> shifted = base;
  std::rotate(shifted.begin(), shifted.begin() + 1, shifted.end());
  EXPECT_NEAR(agreement(base, shifted), 0, 0.07);
}

TEST(RandomRounding, ASlowAverageDecays) {
  for (const StateLayout layout : {StateLayout::kBf16, StateLayout::kInt8}) {
    constexpr std::size_t kElements = 1 << 14;
    LayoutShard shard(kAdamW, {layout, DType::kBF16, DType::kF32}, kElements, 7);
    const std::vector<float> ones(kElements, 1.0F);
    write_state(shard.buffers, 1, ones.data(), 0, kElements);
    std::ranges::fill(shard.gradient.span(), std::byte{0});
    for (int t = 1; t <= 1000; ++t) {
      apply_update(UpdateStep::make(kAdamW, t, 1.0), shard.buffers, 0, kElements);
    }
    double mean = 0;
    for (const float value : shard.state(1)) {
      mean += value / kElements;
    }
    EXPECT_NEAR(mean, std::pow(0.999, 1000), 0.02) << name_of(layout);
  }
}

TEST(RandomRounding, SmallSquaresNeverVanish) {
  for (const StateLayout layout : {StateLayout::kBf16, StateLayout::kInt8}) {
    constexpr std::size_t kElements = 4096;
    LayoutShard shard(kAdamW, {layout, DType::kBF16, DType::kF32}, kElements, 7);
    for (std::size_t array = 0; array < 2; ++array) {
      write_state(shard.buffers, array, std::vector<float>(kElements).data(), 0, kElements);
    }
    const std::vector<float> before = shard.master();
    auto* gradients = shard.gradient.as<float>();
    for (std::size_t i = 0; i < kElements; ++i) {
      gradients[i] = std::ldexp(1.0F, -static_cast<int>(i % 60));
    }
    apply_update(UpdateStep::make(kAdamW, 1, 1.0), shard.buffers, 0, kElements);
    const std::vector<float> squares = shard.state(1);
    const std::vector<float> first = shard.state(0);
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_GT(squares[i], 0) << name_of(layout) << " " << i;
    }
    // The next step may go less far than fp32's, and hardly farther.
    std::ranges::fill(shard.gradient.span(), std::byte{0});
    const std::vector<float> middle = shard.master();
    apply_update(UpdateStep::make(kAdamW, 2, 1.0), shard.buffers, 0, kElements);
    const std::vector<float> after = shard.master();
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_LT(std::abs(after[i] - middle[i]), 4 * kAdamW.lr) << name_of(layout) << " " << i;
    }
  }
}

TEST(StateMemory, SaysWhatIsRefusedAndWhy) {
  using enum OptimizerKind;
  for (const OptimizerKind kind : {kAdam, kSgd, OptimizerKind::kLion, OptimizerKind::kAdagrad}) {
    for (const DType weight : {DType::kF32, DType::kBF16, DType::kF16}) {
      EXPECT_TRUE(supports(kind, StateLayout::kFp32, weight));
    }
  }
  EXPECT_TRUE(supports(kAdam, StateLayout::kSplit, DType::kBF16));
  EXPECT_TRUE(supports(OptimizerKind::kAdagrad, StateLayout::kSplit, DType::kBF16));
  EXPECT_TRUE(supports(kAdam, StateLayout::kInt8, DType::kF32));
  EXPECT_NE(why_unsupported(kAdam, StateLayout::kSplit, DType::kF32), "");
  EXPECT_NE(why_unsupported(kAdam, StateLayout::kBf16, DType::kF16), "");
  EXPECT_NE(why_unsupported(kSgd, StateLayout::kBf16, DType::kBF16), "");
  EXPECT_NE(why_unsupported(OptimizerKind::kLion, StateLayout::kSplit, DType::kBF16), "");
  EXPECT_NE(why_unsupported(OptimizerKind::kAdagrad, StateLayout::kInt8, DType::kBF16), "");
}

TEST(StateMemory, CountsBytesAndPlacesArraysApart) {
  constexpr std::size_t kElements = 1000;
  const auto bytes = [](StateLayout layout, DType weight) {
    const StateSizes sizes = state_sizes(layout, kAdamW, weight, kElements);
    return sizes.master + sizes.state[0] + sizes.state[1] + sizes.scale[0] + sizes.scale[1];
  };
  EXPECT_EQ(bytes(StateLayout::kFp32, DType::kBF16), 12 * kElements);
  EXPECT_EQ(bytes(StateLayout::kFp32, DType::kF32), 8 * kElements);
  EXPECT_EQ(bytes(StateLayout::kSplit, DType::kBF16), 10 * kElements);
  EXPECT_EQ(bytes(StateLayout::kBf16, DType::kBF16), 6 * kElements);
  EXPECT_EQ(bytes(StateLayout::kInt8, DType::kBF16), 4 * kElements + 2 * 8);
  EXPECT_EQ(bytes(StateLayout::kInt8, DType::kF32), 2 * kElements + 2 * 8);
  for (const StateLayout layout :
       {StateLayout::kFp32, StateLayout::kSplit, StateLayout::kBf16, StateLayout::kInt8}) {
    HostBuffer memory(state_bytes(layout, kAdamW, DType::kBF16, kElements));
    UpdateBuffers b;
    place_state(b, layout, kAdamW, DType::kBF16, kElements, memory.data());
    const StateSizes sizes = state_sizes(layout, kAdamW, DType::kBF16, kElements);
    std::vector<std::pair<std::uintptr_t, std::size_t>> arrays;
    const auto add = [&arrays](const void* array, std::size_t size) {
      if (size != 0) {
        arrays.emplace_back(reinterpret_cast<std::uintptr_t>(array), size);
      }
    };
    add(b.master, sizes.master);
    for (std::size_t k = 0; k < 2; ++k) {
      add(b.state[k], sizes.state[k]);
      add(b.scale[k], sizes.scale[k]);
    }
    std::ranges::sort(arrays);
    const auto first = reinterpret_cast<std::uintptr_t>(memory.data());
    EXPECT_EQ(arrays.front().first, first);
    EXPECT_LE(arrays.back().first + arrays.back().second, first + memory.size_bytes());
    for (std::size_t i = 1; i < arrays.size(); ++i) {
      EXPECT_GE(arrays[i].first, arrays[i - 1].first + arrays[i - 1].second);
      EXPECT_EQ(arrays[i].first % 64, 0U);
    }
  }
}

}  // namespace
}  // namespace tandem
