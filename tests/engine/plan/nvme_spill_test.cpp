// Which units' state leaves a full host for NVMe, beside an exhaustive search: at every rate of
// pool and disk, for units of any size.
#include "engine/plan/nvme_spill.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "engine/config/config.hpp"
#include "engine/placement/placement_plan.hpp"
#include "tests/support/toy/model.hpp"

namespace tandem {
namespace {

using Placements = std::vector<StatePlacement>;

/// The toy model with as many units, whose sizes are powers of two.
Model model_of(const std::vector<int>& sizes) {
  Model model = toy::model();
  while (model.units.size() < sizes.size()) {
    const std::size_t unit = model.units.size();
    const std::string name = "block " + std::to_string(unit);
    model.units.push_back({name, toy::block_parameters(static_cast<std::int64_t>(unit))});
    model.segments.insert(
        model.segments.end() - 1,
        {name, {{unit, 0}, {unit, 1}, {unit, 2}}, std::make_shared<toy::Block>()});
  }
  for (std::size_t unit = 0; unit < sizes.size(); ++unit) {
    model.units[unit].parameters.front().shape = {std::int64_t{1} << sizes[unit]};
  }
  return model;
}

/// A host that is too small for a model's state, and all sets of units that could leave it.
class Spills {
 public:
  explicit Spills(const Model& model) : model_(model) {
    options_.sim.memory_bytes_per_s = 1e3;  // so that the host updates
    const Config config = parse_config(
        R"({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3,
            "stage3_param_persistence_threshold": 0, "offload_optimizer": {"device": "cpu"}}})",
        "test", 1);
    input_ = PlanInput::of(config, options_, 1);
    input_.shape.shadows = {};
    for (std::size_t set = 1; set < std::size_t{1} << model.units.size(); ++set) {
      Placements placements;
      for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
        placements.push_back((set >> unit & 1) != 0 ? StatePlacement::kNvme
                                                    : StatePlacement::kHost);
      }
      input_.shape.engine.placements = placements;
      sets_.push_back({placements, plan_memory(model_, input_).host_total()});
    }
  }

  /// Host memory with which one more set fits, each.
  [[nodiscard]] std::set<std::int64_t> rooms() const {
    std::set<std::int64_t> rooms;
    for (const Set& set : sets_) {
      rooms.insert(set.host_bytes);
    }
    return rooms;
  }

  /// The step of what is chosen, over that of the best set that fits.
  [[nodiscard]] double over_best(double update_rate, double disk_rate, std::int64_t room) {
    PlacementProblem problem = placement_problem(
        model_, input_, PlacementHardware::of(options_.sim, {.in_place = update_rate}),
        Overlap::kFull);
    problem.speeds.disk = disk_rate;
    double best_s = std::numeric_limits<double>::infinity();
    for (const Set& set : sets_) {
      if (set.host_bytes <= room) {
        best_s = std::min(best_s, predict_step_s(problem, set.placements));
      }
    }
    PlanInput chosen = input_;
    chosen.shape.engine.placements.assign(model_.units.size(), StatePlacement::kHost);
    const double step_s = spill_to_nvme(model_, problem, room, chosen).value();
    EXPECT_LE(plan_memory(model_, chosen).host_total(), room);
    EXPECT_EQ(step_s, predict_step_s(problem, chosen.shape.engine.placements));
    return step_s / best_s;
  }

 private:
  struct Set {
    Placements placements;
    std::int64_t host_bytes;
  };

  const Model& model_;
  EngineOptions options_{.device = DeviceKind::kSim,
                         .speculate = Speculate::kOff,
                         .compute_threads = 1,
                         .optimizer_threads = 1};
  PlanInput input_;
  std::vector<Set> sets_;
};

const std::vector<double> kUpdateRates = {1e8, 1e9, 5e9, 8e9, 1e10, 1.6e10, 2e10, 4e10, 1e12};

TEST(NvmeSpill, OfFewUnitsIsTheBestSetAtEveryRate) {
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{{24, 24, 24, 24, 24},
                                                                     {26, 24, 24, 24, 24},
                                                                     {24, 24, 24, 24, 26},
                                                                     {22, 24, 26, 24, 22},
                                                                     {23, 25, 22, 26, 24}}) {
    const Model model = model_of(sizes);
    Spills spills(model);
    for (const std::int64_t room : spills.rooms()) {
      for (const double update_rate : kUpdateRates) {
        for (const double disk_rate : {2e9, 1e10}) {
          EXPECT_LE(spills.over_best(update_rate, disk_rate, room), 1.005)
              << fmt::format("sizes {}, room {}, update {}, disk {}", fmt::join(sizes, " "), room,
                             update_rate, disk_rate);
        }
      }
    }
  }
}

TEST(NvmeSpill, OfManyUnitsIsNearTheBestSet) {
  std::mt19937 random(7);
  double worst = 1;
  for (int round = 0; round < 6; ++round) {
    std::vector<int> sizes(9);
    std::ranges::generate(sizes, [&] { return 22 + static_cast<int>(random() % 5); });
    const Model model = model_of(sizes);
    Spills spills(model);
    const std::set<std::int64_t> rooms = spills.rooms();
    for (int one = 0; one < 4; ++one) {
      const std::int64_t room =
          *std::next(rooms.begin(), static_cast<long>(random() % rooms.size()));
      worst = std::max(worst, spills.over_best(kUpdateRates[random() % kUpdateRates.size()],
                                               one % 2 == 0 ? 2e9 : 1e10, room));
    }
  }
  EXPECT_LE(worst, 1.02);
}

}  // namespace
}  // namespace tandem
