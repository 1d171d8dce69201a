// Updates that read master and state from one set of buffers and write them to another: same bits
// as in place, and the source stays as it was.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "actors/kernels/update/optimizer_step.hpp"
#include "actors/memory/arena.hpp"
#include "tests/actors/kernels/simd_targets.hpp"

namespace tandem {
namespace {

constexpr std::size_t kCapacity = 400;

/// Page-aligned arrays of random numbers: master, state, state, gradient (bits that are finite in
/// every type), weight.
struct Arrays {
  HostBuffer at[5];

  explicit Arrays(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (HostBuffer& array : at) {
      array = HostBuffer(kCapacity * 4);
      for (std::size_t i = 0; i < kCapacity; ++i) {
        array.as<float>()[i] = std::abs(normal(random)) * (&array == at ? 1.0F : 1e-2F);
      }
    }
    for (std::size_t i = 0; i < 2 * kCapacity; ++i) {
      at[3].as<std::uint16_t>()[i] = static_cast<std::uint16_t>(random() & 0xbbff);
    }
  }

  friend bool operator==(const Arrays& a, const Arrays& b) {
    return std::ranges::equal(a.at, b.at, [](const HostBuffer& x, const HostBuffer& y) {
      return std::ranges::equal(x.span(), y.span());
    });
  }
};

struct Types {
  DType gradient;
  bool cast_out;
  DType weight;
};
constexpr Types kTypes[] = {
    {DType::kF32, false, DType::kF32},  {DType::kF32, true, DType::kF32},
    {DType::kF32, true, DType::kBF16},  {DType::kF32, true, DType::kF16},
    {DType::kBF16, true, DType::kBF16}, {DType::kF16, true, DType::kF16},
};

struct Case {
  const char* name;
  UpdateConfig config;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

const Case kCases[] = {
    {"adamw", {.kind = OptimizerKind::kAdam, .lr = 1e-2, .weight_decay = 0.1}},
    {"adam", {.kind = OptimizerKind::kAdam, .lr = 1e-2, .weight_decay = 0.1, .adamw = false}},
    {"sgd", {.kind = OptimizerKind::kSgd, .lr = 0.05, .weight_decay = 0.01}},
    {"sgd_momentum", {.kind = OptimizerKind::kSgd, .lr = 0.05, .momentum = 0.9}},
    {"sgd_nesterov", {.kind = OptimizerKind::kSgd, .lr = 0.05, .momentum = 0.9, .nesterov = true}},
    {"lion", {.kind = OptimizerKind::kLion, .lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1}},
    {"adagrad", {.kind = OptimizerKind::kAdagrad, .lr = 1e-2, .eps = 1e-8}},
};

/// Where a range lies: the first element that is written, and that is read, in the arrays.
struct Place {
  std::size_t shift;
  std::size_t from_shift;
  std::size_t begin;
  std::size_t length;
};

/// Both ways of the update: `written` starts out as other numbers, of which nothing outside the
/// range may change.
void expect_same_bits(const UpdateConfig& config, const Types& types, const Place& place) {
  const UpdateStep step = UpdateStep::make(config, 2, 0.37);
  const std::size_t states = state_arrays(config);
  const Arrays source(7);
  const Arrays kept(7);
  const Arrays written(11);
  const Arrays expected(11);
  const auto to = [&](const Arrays& a, std::size_t k) { return a.at[k].as<float>() + place.shift; };
  const auto from = [&](std::size_t k) { return source.at[k].as<float>() + place.from_shift; };
  const auto buffers = [&](const Arrays& a) {
    UpdateBuffers b{.master = to(a, 0), .gradient_type = types.gradient};
    for (std::size_t s = 0; s < states; ++s) {
      b.state[s] = to(a, 1 + s);
    }
    b.gradient = source.at[3].data() + place.from_shift * bytes_of(types.gradient);
    b.weight = types.cast_out ? a.at[4].data() + place.shift * bytes_of(types.weight) : nullptr;
    b.weight_type = types.weight;
    return b;
  };
  const std::size_t end = place.begin + place.length;
  for (std::size_t k = 0; k <= states; ++k) {
    std::copy(from(k) + place.begin, from(k) + end, to(expected, k) + place.begin);
  }
  apply_update(step, buffers(expected), place.begin, end);

  UpdateBuffers apart = buffers(written);
  apart.from.master = from(0);
  for (std::size_t s = 0; s < states; ++s) {
    apart.from.state[s] = from(1 + s);
  }
  apply_update(step, apart, place.begin, end);
  ASSERT_TRUE(source == kept) << "the source was written";
  ASSERT_TRUE(written == expected)
      << "shift " << place.shift << " from " << place.from_shift << " begin " << place.begin
      << " length " << place.length << " gradient " << name_of(types.gradient) << " weight "
      << (types.cast_out ? name_of(types.weight) : "none");
}

class UpdateFrom : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Kinds, UpdateFrom, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(UpdateFrom, EveryTargetTypeLengthAndAlignmentGivesTheBitsOfInPlace) {
  test::for_each_simd_target([&] {
    for (const Types& types : kTypes) {
      for (std::size_t length = 0; length <= 70; ++length) {
        // Whole cache lines (the non-temporal stores) and everything else, in turns.
        const bool whole = length % 2 == 0;
        const std::size_t shift = whole ? 64 : length % 37;
        const std::size_t begin = whole ? length / 2 % 2 * 32 : length % 29;
        ASSERT_NO_FATAL_FAILURE(expect_same_bits(GetParam().config, types,
                                                 {.shift = shift,
                                                  .from_shift = length % 3 * 16 + length % 5,
                                                  .begin = begin,
                                                  .length = whole ? length * 2 : length}));
      }
    }
  });
}

TEST_P(UpdateFrom, ASourceOfOneArrayAloneIsTaken) {
  const UpdateConfig& config = GetParam().config;
  const UpdateStep step = UpdateStep::make(config, 2, 0.5);
  for (std::size_t apart = 0; apart <= state_arrays(config); ++apart) {
    const Arrays source(7);
    const Arrays kept(7);
    const Arrays expected(7);
    const Arrays written(7);
    const auto buffers = [&](const Arrays& a) {
      return UpdateBuffers{.master = a.at[0].as<float>(),
                           .state = {a.at[1].as<float>(), a.at[2].as<float>()},
                           .gradient = source.at[3].data(),
                           .gradient_type = DType::kBF16,
                           .weight = a.at[4].data(),
                           .weight_type = DType::kBF16};
    };
    apply_update(step, buffers(expected), 0, kCapacity);
    std::ranges::fill(std::span(written.at[apart].as<float>(), kCapacity), 9.0F);
    UpdateBuffers update = buffers(written);
    (apart == 0 ? update.from.master : update.from.state[apart - 1]) = source.at[apart].as<float>();
    apply_update(step, update, 0, kCapacity);
    EXPECT_TRUE(written == expected) << "array " << apart;
    EXPECT_TRUE(source == kept) << "array " << apart;
  }
}

TEST(UpdateFromTwice, ARedoFromTheSameSourceForgetsTheFirst) {
  const UpdateConfig config{.kind = OptimizerKind::kAdam, .lr = 1e-2, .weight_decay = 0.1};
  const Arrays source(7);
  const auto update = [&](const Arrays& a, double scale) {
    UpdateBuffers b{.master = a.at[0].as<float>(),
                    .state = {a.at[1].as<float>(), a.at[2].as<float>()},
                    .gradient = source.at[3].data(),
                    .gradient_type = DType::kF16,
                    .weight = a.at[4].data(),
                    .weight_type = DType::kF16};
    b.from = {.master = source.at[0].as<float>(),
              .state = {source.at[1].as<float>(), source.at[2].as<float>()}};
    apply_update(UpdateStep::make(config, 3, scale), b, 0, kCapacity);
  };
  const Arrays once(11);
  const Arrays twice(11);
  update(twice, HUGE_VAL);  // leaves NaN and infinities behind
  EXPECT_FALSE(std::isfinite(twice.at[0].as<float>()[0]));
  update(twice, 0.25);
  update(once, 0.25);
  EXPECT_TRUE(once == twice);
}

}  // namespace
}  // namespace tandem
