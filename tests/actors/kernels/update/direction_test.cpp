// Directions of joint updates: LAMB as DeepSpeed's kernel computes it, tensor by tensor and in
// units of many tensors; the same bits however the unit is cut, on every SIMD target.
#include "actors/kernels/update/direction.hpp"

#include <cmath>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/kernels/reduce.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "tests/actors/kernels/simd_targets.hpp"
#include "tests/support/oracle_tensors.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

/// Tensors one after another, as a unit has them, and their state.
struct Shard {
  std::vector<float> p, g, m, v;
  std::vector<UpdateRange> ranges;  // the group is the tensor

  void add(const std::vector<float>& values) {
    ranges.push_back({p.size(), p.size() + values.size(), ranges.size()});
    p.insert(p.end(), values.begin(), values.end());
  }
  void complete() {
    g.resize(p.size());
    m.resize(p.size());
    v.resize(p.size());
  }
  [[nodiscard]] UpdatedUnit unit() {
    return {.buffers = {.master = p.data(), .state = {m.data(), v.data()}, .gradient = g.data()},
            .shadow = {},
            .ranges = ranges};
  }
  bool operator==(const Shard& o) const { return p == o.p && g == o.g && m == o.m && v == o.v; }
};

struct Found {
  std::vector<double> ratios;  // [tensor]
};

/// One step of LAMB, cut at the chunks; the gradients are in the shard.
Found lamb_step(Shard& shard, const UpdateConfig& config, std::int64_t step, double gradient_scale,
                std::size_t chunk) {
  UpdatedUnit unit = shard.unit();
  Direction direction = Direction::of(shard.ranges, shard.g.data(), chunk);
  const std::vector<DirectionStep> steps(shard.ranges.size(),
                                         direction_step(config, gradient_scale));
  for (std::size_t begin = 0; begin < shard.p.size(); begin += chunk) {
    write_direction(unit, steps.data(), direction, begin, std::min(begin + chunk, shard.p.size()));
  }
  std::vector<ExactSum> weights(shard.ranges.size());
  std::vector<ExactSum> directions(shard.ranges.size());
  for (const DirectionPiece& piece : direction.pieces) {
    weights[piece.range].merge(piece.weights);
    directions[piece.range].merge(piece.directions);
  }
  Found found;
  std::vector<UpdateStep> along;
  for (std::size_t i = 0; i < shard.ranges.size(); ++i) {
    found.ratios.push_back(trust_ratio(config, weights[i], directions[i]));
    along.push_back(UpdateStep::make(config, step, found.ratios.back()));
  }
  for (std::size_t begin = 0; begin < shard.p.size(); begin += chunk) {
    run_update_pass(UpdatePass::kInPlace, unit, along.data(), begin,
                    std::min(begin + chunk, shard.p.size()));
  }
  return found;
}

Shard random_shard(const std::vector<std::size_t>& sizes, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Shard shard;
  for (const std::size_t size : sizes) {
    std::vector<float> values(size);
    for (float& value : values) {
      value = normal(random);
    }
    shard.add(values);
  }
  shard.complete();
  return shard;
}

void draw_gradients(Shard& shard, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.1F);
  for (float& value : shard.g) {
    value = normal(random);
  }
}

const UpdateConfig kLamb{.kind = OptimizerKind::kLamb, .lr = 1e-2, .weight_decay = 0.05};

Shard trained(std::size_t chunk) {
  Shard shard = random_shard({700, 3, 1, 2000, 513, 40}, 1);
  for (int step = 1; step <= 4; ++step) {
    draw_gradients(shard, static_cast<unsigned>(step));
    lamb_step(shard, kLamb, step, 0.5, chunk);
  }
  return shard;
}

TEST(Lamb, HasTheSameBitsHoweverTheUnitIsCut) {
  const Shard whole = trained(512UL * 100);
  for (const std::size_t chunk : {512UL, 1024UL, 1536UL}) {
    EXPECT_EQ(trained(chunk), whole) << chunk;
  }
}

TEST(Lamb, HasTheSameBitsOnEverySimdTarget) {
  const Shard chosen = trained(512);
  test::for_each_simd_target([&] { EXPECT_EQ(trained(512), chosen); });
}

TEST(Lamb, SumsEachTensorAloneAndAllOfIt) {
  // A tensor in the middle of a unit has the ratio that it has as a unit of its own, to rounding;
  // what lies beside it has no part.
  Shard unit = random_shard({700, 2000, 40}, 3);
  Shard alone;
  alone.add({unit.p.begin() + 700, unit.p.begin() + 2700});
  alone.complete();
  draw_gradients(unit, 5);
  std::copy_n(unit.g.begin() + 700, 2000, alone.g.begin());
  for (std::size_t i = 0; i < 700; ++i) {
    unit.g[i] *= 1e3F;
  }
  UpdateConfig config = kLamb;
  config.max_coeff = 1e6;
  const double in_unit = lamb_step(unit, config, 1, 1, 512).ratios[1];
  EXPECT_NEAR(in_unit, lamb_step(alone, config, 1, 1, 512).ratios[0], 1e-14 * in_unit);
}

TEST(Lamb, TheRatioIsOneWithoutANormAndClampedElse) {
  const auto sum = [](double value) {
    ExactSum made;
    made.add(value);
    return made;
  };
  EXPECT_EQ(trust_ratio(kLamb, sum(0), sum(4)), 1.0);
  EXPECT_EQ(trust_ratio(kLamb, sum(4), sum(0)), 1.0);
  EXPECT_EQ(trust_ratio(kLamb, sum(16), sum(4)), 2.0);
  EXPECT_EQ(trust_ratio(kLamb, sum(1e6), sum(1)), 10.0);
  EXPECT_EQ(trust_ratio(kLamb, sum(1), sum(1e6)), 0.01);
  EXPECT_TRUE(
      std::isnan(trust_ratio(kLamb, sum(1), sum(std::numeric_limits<double>::quiet_NaN()))));
}

TEST(Lamb, ConstantsFollowTheFormulas) {
  UpdateConfig config = kLamb;
  const auto along = std::get<AlongStep>(UpdateStep::make(config, 2, 3).rule);
  EXPECT_FLOAT_EQ(along.rate,
                  static_cast<float>(0.01 * 3 * std::sqrt(1 - 0.999 * 0.999) / (1 - 0.81)));
  EXPECT_EQ(along.decay, 0.0F);
  config.bias_correction = false;
  EXPECT_FLOAT_EQ(std::get<AlongStep>(UpdateStep::make(config, 2, 3).rule).rate, 0.03F);
  const UpdateConfig muon{.kind = OptimizerKind::kMuon, .lr = 0.02, .weight_decay = 0.5};
  const auto step = std::get<AlongStep>(UpdateStep::make(muon, 2, 0.25).rule);
  EXPECT_FLOAT_EQ(step.rate, 0.005F);
  EXPECT_FLOAT_EQ(step.decay, 0.01F) << "the decay is not clipped";
}

TEST(Lamb, StateIsFp32AlongWeightsOfEveryType) {
  for (const OptimizerKind kind : {OptimizerKind::kLamb, OptimizerKind::kMuon}) {
    for (const DType weight : {DType::kF32, DType::kBF16, DType::kF16}) {
      EXPECT_TRUE(supports(kind, StateLayout::kFp32, weight));
      for (const StateLayout other :
           {StateLayout::kSplit, StateLayout::kBf16, StateLayout::kInt8}) {
        EXPECT_FALSE(supports(kind, other, weight));
      }
    }
    EXPECT_EQ(state_arrays({.kind = kind}), 2U);
  }
}

// ---- DeepSpeed's, in double: tests/data/make_optimizers.py ----

const std::string kFolder = test::source_path("tests/data/optimizers/");

struct LambCase {
  const char* name;
  UpdateConfig config;
  double limit;              // the error over the update's norm
  double max_grad_norm = 0;  // for the kernel's own clipping
};
void PrintTo(const LambCase& one, std::ostream* out) { *out << one.name; }

class LambOracle : public ::testing::TestWithParam<LambCase> {};

TEST_P(LambOracle, StaysWithinTheTolerance) {
  const LambCase& c = GetParam();
  const test::OracleTensors file(kFolder + "lamb_" + c.name + ".safetensors");
  const std::vector<std::string> names = {"square", "wide", "tall", "thin", "bias", "norm"};
  constexpr int kSteps = 10;
  Shard shard;
  for (const std::string& name : names) {
    shard.add(file.get<float>("initial." + name));
  }
  shard.complete();
  const std::vector<float> initial = shard.p;
  const auto ratios = file.get<double>("float64.coeff");
  for (int step = 0; step < kSteps; ++step) {
    double squares = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const UpdateRange& range = shard.ranges[i];
      const std::size_t size = range.end - range.begin;
      const auto gradients = file.get<float>("grad." + names[i]);
      std::copy_n(gradients.begin() + static_cast<std::ptrdiff_t>(step * size), size,
                  shard.g.begin() + static_cast<std::ptrdiff_t>(range.begin));
    }
    for (const float g : shard.g) {
      squares += static_cast<double>(g) * g;
    }
    const double over = c.max_grad_norm > 0 ? (std::sqrt(squares) + 1e-6) / c.max_grad_norm : 1;
    const Found found = lamb_step(shard, c.config, step + 1, 1 / std::max(1.0, over), 512);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const double wanted = ratios[step * names.size() + i];
      EXPECT_NEAR(found.ratios[i], wanted, c.limit * wanted) << names[i] << " step " << step + 1;
    }
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const UpdateRange& range = shard.ranges[i];
    const std::size_t size = range.end - range.begin;
    const auto wanted = file.get<double>("float64.param." + names[i]);
    const auto m = file.get<double>("float64.exp_avg." + names[i]);
    const auto v = file.get<double>("float64.exp_avg_sq." + names[i]);
    double error = 0;
    double update = 0;
    double worst_m = 0, largest_m = 0, worst_v = 0, largest_v = 0;
    for (std::size_t k = 0; k < size; ++k) {
      const double want = wanted[k];
      error += std::pow(shard.p[range.begin + k] - want, 2);
      update += std::pow(want - initial[range.begin + k], 2);
      worst_m = std::max(worst_m, std::abs(shard.m[range.begin + k] - m[k]));
      largest_m = std::max(largest_m, std::abs(m[k]));
      worst_v = std::max(worst_v, std::abs(shard.v[range.begin + k] - v[k]));
      largest_v = std::max(largest_v, std::abs(v[k]));
    }
    EXPECT_LE(std::sqrt(error / update), c.limit) << names[i];
    EXPECT_LE(worst_m, 5e-6 * largest_m) << names[i];
    EXPECT_LE(worst_v, 5e-6 * largest_v) << names[i];
  }
}

UpdateConfig lamb(double lr, double beta1, double beta2, double eps, double decay) {
  return {.kind = OptimizerKind::kLamb,
          .lr = lr,
          .beta1 = beta1,
          .beta2 = beta2,
          .eps = eps,
          .weight_decay = decay};
}

std::vector<LambCase> lamb_cases() {
  UpdateConfig narrow = lamb(6e-3, 0.88, 0.98, 1e-6, 0.05);
  narrow.min_coeff = 0.1;
  narrow.max_coeff = 0.3;
  UpdateConfig uncorrected = lamb(1e-3, 0.9, 0.999, 1e-8, 0.01);
  uncorrected.bias_correction = false;
  UpdateConfig inside = lamb(1e-2, 0.9, 0.99, 1e-4, 0.01);
  inside.eps_inside_sqrt = true;
  return {{"default", lamb(1e-2, 0.9, 0.999, 1e-8, 0), 5e-5},
          {"decay_narrow", narrow, 5e-4},
          {"no_bias_correction", uncorrected, 6e-5},
          {"eps_inside_sqrt", inside, 3e-5},
          {"max_grad_norm", lamb(1e-2, 0.9, 0.999, 1e-8, 0.01), 5e-5, 0.5}};
}

INSTANTIATE_TEST_SUITE_P(Files, LambOracle, ::testing::ValuesIn(lamb_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
