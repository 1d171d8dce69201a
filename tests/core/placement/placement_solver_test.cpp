// The step model against what is known of the schedule, and the solver against every placement
// there is.
#include "engine/placement/placement_solver.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "runtime/util/random.hpp"

namespace tandem {
namespace {

constexpr StatePlacement kHost = StatePlacement::kHost;
constexpr StatePlacement kDevice = StatePlacement::kDevice;
constexpr StatePlacement kStreamed = StatePlacement::kStreamed;

/// Equal layers: seconds of compute, of all updates on the pool, and of all gradients (and weights)
/// on a link.
PlacementProblem layers(std::size_t count, double forward_s, double backward_s, double update_s,
                        double link_s) {
  const auto n = static_cast<double>(count);
  PlacementProblem problem{
      .speeds = {.host_update = 28, .to_device = 2, .to_host = 2, .device_memory = 1e9},
      .device_bytes = 1e18};
  for (std::size_t i = 0; i < count; ++i) {
    problem.units.push_back({.weights = 2 * link_s / n,
                             .gradient = 2 * link_s / n,
                             .accumulator = 2 * link_s / n,
                             .update = 28 * update_s / n,
                             .state_in = 12,
                             .optimizer = 12,
                             .on_host = 14,
                             .on_device = 14,
                             .when_streamed = 2,
                             .is_replicated = true});
    problem.segments.push_back(
        {.units = {i}, .forward_s = forward_s / n, .backward_s = backward_s / n});
  }
  return problem;
}

double on_host(const PlacementProblem& problem) {
  return predict_step_s(problem, std::vector(problem.units.size(), kHost));
}

// An event simulation of 36 layers, t_F = 0.25, t_B = 0.75, links 0.15 (the design's overlap
// model).
TEST(PlacementModel, PredictsTheSchedulesOfTheOverlapModel) {
  struct Row {
    double adam, serial, not_ahead, ahead;
  };
  for (const Row& row :
       {Row{0.25, 1.40, 1.02, 1.02}, Row{0.5, 1.65, 1.26, 1.02}, Row{0.75, 1.90, 1.51, 1.03},
        Row{1.0, 2.15, 1.76, 1.06}, Row{1.25, 2.40, 2.01, 1.30}, Row{1.5, 2.65, 2.26, 1.54}}) {
    SCOPED_TRACE(row.adam);
    PlacementProblem problem = layers(36, 0.25, 0.75, row.adam, 0.15);
    EXPECT_NEAR(on_host(problem), row.ahead, 0.03);
    problem.overlap = Overlap::kOffload;
    EXPECT_NEAR(on_host(problem), row.not_ahead, 0.04);
    // Serial there has its links half hidden.
    problem.overlap = Overlap::kOff;
    EXPECT_NEAR(on_host(problem), 1 + row.adam + 0.3, 1e-9);
    EXPECT_GE(on_host(problem), row.serial - 1e-9);
  }
}

TEST(PlacementModel, WithoutShadowsUpdatesBeginWithTheVerdict) {
  PlacementProblem problem = layers(12, 0.25, 0.75, 0.8, 0.1);
  const double ahead = on_host(problem);
  for (PlacementUnit& unit : problem.units) {
    unit.has_shadow = false;
  }
  const double after = on_host(problem);
  EXPECT_GT(after, 1.2 * ahead);
  problem.overlap = Overlap::kOffload;
  EXPECT_DOUBLE_EQ(on_host(problem), after);
}

TEST(PlacementModel, PassesAheadHaveASpeedOfTheirOwn) {
  PlacementProblem problem = layers(12, 0.25, 0.75, 1.5, 0.1);
  const double alike = on_host(problem);
  problem.speeds.host_update_speculative = problem.speeds.host_update;
  EXPECT_DOUBLE_EQ(on_host(problem), alike);
  problem.speeds.host_update_speculative = problem.speeds.host_update / 1.2;
  const double slower = on_host(problem);
  // The pool works all the time, about half of it before the verdict.
  EXPECT_GT(slower, alike + 0.05);
  EXPECT_LT(slower, alike + 0.3);
  problem.overlap = Overlap::kOffload;
  problem.speeds.host_update_speculative = 0;
  const double after = on_host(problem);
  problem.speeds.host_update_speculative = 1e-3;
  EXPECT_DOUBLE_EQ(on_host(problem), after) << "nothing is ahead";
}

TEST(PlacementModel, OnTheDeviceNothingButComputeIsLeft) {
  PlacementProblem problem = layers(12, 0.25, 0.75, 5, 2);
  EXPECT_NEAR(predict_step_s(problem, std::vector(12, kDevice)), 1, 1e-6);
  // Streamed: 12 bytes each way at 2 bytes a second, both ways at once, for each of 12 units.
  EXPECT_NEAR(predict_step_s(problem, std::vector(12, kStreamed)), 72, 0.1);
}

// The rest of the disk's transfers runs under the next forward; backward waits for it.
TEST(PlacementModel, StateOnNvmePassesTheDiskBehindTheVerdict) {
  constexpr StatePlacement kNvme = StatePlacement::kNvme;
  PlacementProblem problem = layers(12, 0.25, 0.75, 0.2, 0.1);
  problem.speeds.disk = 12 * 12 / 1.5;  // 1.5 s for all units
  EXPECT_NEAR(predict_step_s(problem, std::vector(12, kNvme)), 1.5 + 0.75, 0.05);
  std::vector<StatePlacement> half(12, kHost);
  std::fill(half.begin(), half.begin() + 6, kNvme);
  EXPECT_NEAR(predict_step_s(problem, half), 0.75 + 0.75 + 0.125, 0.05);
  std::ranges::reverse(half);
  EXPECT_NEAR(predict_step_s(problem, half), 0.75 + 0.75, 0.05) << "their weights are needed last";
  problem.speeds.disk *= 1000;
  problem.overlap = Overlap::kOffload;
  EXPECT_NEAR(predict_step_s(problem, std::vector(12, kNvme)), on_host(problem), 1e-9)
      << "then the pool is what updates wait for";
}

TEST(PlacementModel, MicroStepsRepeatComputeAndReductions) {
  PlacementProblem problem = layers(6, 0.2, 0.4, 0.01, 0.01);
  problem.micro_steps = 3;
  EXPECT_NEAR(on_host(problem), 1.8, 0.02);
  problem.speeds.to_host /= 100;  // 1 s per micro-step, behind backward
  EXPECT_NEAR(on_host(problem), 3, 0.6);
}

/// With ten layers, copies the inputs of 1 to 7 out, each in `copy_s` of the link alone.
PlacementProblem with_boundaries(PlacementProblem problem, double copy_s) {
  for (std::size_t b = 1; b + 3 <= problem.segments.size(); ++b) {
    problem.segments[b].boundary = problem.speeds.to_host * copy_s;
  }
  return problem;
}

// A visit takes 25 ms in forward, 75 ms in backward.
TEST(PlacementModel, BoundariesAreHiddenWhereTheLinkIsFaster) {
  const PlacementProblem problem = layers(10, 0.25, 0.75, 0.01, 0.01);
  const std::vector on_device(10, kDevice);
  EXPECT_NEAR(predict_step_s(with_boundaries(problem, 0.0125), on_device), 1, 1e-6);
  // Forward ends behind the last copy and the visits behind it: 25 + 7 x 50 + 25 ms.
  EXPECT_NEAR(predict_step_s(with_boundaries(problem, 0.05), on_device), 1.15, 1e-3);
  PlacementProblem off = with_boundaries(problem, 0.0125);
  off.overlap = Overlap::kOff;
  EXPECT_NEAR(predict_step_s(off, on_device), 1 + 14 * 0.0125, 1e-3) << "nothing runs beside them";
}

TEST(PlacementModel, BoundariesShareTheLinkWithGathers) {
  PlacementProblem problem = layers(10, 1, 0.75, 0.01, 0.6);  // a gather takes 60 ms
  for (PlacementUnit& unit : problem.units) {
    unit.is_replicated = false;
  }
  const std::vector on_device(10, kDevice);
  const PlacementProblem offloads = with_boundaries(problem, 0.03);
  EXPECT_NEAR(predict_step_s(offloads, on_device), predict_step_s(problem, on_device), 1e-6)
      << "the link has nothing else to do";
  EXPECT_GT(on_host(offloads) - on_host(problem), 0.03);
}

// ---- the solver ----
/// Some machine and some model: an embedding, layers, and speeds between which any of the three
/// places can be the best.
PlacementProblem some(Random& random, std::size_t count) {
  PlacementProblem problem = layers(count, 0.25, 0.75, 1, 0.15);
  const double elements = 1.0 / static_cast<double>(count);
  for (PlacementUnit& unit : problem.units) {
    const double size = elements * (0.5 + random.uniform());
    unit = {.weights = 2 * size,
            .gradient = 2 * size,
            .accumulator = 2 * size,
            .update = 28 * size,
            .state_in = 12 * size,
            .optimizer = 12 * size,
            .on_host = 14 * size,
            .on_device = 16 * size,
            .when_streamed = 4 * size,
            .is_replicated = random.chance(0.5)};
  }
  const double tied = 1 + 3 * random.uniform();
  for (double PlacementUnit::* bytes :
       {&PlacementUnit::weights, &PlacementUnit::gradient, &PlacementUnit::accumulator,
        &PlacementUnit::update, &PlacementUnit::state_in, &PlacementUnit::optimizer,
        &PlacementUnit::on_host, &PlacementUnit::on_device, &PlacementUnit::when_streamed}) {
    problem.units[0].*bytes *= tied;
  }
  problem.segments.back().units.insert(problem.segments.back().units.begin(), 0);
  const double adam_s = 0.25 + 1.5 * random.uniform();
  problem.speeds = {.host_update = 28 / adam_s,
                    .to_device = 24 / (0.1 + 2 * random.uniform()),
                    .to_host = 24 / (0.1 + 2 * random.uniform()),
                    .device_memory = 28 / (0.01 + 0.1 * random.uniform())};
  problem.device_bytes = 16 * random.uniform();
  problem.gather_slots = 3;
  return problem;
}

/// The best of all 3^n.
double best_of_all(const PlacementProblem& problem) {
  const std::size_t n = problem.units.size();
  double best = std::numeric_limits<double>::infinity();
  std::vector<StatePlacement> placements(n, kHost);
  for (;;) {
    if (problem.fits(placements)) {
      best = std::min(best, predict_step_s(problem, placements));
    }
    std::size_t i = 0;
    while (i < n && placements[i] == kStreamed) {
      placements[i++] = kHost;
    }
    if (i == n) {
      return best;
    }
    placements[i] = placements[i] == kHost ? kDevice : kStreamed;
  }
}

TEST(PlacementSolver, IsWithinThreePercentOfTheBestOfAllPlacements) {
  Random random(3);
  double worst = 0;
  for (int round = 0; round < 36; ++round) {
    const PlacementProblem problem = some(random, 5 + round % 6);
    const PlacementChoice choice = choose_placements(problem);
    ASSERT_TRUE(choice.fits);
    EXPECT_TRUE(problem.fits(choice.placements));
    EXPECT_DOUBLE_EQ(choice.step_s, predict_step_s(problem, choice.placements));
    EXPECT_LE(choice.step_s, 1.005 * choice.host_step_s);
    worst = std::max(worst, choice.step_s / best_of_all(problem));
  }
  EXPECT_LE(worst, 1.03);
  EXPECT_GE(worst, 1 - 1e-12);
}

TEST(PlacementSolver, IsWithinThreePercentOfTheBestNumbersOfUnits) {
  Random random(4);
  for (int round = 0; round < 6; ++round) {
    const PlacementProblem problem = some(random, 30);
    const PlacementChoice choice = choose_placements(problem);
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t d = 0; d <= 30; ++d) {
      for (std::size_t s = 0; d + s <= 30; ++s) {
        const auto placements = placements_by_count(problem, d, s, StreamOrder::kSpread);
        if (problem.fits(placements)) {
          best = std::min(best, predict_step_s(problem, placements));
        }
      }
    }
    EXPECT_LE(choice.step_s, 1.03 * best) << round;
    EXPECT_LT(choice.predictions, 5000U);
  }
}

TEST(PlacementSolver, KeepsUnitsWithoutAWindowOnTheDevice) {
  PlacementProblem problem = layers(12, 0.25, 0.75, 0.1, 0.05);  // the optimizer is no matter
  EXPECT_EQ(choose_placements(problem).placements,
            (std::vector<StatePlacement>{kDevice, kDevice, kHost, kHost, kHost, kHost, kHost, kHost,
                                         kHost, kHost, kHost, kHost}));
  problem.device_bytes = 20;  // one unit fits, two do not
  EXPECT_EQ(choose_placements(problem).placements[0], kDevice);
  EXPECT_EQ(std::ranges::count(choose_placements(problem).placements, kDevice), 1);
  problem.device_bytes = 10;
  EXPECT_EQ(std::ranges::count(choose_placements(problem).placements, kDevice), 0);
}

TEST(PlacementSolver, UsesTheDeviceAsFarAsThereIsRoom) {
  PlacementProblem problem = layers(12, 0.25, 0.75, 3, 0.05);
  EXPECT_GE(std::ranges::count(choose_placements(problem).placements, kDevice), 8);
  problem.device_bytes = 5 * 14;
  EXPECT_EQ(std::ranges::count(choose_placements(problem).placements, kDevice), 5);
  problem.speeds.to_device = problem.speeds.to_host = 1e6;  // links for which streaming is nothing
  const PlacementChoice choice = choose_placements(problem);
  EXPECT_GT(std::ranges::count(choice.placements, kStreamed), 0);
  EXPECT_LT(choice.step_s, 0.6 * choice.host_step_s);
}

// Compute and the pool are equally long; what costs compute nothing leaves the pool slack.
TEST(PlacementSolver, HoldsWithASlowerPool) {
  for (const double update_s : {0.9, 1.0, 1.1}) {
    PlacementProblem problem = layers(36, 0.25, 0.75, update_s, 0.15);
    problem.device_bytes = 3 * 14 + 36 * 2;
    for (PlacementUnit& unit : problem.units) {
      unit.state_in = 6 * unit.weights;
    }
    const PlacementChoice choice = choose_placements(problem);
    problem.speeds.host_update *= 0.7;
    EXPECT_LE(predict_step_s(problem, choice.placements), 1.02 * choice.step_s) << update_s;
  }
}

TEST(PlacementSolver, LeavesTheHostWhereItHasNoRoom) {
  PlacementProblem problem = layers(12, 0.25, 0.75, 0.1, 0.05);
  problem.host_bytes = 6 * 14;
  const PlacementChoice choice = choose_placements(problem);
  EXPECT_TRUE(choice.fits);
  EXPECT_LE(std::ranges::count(choice.placements, kHost), 6);
  problem.device_bytes = 30;
  EXPECT_FALSE(choose_placements(problem).fits);
}

TEST(PlacementSolver, LeavesWhatIsFrozen) {
  PlacementProblem problem = layers(6, 0.25, 0.75, 3, 0.05);
  problem.units[0].is_movable = false;
  const PlacementChoice choice = choose_placements(problem);
  EXPECT_EQ(choice.placements[0], kHost);
  EXPECT_EQ(choice.placements[1], kDevice);
}

TEST(PlacementSolver, SpreadsWhatIsStreamed) {
  const PlacementProblem problem = layers(7, 1, 1, 1, 1);
  EXPECT_EQ(
      placements_by_count(problem, 1, 2, StreamOrder::kSpread),
      (std::vector<StatePlacement>{kDevice, kHost, kHost, kStreamed, kHost, kHost, kStreamed}));
  EXPECT_EQ(
      placements_by_count(problem, 1, 2, StreamOrder::kFirst),
      (std::vector<StatePlacement>{kDevice, kStreamed, kStreamed, kHost, kHost, kHost, kHost}));
  EXPECT_EQ(
      placements_by_count(problem, 1, 2, StreamOrder::kLast),
      (std::vector<StatePlacement>{kDevice, kHost, kHost, kHost, kHost, kStreamed, kStreamed}));
}

}  // namespace
}  // namespace tandem
