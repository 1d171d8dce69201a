// comms_logger, flops_profiler and wall_clock_breakdown of a config: what they say is what the step
// plan and the model say, and nothing of the training changes.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>
#include <unistd.h>

#include "actors/collectives/norm_limbs.hpp"
#include "actors/slot_plan.hpp"
#include "engine/layout/step_plan.hpp"
#include "engine/metrics/flops.hpp"
#include "engine/metrics/flops_profile.hpp"
#include "engine/model/sequential.hpp"
#include "engine/rank/rank_layout.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;
using toy::Setting;

constexpr int kSteps = 4;
const std::string kAll =
    R"(, "wall_clock_breakdown": true, "steps_per_print": 2,
       "comms_logger": {"enabled": true, "verbose": true},
       "flops_profiler": {"enabled": true, "profile_step": 2})";

struct Reported {
  toy::TrainingRun run;
  std::vector<std::string> said;
  CommsSummary comms;
  std::optional<FlopsProfile> flops;
  StepResult last;
};

/// Trains this rank's part and keeps all that is reported.
Reported report_of(const Setting& setting, std::shared_ptr<Communicator> communicator = nullptr) {
  Reported reported;
  Engine engine(toy::arguments(setting, std::move(communicator)));
  engine.report_by({.say = [&](std::string_view text) { reported.said.emplace_back(text); }});
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Batch> batches;
    for (int a = 0; a < setting.accumulation; ++a) {
      batches.push_back(
          toy::batch((step * setting.accumulation + a) * engine.world_size() + engine.rank()));
    }
    reported.last = engine.train_step(batches);
    reported.run.losses.push_back(reported.last.loss);
    reported.run.norms.push_back(reported.last.verdict.norm.value);
  }
  reported.comms = engine.comms_summary(/*show_straggler=*/true);
  engine.log_summary(/*show_straggler=*/true);
  if (const FlopsProfile* profile = engine.flops_profile()) {
    reported.flops = *profile;
  }
  engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
    reported.run.weights.emplace_back(values.begin(), values.end());
  });
  return reported;
}

std::vector<Reported> reports_of(const Setting& setting, int ranks) {
  if (ranks == 1) {
    return {report_of(setting)};
  }
  return on_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
    return report_of(setting, std::move(communicator));
  });
}

class ReportsOnRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ReportsOnRanks, ::testing::Values(1, 2));

TEST_P(ReportsOnRanks, ChangeNoBit) {
  for (const Overlap overlap : {Overlap::kOff, Overlap::kFull}) {
    Setting setting{.overlap = overlap, .accumulation = 2};
    const std::vector<Reported> off = reports_of(setting, GetParam());
    setting.blocks = kAll;
    const std::vector<Reported> on = reports_of(setting, GetParam());
    for (std::size_t rank = 0; rank < on.size(); ++rank) {
      EXPECT_EQ(on[rank].run, off[rank].run);
      EXPECT_EQ(on[rank].said.empty(), rank != 0) << "the first rank says it";
    }
    EXPECT_THAT(off[0].said, SizeIs(1));
    EXPECT_THAT(off[0].said, Each(HasSubstr("set comms_logger.enabled")));
    EXPECT_FALSE(off[0].flops);
  }
}

/// The numbers of gathers and reductions, by bytes of a message, that the step plan has for `steps`
/// steps. SlotPlan decides which gathers find their unit in its slot.
struct Planned {
  std::map<std::int64_t, std::int64_t> gathers;
  std::map<std::int64_t, std::int64_t> reductions;
};

Planned planned(const Setting& setting, std::uint32_t world) {
  const Model model = toy::model();
  const Config config = toy::config_of(setting, static_cast<int>(world));
  const RankLayout layout(model, RankShape::of(config, toy::arguments(setting).options),
                          config.zero, world, 0);
  const StepPlan plan =
      StepPlan::training(model, layout.classes, static_cast<std::size_t>(setting.accumulation));
  Planned planned;
  std::vector<SlotPlan> pools;
  for (const PoolSizes& pool : layout.sizes.weight_pools) {
    pools.emplace_back(SlotPlan::Options{.slots = std::max<std::size_t>(1, pool.slots),
                                         .max_in_flight = std::max<std::size_t>(1, pool.slots)});
  }
  std::vector<std::uint64_t> first(pools.size());
  for (int step = 0; step < kSteps; ++step) {
    for (const Visit& visit : plan.visits) {
      for (const UnitUse& use : visit.uses) {
        const std::size_t bytes =
            layout.parameters[use.unit].gathered.shard_elements * sizeof(float);
        SlotPlan& slots = pools.at(use.pool);
        const std::uint64_t ticket = first[use.pool] + use.ticket;
        slots.request(ticket, static_cast<std::uint32_t>(use.unit),
                      static_cast<std::uint64_t>(step));
        const auto decision = slots.decide();
        EXPECT_TRUE(decision.has_value());
        planned.gathers[static_cast<std::int64_t>(bytes)] += decision->resident ? 0 : 1;
        slots.release(ticket, first[use.pool] + use.next_use);
        if (use.last_gradient) {
          ++planned.reductions[static_cast<std::int64_t>(bytes * world)];
        }
      }
    }
    for (std::size_t pool = 0; pool < pools.size(); ++pool) {
      first[pool] += plan.tickets[pool];
    }
  }
  return planned;
}

std::map<std::int64_t, std::int64_t> counts_of(const CommsSummary& summary,
                                               const std::string& operation) {
  std::map<std::int64_t, std::int64_t> counts;
  for (const CommsRow& row : summary.rows) {
    if (row.operation == operation) {
      counts[row.message_bytes] += row.count;
    }
  }
  return counts;
}

TEST(CommsLogger, CountsWhatTheStepPlanSays) {
  for (const int slots : {1, 3}) {
    const Setting setting{.gather_slots = slots,
                          .accumulation = 2,
                          .blocks = R"(, "comms_logger": {"enabled": true})"};
    const Planned plan = planned(setting, 2);
    for (const Reported& rank : reports_of(setting, 2)) {
      EXPECT_EQ(counts_of(rank.comms, "all_gather_into_tensor"), plan.gathers) << slots;
      EXPECT_EQ(counts_of(rank.comms, "reduce_scatter_tensor"), plan.reductions) << slots;
      EXPECT_EQ(counts_of(rank.comms, "all_reduce"),
                (std::map<std::int64_t, std::int64_t>{{sizeof(NormLimbs), kSteps}}));
      // A step begins with the ranks' numbers of micro-batches and labels, and ends with their
      // losses.
      const auto told = counts_of(rank.comms, "all_gather");
      ASSERT_THAT(told, SizeIs(2));
      EXPECT_EQ(told.begin()->first, std::int64_t{2 * sizeof(std::size_t)});
      EXPECT_EQ(told.begin()->second, kSteps);
      EXPECT_EQ(told.rbegin()->second, kSteps);
      for (const CommsRow& row : rank.comms.rows) {
        const bool shard = row.operation.starts_with("all_gather");
        EXPECT_EQ(row.block_bytes, row.message_bytes * (shard ? 2 : 1)) << row.operation;
        EXPECT_EQ(row.ranks, 2);
        EXPECT_GT(row.total_s, 0);
        EXPECT_GE(row.exposed_s, 0);
        EXPECT_LE(row.exposed_s, row.total_s * (1 + 1e-9)) << row.operation;
        EXPECT_EQ(row.compared, row.count);
        EXPECT_NEAR(row.least_s + row.straggler_s, row.total_s, 1e-5 * row.total_s);
        EXPECT_GE(row.straggler_s, 0);
        EXPECT_DOUBLE_EQ(row.bus_gbps, row.algorithm_gbps / 2) << "of two ranks";
      }
      EXPECT_TRUE(rank.comms.compares_stragglers);
    }
  }
}

TEST(CommsLogger, WithoutOverlapAllOfItIsExposed) {
  const Setting setting{.overlap = Overlap::kOff,
                        .blocks = R"(, "comms_logger": {"enabled": true})"};
  for (const Reported& rank : reports_of(setting, 2)) {
    for (const CommsRow& row : rank.comms.rows) {
      EXPECT_GT(row.exposed_s, 0.5 * row.total_s) << row.operation;
    }
  }
}

/// A table's rows: operation, then the cells, by columns of 20.
std::vector<std::vector<std::string>> cells_of(const std::string& table) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(table);
  std::string operation;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(' ')) {
      operation = line;
      continue;
    }
    std::vector<std::string> cells = {operation};
    for (std::size_t at = 20; at < line.size(); at += 20) {
      std::string cell = line.substr(at, 20);
      cells.push_back(cell.substr(0, cell.find_last_not_of(' ') + 1));
    }
    rows.push_back(std::move(cells));
  }
  return rows;
}

TEST(FlopsProfilerText, RanksThatShareRowsAreOneDataRank) {
  const FlopsProfile profile{.world_size = 8, .data_ranks = 2};
  EXPECT_THAT(flops_profile_text(profile, {}),
              AllOf(ContainsRegex("\nworld size: +8"), ContainsRegex("\ndata parallel size: +2")));
}

TEST(CommsLogger, TheTableReadsBack) {
  const Setting setting{.blocks = R"(, "comms_logger": {"enabled": true})"};
  const Reported first = reports_of(setting, 2).front();
  const std::string table = first.said.back();
  EXPECT_THAT(table, AllOf(HasSubstr("Comm. Op            Message Size        Count"),
                           HasSubstr("busbw_avg (Gbps)    Exposed(ms)"),
                           HasSubstr("\nBreakdown with straggler effect\n")));
  const auto rows = cells_of(table);
  ASSERT_THAT(rows, SizeIs(2 * first.comms.rows.size())) << table;
  for (std::size_t i = 0; i < first.comms.rows.size(); ++i) {
    const CommsRow& row = first.comms.rows[i];
    for (const std::size_t at : {i, i + first.comms.rows.size()}) {
      EXPECT_EQ(rows[at][0], row.operation);
      EXPECT_THAT(rows[at][1], MatchesRegex("[0-9.]+ [KMG]?B"));
      EXPECT_EQ(std::stoll(rows[at][2]), row.count);
    }
    EXPECT_NEAR(std::stod(rows[i][3]), row.total_s * 1e3, 0.006);
    EXPECT_NEAR(std::stod(rows[i][7]), row.exposed_s * 1e3, 0.006);
  }
  simdjson::dom::parser parser;
  const std::string json = comms_json(first.comms);
  const simdjson::dom::element read = parser.parse(json);
  EXPECT_EQ(std::int64_t(read["world_size"]), 2);
  EXPECT_EQ(read["rows"].get_array().size(), first.comms.rows.size());
  EXPECT_EQ(double(read["rows"].at(0)["total_s"]), first.comms.rows[0].total_s);
}

TEST(CommsLogger, KeysChooseAndName) {
  Setting setting{.blocks = R"(, "comms_logger": {"enabled": true, "prof_all": false,
    "prof_ops": ["reduce_scatter", "no such operation"], "debug": true, "verbose": true})"};
  const Reported first = reports_of(setting, 2).front();
  std::int64_t all = 0;
  std::set<std::string> units;
  for (const CommsRow& row : first.comms.rows) {
    EXPECT_THAT(row.operation, MatchesRegex("reduce_scatter_tensor \\| \\[Caller Func: .*\\]"));
    units.insert(row.operation);
    all += row.count;
  }
  EXPECT_EQ(units.size(), toy::model().units.size());
  EXPECT_TRUE(units.contains("reduce_scatter_tensor | [Caller Func: block 1]"));
  EXPECT_EQ(all, kSteps * static_cast<std::int64_t>(units.size()));
  // Verbose: a line for each.
  ASSERT_EQ(first.said.size(), static_cast<std::size_t>(all) + 1);
  EXPECT_THAT(first.said[0],
              MatchesRegex("comm op: reduce_scatter_tensor \\| \\[Caller Func: .*\\] \\| time "
                           "\\(ms\\): [0-9.]+ \\| msg size: [0-9.]+ [KM]?B \\| algbw \\(Gbps\\): "
                           "[0-9.]+ \\| busbw \\(Gbps\\): [0-9.]+"));
  const CommsLog::Options alone =
      comms_log_options({.prof_all = false, .prof_ops = {"all_gather"}});
  EXPECT_EQ(alone.operations, 1U << static_cast<unsigned>(flight::Kind::kAllGather) |
                                  1U << static_cast<unsigned>(flight::Kind::kExchange));
}

TEST(CommsLogger, OneRankHasNothingToCount) {
  const Reported alone = report_of({.blocks = R"(, "comms_logger": {"enabled": true})"});
  EXPECT_THAT(alone.comms.rows, SizeIs(0));
  EXPECT_THAT(alone.said.back(), HasSubstr("one rank: nothing travels"));
}

double flops_in(const ModuleProfile& module) {
  double sum = 0;
  for (const ModuleProfile& part : module.parts) {
    sum += part.forward_flops;
  }
  return sum;
}

TEST(FlopsProfiler, TheTreeSumsToTheStep) {
  const Setting setting{.checkpointing = true,
                        .accumulation = 2,
                        .blocks = R"(, "flops_profiler": {"enabled": true, "profile_step": 3,
                                     "top_modules": 2})"};
  for (const Reported& rank : reports_of(setting, 2)) {
    ASSERT_TRUE(rank.flops);
    const ModuleProfile& model = rank.flops->model;
    EXPECT_EQ(rank.flops->step, 3);
    const Model toy = toy::model();
    std::int64_t parameters = 0;
    for (const UnitSpec& unit : toy.units) {
      parameters += unit.numel();
    }
    EXPECT_EQ(model.parameters, parameters);
    ASSERT_THAT(model.parts, SizeIs(toy.segments.size()));
    EXPECT_EQ(flops_in(model), model.forward_flops);
    double forward = 0;
    double backward = 0;
    for (std::size_t s = 0; s < toy.segments.size(); ++s) {
      const SegmentShape shape = segment_shape(toy, s);
      forward += 2 * forward_flops(shape, 4, 12);  // micro-steps
      backward += 2 * backward_flops(shape, 4, 12, s + 1 < toy.segments.size());
      EXPECT_GT(*model.parts[s].forward_s, 0);
      EXPECT_GT(*model.parts[s].backward_s, 0);
    }
    EXPECT_EQ(model.forward_flops, forward);
    EXPECT_EQ(rank.flops->step_flops(), forward + backward);
    EXPECT_DOUBLE_EQ(3 * forward, model_flops_per_token(toy, 12) * 2 * 4 * 12);
    const ModuleProfile& block = model.parts[1];
    ASSERT_THAT(block.parts, SizeIs(2));
    EXPECT_EQ(block.parts[0].name, "up");
    EXPECT_EQ(block.parts[0].parameters, 2 * toy::kHidden * (toy::kHidden + 1));
    EXPECT_EQ(flops_in(block), block.forward_flops);
    EXPECT_FALSE(block.parts[0].forward_s) << "a segment runs as a whole";
  }
}

TEST(FlopsProfiler, ItsTextIsDeepSpeeds) {
  const Setting setting{.blocks = R"(, "flops_profiler": {"enabled": true, "module_depth": 1,
                                     "top_modules": 2, "recompute_fwd_factor": 1})"};
  const Reported alone = report_of(setting);
  ASSERT_THAT(alone.said, SizeIs(2));
  const std::string& text = alone.said[0];
  for (const char* line :
       {"Profile Summary at step 1:\n", "world size:  +1 +\n", "batch size per GPU:  +4 +\n",
        "params per GPU:  +7\\.97 K +\n", "fwd MACs per GPU:  +[0-9.]+ KMACs *\n",
        "bwd FLOPS per GPU = 3 \\* fwd flops per GPU / bwd latency:  +[0-9.]+ [MG]FLOPS",
        "FLOPS per GPU = 4 \\* fwd flops per GPU / iter latency: ", "samples/second:  +[0-9.e+]+",
        "share of the measured peak:  +[0-9.]+ %", "step latency:  +[0-9.]+ [mu]?s",
        "depth 1:\n    params      - \\{'block': '7\\.06 K', 'embedding': '888'\\}\n"}) {
    EXPECT_THAT(text, ContainsRegex(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("depth 2:")));
  EXPECT_THAT(text, ContainsRegex("\n  \\(block 2\\): block\\(\n    2.35 K = 29.5[0-9]% Params, "
                                  "[0-9.]+ KMACs = [0-9.]+% MACs, [0-9.]+ [mu]s = [0-9.]+% "
                                  "latency, [0-9.]+ [MG]FLOPS, [0-9.]+ % of the peak\n"));
  EXPECT_THAT(text, ContainsRegex("\n    \\(down\\): down\\(1.15 K = "));
}

TEST(FlopsProfiler, AFileThatIsAskedFor) {
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / fmt::format("profile {}", ::getpid());
  const std::string file = (folder / "deep" / "profile.txt").string();
  const std::string block = R"(, "flops_profiler": {{"enabled": true, "detailed": false,
                                 "output_file": "{}"}})";
  const Reported alone = report_of({.blocks = fmt::format(fmt::runtime(block), file)});
  EXPECT_THAT(alone.said, SizeIs(1)) << "log_summary's line";
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  EXPECT_THAT(text.str(),
              AllOf(HasSubstr("Profile Summary at step 1:"), Not(HasSubstr("Detailed Profile"))));
  EXPECT_THAT([&] { report_of({.blocks = fmt::format(fmt::runtime(block), file + "/no/file")}); },
              ThrowsError(ExitCode::kUserInput, HasSubstr(file)));
  std::filesystem::remove_all(folder);
}

TEST(FlopsProfiler, ASequentialsLayersAreItsParts) {
  Layer words = embedding(50, 8);
  const Model model = Sequential()
                          .add("words", {std::move(words).named("table")})
                          .add("body", {linear(8, 16).named("up"), linear(16, 8).named("down")})
                          .add("head", {linear(8, 50, {.bias = false})})
                          .build(cross_entropy());
  const std::vector<BatchExtents> batches = {{.rows = 2, .length = 5}, {.rows = 2, .length = 3}};
  const ModuleProfile profile =
      profile_modules(model, batches, std::vector<SegmentSeconds>(3), false);
  ASSERT_THAT(profile.parts, SizeIs(3));
  EXPECT_EQ(profile.parts[0].forward_flops, 0) << "a look-up multiplies nothing";
  EXPECT_EQ(profile.parts[0].parameters, 400);
  ASSERT_THAT(profile.parts[1].parts, SizeIs(2));
  EXPECT_EQ(profile.parts[1].parts[1].name, "down");
  EXPECT_EQ(profile.parts[1].parts[1].forward_flops, 2.0 * (16 * 8 + 8) * (2 * 5 + 2 * 3));
  EXPECT_EQ(profile.parts[2].forward_flops, 2.0 * 400 * 16);
}

TEST(WallClockBreakdown, ItsLinesComeEverySoMuch) {
  const Reported alone = report_of(
      {.accumulation = 2, .blocks = R"(, "wall_clock_breakdown": true, "steps_per_print": 2)"});
  const std::vector<std::string> lines(alone.said.begin(), alone.said.end() - 1);
  ASSERT_THAT(lines, SizeIs(2 * kSteps / 2));
  for (std::size_t i = 0; i < lines.size(); i += 2) {
    const std::string number = "[0-9]+\\.[0-9][0-9]";
    for (const auto& [line, suffix] :
         {std::pair{lines[i], "_microstep"}, std::pair{lines[i + 1], ""}}) {
      EXPECT_THAT(line, MatchesRegex(fmt::format(
                            "\\[Rank 0\\] time \\(ms\\) \\| fwd{0}: {1} \\| bwd{0}: {1} \\| "
                            "bwd_inner{0}: {1} \\| bwd_allreduce{0}: {1} \\| step{0}: {1}",
                            suffix, number)));
    }
  }
  const PhaseTimes& all = alone.last.phases;
  const PhaseTimes& micro = alone.last.last_micro_step;
  EXPECT_GT(all.forward_s, micro.forward_s);
  EXPECT_GT(all.backward_inner_s(), micro.backward_inner_s());
  EXPECT_EQ(all.step_s, micro.step_s);
  EXPECT_LE(all.forward_s + all.backward_s + all.step_s, alone.last.step_time_s);
  EXPECT_GT(all.forward_s + all.backward_s + all.step_s, 0.25 * alone.last.step_time_s);
}

TEST(WallClockBreakdown, HowOften) {
  EXPECT_THAT(report_of({.blocks = R"(, "wall_clock_breakdown": true)"}).said,
              SizeIs(2 * kSteps + 1));
  EXPECT_THAT(report_of({.blocks = R"(, "wall_clock_breakdown": true, "steps_per_print": 0)"}).said,
              SizeIs(1));
  EXPECT_THAT(report_of({.blocks = R"(, "steps_per_print": 1)"}).said, SizeIs(1));
}

}  // namespace
}  // namespace tandem
