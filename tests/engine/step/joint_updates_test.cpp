// LAMB and Muon, whose update of an element needs others: the same bits at every stage, on any
// number of ranks, under every schedule; the numbers of the definition, recomputed here in double;
// and what they refuse.
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/layout/muon_matrices.hpp"
#include "engine/memory/memory_plan.hpp"
#include "engine/plan/run_plan.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using toy::kToyLamb;
using toy::kToyMuon;
using toy::Setting;
using toy::train;
using toy::train_on_ranks;
using toy::TrainingRun;

class JointUpdates : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  [[nodiscard]] static Setting setting() {
    const auto& [optimizer, type] = GetParam();
    return {.overlap = Overlap::kOff,
            .accumulation = 6,
            .type = type,
            .optimizer = optimizer == "lamb" ? kToyLamb : kToyMuon};
  }
};

TEST_P(JointUpdates, GiveTheSameBitsOnOneRank) {
  Setting setting = this->setting();
  for (const int accumulation : {1, 2}) {
    setting.accumulation = accumulation;
    setting.stage = 0;
    setting.overlap = Overlap::kOff;
    setting.optimizer_threads = 1;
    const TrainingRun expected = train(setting);
    for (const int stage : {0, 1, 2, 3}) {
      for (const Overlap overlap : {Overlap::kOff, Overlap::kOffload, Overlap::kFull}) {
        setting.stage = stage;
        setting.overlap = overlap;
        setting.optimizer_threads = 1 + stage;
        setting.persistent_elements = overlap == Overlap::kOffload ? 100 : 0;
        EXPECT_EQ(train(setting), expected) << "stage " << stage << " " << name_of(overlap);
      }
    }
  }
}

TEST_P(JointUpdates, GiveTheSameBitsOnAnyNumberOfRanks) {
  Setting setting = this->setting();
  const TrainingRun alone = train(setting, 4);
  for (const int world : {2, 3}) {
    setting.accumulation = 6 / world;
    for (const int stage : {0, 1, 2, 3}) {
      for (const Overlap overlap : {Overlap::kOff, Overlap::kFull}) {
        setting.stage = stage;
        setting.overlap = overlap;
        setting.optimizer_threads = stage == 1 ? 3 : 1;
        setting.persistent_elements = stage == 3 && overlap == Overlap::kOff ? 100 : 0;
        EXPECT_EQ(train_on_ranks(setting, world, 4), alone)
            << world << " ranks, stage " << stage << " " << name_of(overlap);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, JointUpdates,
                         ::testing::Combine(::testing::Values("lamb", "muon"),
                                            ::testing::Values("fp32", "bf16", "fp16")),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param);
                         });

TEST(JointUpdates, AreNotBegunAheadOfTheVerdict) {
  for (const std::string& optimizer : {kToyLamb, kToyMuon}) {
    const Setting setting{.forced_misses = 0.5, .optimizer = optimizer};
    Engine engine(toy::arguments(setting));
    EXPECT_EQ(engine.resident_bytes().shadows, 0U);
    for (int step = 0; step < 4; ++step) {
      const Batch batch = toy::batch(step);
      const StepResult result = engine.train_step(std::span(&batch, 1));
      EXPECT_EQ(result.verdict.outcome, StepOutcome::kCommit);
      EXPECT_FALSE(result.verdict.speculated);
    }
  }
}

TEST(JointUpdates, ThePlanCountsWhatARankAllocates) {
  for (const std::string& optimizer : {kToyLamb, kToyMuon}) {
    for (const int world : {1, 2, 3}) {
      for (const int stage : {0, 2, 3}) {
        for (const std::string type : {"fp32", "bf16"}) {
          const Setting setting{.stage = stage, .type = type, .optimizer = optimizer};
          const MemoryPlan plan =
              plan_memory(toy::model(), PlanInput::of(toy::config_of(setting, world),
                                                      toy::arguments(setting).options, world));
          const auto planned = [&](MemoryPurpose purpose) {
            std::size_t sum = 0;
            for (const std::int64_t bytes : plan.bytes[static_cast<std::size_t>(purpose)]) {
              sum += static_cast<std::size_t>(bytes);
            }
            return sum;
          };
          const auto held = on_ranks(world, [&](std::shared_ptr<Communicator> ranks) {
            return Engine(toy::arguments(setting, std::move(ranks))).resident_bytes();
          });
          for (const ResidentBytes& of_rank : held) {
            EXPECT_EQ(of_rank.optimizer,
                      planned(MemoryPurpose::kMaster) + planned(MemoryPurpose::kMoments));
            EXPECT_EQ(of_rank.gradients,
                      planned(MemoryPurpose::kGradients) + planned(MemoryPurpose::kGradientSlots));
            EXPECT_EQ(of_rank.shadows, 0U);
          }
        }
      }
    }
  }
}

// ---- the definition, in double ----

using Values = std::map<std::string, std::vector<double>>;

/// A deliberate mistake in the reference computation.
enum class Plant : std::uint8_t {
  kNone,
  kRatioOfHalf,        // LAMB: norms of a part of the tensor
  kCorrectedRatio,     // LAMB: of the moments after bias correction
  kDecayOutsideRatio,  // LAMB: decoupled
  kClipsGradients,     // Muon: before, not after
  kNoLookAhead,        // Muon: the momentum as it is
  kNoScale,            // Muon: without sqrt(rows / columns)
};

double norm_of(const std::vector<double>& values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    sum += values[i] * values[i];
  }
  return std::sqrt(sum);
}

/// X X^T and its like, one by one.
std::vector<double> times(const std::vector<double>& a, const std::vector<double>& b,
                          std::size_t rows, std::size_t depth, std::size_t columns, bool across) {
  std::vector<double> c(rows * columns);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      for (std::size_t k = 0; k < depth; ++k) {
        c[i * columns + j] += a[i * depth + k] * (across ? b[j * depth + k] : b[k * columns + j]);
      }
    }
  }
  return c;
}

std::vector<double> orthogonal(const std::vector<double>& g, std::size_t rows, std::size_t columns,
                               bool scales) {
  std::vector<double> x = g;
  const bool tall = rows > columns;
  const std::size_t m = std::min(rows, columns);
  const std::size_t n = std::max(rows, columns);
  for (std::size_t i = 0; i < m && tall; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      x[i * n + j] = g[j * m + i];
    }
  }
  const double norm = norm_of(x, x.size()) + 1e-7;
  for (double& value : x) {
    value /= norm;
  }
  for (int step = 0; step < 5; ++step) {
    const auto a = times(x, x, m, n, m, true);
    const auto aa = times(a, a, m, m, m, false);
    std::vector<double> b(m * m);
    for (std::size_t i = 0; i < b.size(); ++i) {
      b[i] = -4.7750 * a[i] + 2.0315 * aa[i];
    }
    const auto bx = times(b, x, m, m, n, false);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = 3.4445 * x[i] + bx[i];
    }
  }
  const double scale =
      scales && tall ? std::sqrt(static_cast<double>(rows) / static_cast<double>(columns)) : 1;
  std::vector<double> made(g.size());
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      made[i * columns + j] = scale * (tall ? x[j * rows + i] : x[i * columns + j]);
    }
  }
  return made;
}

struct Definition {
  Plant plant = Plant::kNone;
  double clip = 0;
  Values m, v;
  int step = 0;

  void lamb(const ParameterSpec& spec, const std::vector<double>& g, std::vector<double>& p) {
    std::vector<double>& m1 = m[spec.name];
    std::vector<double>& v1 = v[spec.name];
    const double correction1 = 1 - std::pow(0.9, step);
    const double correction2 = 1 - std::pow(0.999, step);
    const bool corrected = plant == Plant::kCorrectedRatio;
    const bool decoupled = plant == Plant::kDecayOutsideRatio;
    std::vector<double> u(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      m1[i] = 0.9 * m1[i] + 0.1 * g[i];
      v1[i] = 0.999 * v1[i] + 0.001 * g[i] * g[i];
      u[i] = corrected ? (m1[i] / correction1) / (std::sqrt(v1[i] / correction2) + 1e-8)
                       : m1[i] / (std::sqrt(v1[i]) + 1e-8);
      u[i] += decoupled ? 0 : 0.1 * p[i];
    }
    const std::size_t counted = plant == Plant::kRatioOfHalf ? p.size() / 2 : p.size();
    const double w = norm_of(p, p.size());
    const double norm = norm_of(u, counted);
    const double ratio = w == 0 || norm == 0 ? 1 : std::clamp(w / norm, 0.01, 0.9);
    const double rate = corrected ? 0.02 : 0.02 * std::sqrt(correction2) / correction1;
    for (std::size_t i = 0; i < p.size(); ++i) {
      p[i] -= rate * ratio * u[i] + (decoupled ? 0.02 * 0.1 * p[i] : 0);
    }
  }

  void adamw(const ParameterSpec& spec, const std::vector<double>& g, std::vector<double>& p) {
    std::vector<double>& m1 = m[spec.name];
    std::vector<double>& v1 = v[spec.name];
    for (std::size_t i = 0; i < p.size(); ++i) {
      m1[i] = 0.9 * m1[i] + 0.1 * g[i];
      v1[i] = 0.95 * v1[i] + 0.05 * g[i] * g[i];
      const double u = m1[i] / (1 - std::pow(0.9, step)) /
                       (std::sqrt(v1[i] / (1 - std::pow(0.95, step))) + 1e-10);
      p[i] -= 0.01 * u + 0.01 * 0.1 * p[i];
    }
  }

  /// The direction of a matrix.
  std::vector<double> muon(const ParameterSpec& spec, const std::vector<double>& g) {
    std::vector<double>& m1 = m[spec.name];
    std::vector<double> u(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      m1[i] = 0.95 * m1[i] + 0.05 * g[i];
      u[i] = plant == Plant::kNoLookAhead ? m1[i] : 0.05 * g[i] + 0.95 * m1[i];
    }
    return orthogonal(u, static_cast<std::size_t>(spec.shape[0]),
                      static_cast<std::size_t>(spec.shape[1]), plant != Plant::kNoScale);
  }

  /// One step on the parameters; returns the norm that a step says.
  double apply(const std::map<std::string, ParameterSpec>& specs, Values g, Values& p,
               bool is_muon) {
    ++step;
    for (const auto& [name, values] : p) {
      m.try_emplace(name, values.size());
      v.try_emplace(name, values.size());
    }
    const auto scale_of = [&](const Values& of, double& norm) {
      double sum = 0;
      for (const auto& [name, values] : of) {
        sum += std::pow(norm_of(values, values.size()), 2);
      }
      norm = std::sqrt(sum);
      return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
    };
    const auto scale_all = [](Values& of, double by) {
      for (auto& [name, values] : of) {
        for (double& value : values) {
          value *= by;
        }
      }
    };
    double norm = 0;
    if (!is_muon || plant == Plant::kClipsGradients) {
      scale_all(g, scale_of(g, norm));
    }
    if (is_muon) {
      for (const auto& [name, spec] : specs) {
        if (is_orthogonalized(spec)) {
          g[name] = muon(spec, g[name]);
        }
      }
      if (plant != Plant::kClipsGradients) {
        scale_all(g, scale_of(g, norm));
      }
    }
    for (const auto& [name, spec] : specs) {
      if (!is_muon) {
        lamb(spec, g[name], p[name]);
      } else if (!is_orthogonalized(spec)) {
        adamw(spec, g[name], p[name]);
      } else {
        for (std::size_t i = 0; i < p[name].size(); ++i) {
          p[name][i] -= 0.03 * g[name][i] + 0.03 * 0.1 * p[name][i];
        }
      }
    }
    return norm;
  }
};

struct Distance {
  double weights = 0;  // the worst parameter's, over its update
  double norms = 0;    // relative
};

/// How far the engine's weights are from the definition's after four steps with the engine's own
/// gradients.
Distance distance(const std::string& optimizer, Plant plant) {
  constexpr double kClip = 0.3;
  constexpr int kSteps = 4;
  const bool is_muon = optimizer == kToyMuon;
  Engine engine(toy::arguments({.clip = kClip, .optimizer = optimizer}));
  std::map<std::string, ParameterSpec> specs;
  const auto read = [&](auto for_each) {
    Values values;
    for_each([&](const ParameterSpec& spec, std::span<const float> data) {
      specs[spec.name] = spec;
      values[spec.name].assign(data.begin(), data.end());
    });
    return values;
  };
  const auto weights = [&] {
    return read([&](const auto& visit) { engine.for_each_parameter(visit); });
  };
  const Values before = weights();
  Values p = before;
  Definition definition{.plant = plant, .clip = kClip};
  Distance worst;
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = toy::batch(step);
    engine.backward(engine.forward(batch));
    const Values g = read([&](const auto& visit) { engine.for_each_gradient(visit); });
    const double norm = definition.apply(specs, g, p, is_muon);
    const auto result = engine.step();
    worst.norms = std::max(worst.norms, std::abs(result->verdict.norm.value - norm) / norm);
  }
  for (const auto& [name, got] : weights()) {
    double error = 0;
    double update = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      error += std::pow(got[i] - p[name][i], 2);
      update += std::pow(p[name][i] - before.at(name)[i], 2);
    }
    // The master is rounded once a step, by half a unit in its last place at most.
    const double rounding = kSteps * std::exp2(-24) * norm_of(p[name], got.size());
    worst.weights = std::max(worst.weights, (std::sqrt(error) - rounding) / std::sqrt(update));
  }
  return worst;
}

TEST(JointUpdates, LambFollowsItsDefinitionAndNoOther) {
  const Distance right = distance(kToyLamb, Plant::kNone);
  EXPECT_LT(right.weights, 2e-5);
  EXPECT_LT(right.norms, 1e-6);
  for (const Plant plant :
       {Plant::kRatioOfHalf, Plant::kCorrectedRatio, Plant::kDecayOutsideRatio}) {
    EXPECT_GT(distance(kToyLamb, plant).weights, 1e-3) << static_cast<int>(plant);
  }
}

TEST(JointUpdates, MuonFollowsItsDefinitionAndNoOther) {
  const Distance right = distance(kToyMuon, Plant::kNone);
  EXPECT_LT(right.weights, 1e-4);
  EXPECT_LT(right.norms, 1e-5);
  for (const Plant plant : {Plant::kClipsGradients, Plant::kNoLookAhead, Plant::kNoScale}) {
    EXPECT_GT(distance(kToyMuon, plant).weights, 1e-3) << static_cast<int>(plant);
  }
}

TEST(MuonMatrices, AreDeepSpeeds) {
  const auto of = [](const char* name, std::vector<std::int64_t> shape) {
    return ParameterSpec{.name = name, .shape = std::move(shape)};
  };
  EXPECT_TRUE(is_orthogonalized(of("model.layers.0.self_attn.q_proj.weight", {8, 4})));
  EXPECT_TRUE(is_orthogonalized(of("transformer.wte.weight", {8, 4}))) << "as in DeepSpeed";
  EXPECT_FALSE(is_orthogonalized(of("model.embed_tokens.weight", {8, 4})));
  EXPECT_FALSE(is_orthogonalized(of("lm_head.weight", {8, 4})));
  EXPECT_FALSE(is_orthogonalized(of("model.norm.weight", {8})));
  const MuonMatrices experts = matrices_of(of("experts.up", {3, 8, 4}));
  EXPECT_EQ(experts.count, 3U);
  EXPECT_EQ(experts.shape.rows, 8U);
  EXPECT_EQ(experts.shape.columns, 4U);
  const MuonMatrices filters = matrices_of(of("conv.weight", {6, 3, 5, 5}));
  EXPECT_EQ(filters.count, 1U);
  EXPECT_EQ(filters.shape.rows, 6U);
  EXPECT_EQ(filters.shape.columns, 75U);
}

TEST(JointUpdates, RefuseOtherLayoutsAndPlaces) {
  for (const std::string& optimizer : {kToyLamb, kToyMuon}) {
    for (const StateLayout layout : {StateLayout::kSplit, StateLayout::kBf16, StateLayout::kInt8}) {
      EXPECT_THAT(
          [&] {
            Engine engine(
                toy::arguments({.type = "bf16", .state_layout = layout, .optimizer = optimizer}));
          },
          ThrowsError(ExitCode::kUserInput, HasSubstr("LAMB and Muon")));
    }
    for (const Placement placement : {Placement::kGpu, Placement::kStream}) {
      const Setting setting{
          .device = DeviceKind::kSim, .placement = placement, .optimizer = optimizer};
      EXPECT_THAT([&] { Engine engine(toy::arguments(setting)); },
                  ThrowsError(ExitCode::kUserInput, HasSubstr("updates on the host alone")));
      InitializeArgs planned = toy::arguments(setting);
      planned.options.plans_run = true;
      EXPECT_THAT([&] { Engine engine(std::move(planned)); },
                  ThrowsError(ExitCode::kUserInput, HasSubstr("updates on the host alone")));
    }
  }
}

TEST(JointUpdates, GiveTheSameBitsBesideASimulatedDevice) {
  for (const std::string& optimizer : {kToyLamb, kToyMuon}) {
    const TrainingRun expected = train({.optimizer = optimizer}, 4);
    EXPECT_EQ(train({.device = DeviceKind::kSim, .optimizer = optimizer}, 4), expected);
    EXPECT_EQ(
        train_on_ranks({.stage = 2, .device = DeviceKind::kSim, .optimizer = optimizer}, 2, 4),
        train_on_ranks({.stage = 2, .optimizer = optimizer}, 2, 4));
  }
}

}  // namespace
}  // namespace tandem
