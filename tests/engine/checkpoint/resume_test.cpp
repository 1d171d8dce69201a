// A resumed run is the uninterrupted one, bit for bit: from every step, in every layout of state,
// on any number of ranks, at any stage and placement.
#include <cmath>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/toy/placements.hpp"
#include "tests/support/toy/resumed.hpp"

namespace tandem::toy {
namespace {

using test::TempDir;

struct Case {
  std::string name;
  Setting setting;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

/// gtest's names of cases.
std::string name_of_case(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class Resume : public ::testing::TestWithParam<Case> {};

TEST_P(Resume, AtEachOfFiftyStepsIsTheUninterruptedRun) {
  constexpr std::int64_t kSteps = 50;
  const TempDir folder;
  const Setting& setting = GetParam().setting;
  const TrainingRun straight = [&] {
    Engine engine(arguments(setting));
    return go_on(engine, setting, kSteps);
  }();
  int skipped = 0;
  int redone = 0;
  const TrainingRun saving = [&] {
    Engine engine(arguments(setting));
    TrainingRun run = go_on(engine, setting, kSteps, [&](const StepResult& result) {
      skipped += result.verdict.outcome == StepOutcome::kSkip ? 1 : 0;
      redone += result.verdict.outcome == StepOutcome::kRollback ? 1 : 0;
      EXPECT_TRUE(engine.begin_checkpoint({.folder = folder.path()}));
    });
    EXPECT_EQ(engine.finish_checkpoint()->error, "");
    return run;
  }();
  EXPECT_EQ(saving, straight) << "saving changes no bit";
  if (GetParam().name.ends_with("skips")) {
    EXPECT_GT(skipped, 0);
  }
  if (GetParam().name.ends_with("rollbacks")) {
    EXPECT_GT(redone, 0);
  }
  int equal = 0;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    Engine engine(arguments(setting));
    const LoadedCheckpoint loaded =
        engine.load_checkpoint(folder.path(), fmt::format("step-{:08}", step));
    ASSERT_EQ(loaded.step, step);
    EXPECT_TRUE(loaded.notes.empty());
    ASSERT_EQ(go_on(engine, setting, kSteps), rest_of(straight, step)) << "from step " << step;
    ++equal;
  }
  fmt::print("{}: {} of {} steps resume bit for bit\n", GetParam().name, equal, kSteps);
}

INSTANTIATE_TEST_SUITE_P(
    Each, Resume,
    ::testing::Values(Case{"fp32", {}}, Case{"fp32_no_overlap", {.overlap = Overlap::kOff}},
                      Case{"fp32_rollbacks", {.clip = 0.8, .forced_misses = 0.3}},
                      Case{"bf16", {.type = "bf16"}},
                      Case{"bf16_split", {.type = "bf16", .state_layout = StateLayout::kSplit}},
                      Case{"bf16_bf16", {.type = "bf16", .state_layout = StateLayout::kBf16}},
                      Case{"bf16_int8", {.type = "bf16", .state_layout = StateLayout::kInt8}},
                      Case{"fp32_int8", {.state_layout = StateLayout::kInt8}},
                      Case{"fp16_skips", {.type = "fp16", .clip = 0}},
                      Case{"lamb", {.optimizer = kToyLamb}},
                      Case{"lamb_bf16", {.type = "bf16", .optimizer = kToyLamb}},
                      Case{"muon", {.optimizer = kToyMuon}},
                      Case{"muon_fp16_skips", {.type = "fp16", .clip = 0, .optimizer = kToyMuon}}),
    name_of_case);

/// World sizes and stages crossed; a step is always four micro-batches.
TEST(ResumeOnRanks, AnyNumberAtAnyStageIsTheSameRun) {
  constexpr std::int64_t kLeg = 4;
  const int worlds[] = {1, 2, 4, 1};
  const auto setting_of = [](int world, int stage) {
    return Setting{.stage = stage, .accumulation = 4 / world};
  };
  int equal = 0;
  for (int first_stage = 0; first_stage < 4; ++first_stage) {
    const std::string optimizer = first_stage == 1   ? kToyLamb
                                  : first_stage == 2 ? kToyMuon
                                                     : Setting().optimizer;
    const TempDir folder;
    const std::string type = first_stage % 2 == 0 ? "fp32" : "bf16";
    const auto setting_at = [&](int leg) {
      Setting setting = setting_of(worlds[leg], (first_stage + leg) % 4);
      setting.type = type;
      setting.optimizer = optimizer;
      return setting;
    };
    const TrainingRun straight = [&] {
      const Setting setting = setting_at(0);
      Engine engine(arguments(setting));
      return go_on(engine, setting, 4 * kLeg);
    }();
    for (int leg = 0; leg < 4; ++leg) {
      const Setting setting = setting_at(leg);
      const auto runs = on_ranks(worlds[leg], [&](const std::shared_ptr<Communicator>& ranks) {
        Engine engine(arguments(setting, ranks));
        if (leg > 0) {
          EXPECT_EQ(engine.load_checkpoint(folder.path()).step, leg * kLeg);
        }
        TrainingRun run = go_on(engine, setting, (leg + 1) * kLeg);
        EXPECT_TRUE(engine.save_checkpoint(folder.path()).saved());
        return run;
      });
      const auto begin = leg * kLeg;
      for (const TrainingRun& run : runs) {
        for (std::int64_t i = 0; i < kLeg; ++i) {
          ASSERT_EQ(run.losses.at(i), straight.losses.at(begin + i))
              << "step " << begin + i + 1 << " on " << worlds[leg] << " ranks, stage "
              << setting.stage;
        }
      }
      if (leg == 3) {
        ASSERT_EQ(runs.front().weights, straight.weights);
      }
      ++equal;
    }
  }
  EXPECT_EQ(equal, 16);
  fmt::print("legs equal: {} of 16\n", equal);
}

/// A unit that is frozen as a whole, and a parameter within one that is not: of the one nothing is
/// saved, of the other its master, and they stay as they were.
TEST(ResumeOnRanks, FrozenParametersStayAndTheRestGoesOn) {
  const TempDir folder;
  const auto arguments_on = [](const Setting& setting,
                               const std::shared_ptr<Communicator>& ranks = nullptr) {
    InitializeArgs args = arguments(setting, ranks);
    for (ParameterSpec& parameter : args.model.units.front().parameters) {
      parameter.frozen = true;
    }
    args.model.units.back().parameters.front().frozen = true;
    return args;
  };
  const Setting one{.stage = 3, .accumulation = 2};
  const Setting two{.stage = 2, .accumulation = 1};
  const TrainingRun straight = [&] {
    Engine engine(arguments_on(one));
    const TrainingRun before = go_on(engine, one, 0);
    TrainingRun run = go_on(engine, one, 12);
    EXPECT_EQ(run.weights.front(), before.weights.front());
    EXPECT_NE(run.weights, before.weights);
    return run;
  }();
  on_ranks(2, [&](const std::shared_ptr<Communicator>& ranks) {
    Engine engine(arguments_on(two, ranks));
    (void)go_on(engine, two, 5);
    EXPECT_TRUE(engine.save_checkpoint(folder.path()).saved());
    return 0;
  });
  const auto names_in = [&](const std::string& array) {
    return test::get(folder.path() / "step-00000005" / (array + "-00001-of-00001.safetensors"));
  };
  const std::string frozen = arguments(one).model.units.front().parameters.front().name;
  EXPECT_THAT(names_in("master"), ::testing::Not(::testing::HasSubstr(frozen)));
  EXPECT_THAT(names_in("master"), ::testing::HasSubstr("scale.weight"));
  EXPECT_THAT(names_in("exp_avg"), ::testing::Not(::testing::HasSubstr(frozen)));
  Engine engine(arguments_on(one));
  EXPECT_EQ(engine.load_checkpoint(folder.path()).step, 5);
  EXPECT_EQ(go_on(engine, one, 12), rest_of(straight, 5));
  Engine thawed(arguments(one));
  test::expect_error([&] { (void)thawed.load_checkpoint(folder.path()); }, {"[resume]"});
  InitializeArgs other = arguments_on(one);
  other.model.source = [frozen](const ParameterSpec& parameter, std::int64_t begin,
                                std::int64_t end, float* out) {
    toy::fill(parameter, begin, end, out);
    if (parameter.name == frozen && begin <= 5 && 5 < end) {
      out[5 - begin] += 1;
    }
  };
  Engine on_another(std::move(other));
  test::expect_error(
      [&] { (void)on_another.load_checkpoint(folder.path()); },
      {"[resume]", frozen, "of the base model has other values", folder.path().string()});
}

/// A base that came from a checkpoint, as from older ones, is in the next one, since the model's
/// source does not give it again.
TEST(ResumeOnRanks, AFrozenBaseOfACheckpointIsSaved) {
  const TempDir folder;
  for (const char* type : {"fp32", "bf16"}) {
    const Setting setting{.stage = 3, .accumulation = 2, .type = type};
    const auto with_frozen = [&](std::shared_ptr<Communicator> ranks = nullptr) {
      InitializeArgs args = arguments(setting, std::move(ranks));
      for (ParameterSpec& parameter : args.model.units[2].parameters) {
        parameter.frozen = true;
      }
      return args;
    };
    const std::string all = (folder.path() / (std::string(type) + "-all")).string();
    const std::string some = (folder.path() / (std::string(type) + "-some")).string();
    {
      Engine engine(arguments(setting));
      (void)go_on(engine, setting, 3);
      EXPECT_TRUE(engine.save_checkpoint(all).saved());
    }
    TrainingRun straight;
    {
      Engine engine(with_frozen());
      (void)engine.load_checkpoint(all, "", {.module_only = true});
      (void)go_on(engine, setting, 2);
      EXPECT_TRUE(engine.save_checkpoint(some).saved());
      straight = go_on(engine, setting, 5);
    }
    Engine engine(with_frozen());
    EXPECT_EQ(engine.load_checkpoint(some).step, 2);
    EXPECT_EQ(go_on(engine, setting, 5), straight) << type;
  }
}

/// Files are the same bytes, however many ranks write them.
TEST(ResumeOnRanks, CheckpointsAreTheSameBytesOnEveryNumberOfRanks) {
  for (const std::string& optimizer : {Setting().optimizer, kToyLamb, kToyMuon}) {
    std::vector<std::string> texts;
    for (const int world : {1, 2, 4}) {
      const TempDir folder;
      Setting setting{.accumulation = 4 / world, .optimizer = optimizer};
      on_ranks(world, [&](const std::shared_ptr<Communicator>& ranks) {
        Engine engine(arguments(setting, ranks));
        (void)go_on(engine, setting, 3);
        EXPECT_TRUE(engine.save_checkpoint(folder.path()).saved());
        return 0;
      });
      std::string all;
      for (const char* array : {"master", "exp_avg", "exp_avg_sq"}) {
        all += test::get(folder.path() / "step-00000003" /
                         fmt::format("{}-00001-of-00001.safetensors", array));
      }
      texts.push_back(all);
    }
    EXPECT_GT(texts[0].size(), 1000U);
    EXPECT_EQ(texts[1], texts[0]);
    EXPECT_EQ(texts[2], texts[0]);
  }
}

/// Beside a simulated device, from each placement to the next one.
TEST(ResumeOnDevice, PlacementsMayBeOthers) {
  const TempDir folder;
  constexpr std::int64_t kLeg = 3;
  const auto count = std::ssize(kAllPlacements);
  Setting setting{.type = "bf16", .device = DeviceKind::kSim};
  setting.placements = kAllPlacements[0];
  const TrainingRun straight = [&] {
    Engine engine(arguments(setting));
    return go_on(engine, setting, (count + 1) * kLeg);
  }();
  for (std::int64_t leg = 0; leg <= count; ++leg) {
    setting.placements = leg == 0 ? std::vector<StatePlacement>() : kAllPlacements[leg - 1];
    setting.device = leg == 0 ? DeviceKind::kCpu : DeviceKind::kSim;
    Engine engine(arguments(setting));
    if (leg > 0) {
      (void)engine.load_checkpoint(folder.path());
    }
    const TrainingRun run = go_on(engine, setting, (leg + 1) * kLeg, [&](const StepResult& result) {
      if (result.step == (leg + 1) * kLeg - 1) {  // while a step runs, too
        EXPECT_TRUE(engine.begin_checkpoint({.folder = folder.path(), .tag = "during"}));
      }
    });
    for (std::int64_t i = 0; i < kLeg; ++i) {
      ASSERT_EQ(run.losses.at(i), straight.losses.at(leg * kLeg + i)) << "leg " << leg;
    }
    EXPECT_TRUE(engine.save_checkpoint(folder.path()).saved());
    if (leg == count) {
      EXPECT_EQ(run.weights, straight.weights);
    }
  }
}

/// A save while training goes on has the bytes of one that training waits for, with room for
/// staging and without.
TEST(Checkpoint, IsTheSameWhateverRunsMeanwhile) {
  for (const auto& [overlap, optimizer] : {std::pair{Overlap::kOff, Setting().optimizer},
                                           {Overlap::kFull, Setting().optimizer},
                                           {Overlap::kFull, kToyLamb},
                                           {Overlap::kFull, kToyMuon}}) {
    for (const std::size_t staging : {std::size_t{0}, std::size_t{1} << 30}) {
      const TempDir folder;
      const Setting setting{.overlap = overlap, .optimizer = optimizer};
      InitializeArgs args = arguments(setting);
      args.options.checkpoint_staging_bytes = staging;
      Engine engine(std::move(args));
      (void)go_on(engine, setting, 5);
      EXPECT_TRUE(engine.save_checkpoint(folder.path(), "waiting").saved());
      EXPECT_TRUE(engine.begin_checkpoint({.folder = folder.path(), .tag = "going on"}));
      (void)go_on(engine, setting, 9);
      (void)engine.finish_checkpoint();
      for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "waiting")) {
        const std::string name = entry.path().filename();
        EXPECT_EQ(test::get(folder.path() / "going on" / name), test::get(entry.path())) << name;
      }
    }
  }
}

TEST(Checkpoint, GivesTheCallersStateBack) {
  const TempDir folder;
  Engine engine(arguments({}));
  EXPECT_TRUE(engine.save_checkpoint(folder.path(), "mine", R"({"note": "hello"})").saved());
  EXPECT_EQ(engine.load_checkpoint(folder.path(), "mine").client_state, R"({"note": "hello"})");
}

TEST(Checkpoint, RefusesAnotherRunAndWhatIsNotThere) {
  const TempDir folder;
  {
    Engine engine(arguments({}));
    (void)go_on(engine, {}, 2);
    EXPECT_TRUE(engine.save_checkpoint(folder.path()).saved());
  }
  const auto load = [&](const Setting& setting, const std::string& tag = "") {
    Engine engine(arguments(setting));
    (void)engine.load_checkpoint(folder.path(), tag);
  };
  test::expect_error([&] { load({}, "step-00000009"); }, {"[resume]", "there is no folder"});
  test::expect_error([&] { load({.accumulation = 2}); },
                     {"micro-batches of a step", " 1 ", " 2 ", "--resume_ignore batch"});
  std::filesystem::create_directory(folder / "empty");
  test::expect_error(
      [&] {
        Engine engine(arguments({}));
        (void)engine.load_checkpoint(folder.path() / "empty");
      },
      {"holds no whole checkpoint"});
}

TEST(Checkpoint, ADamagedOneIsRefusedByNameAndSteppedOver) {
  const TempDir folder;
  Engine engine(arguments({}));
  (void)go_on(engine, {}, 2);
  EXPECT_TRUE(engine.save_checkpoint(folder.path()).saved());
  const TrainingRun at_two = go_on(engine, {}, 2);
  (void)go_on(engine, {}, 4);
  EXPECT_TRUE(engine.save_checkpoint(folder.path()).saved());
  const auto file = folder.path() / "step-00000004" / "exp_avg-00001-of-00001.safetensors";
  std::string bytes = test::get(file);
  bytes[bytes.size() / 2] ^= 4;
  test::put(file, bytes);
  Engine other(arguments({}));
  const LoadedCheckpoint loaded = other.load_checkpoint(folder.path());
  EXPECT_EQ(loaded.step, 2);
  ASSERT_EQ(loaded.notes.size(), 1U);
  EXPECT_THAT(loaded.notes[0], ::testing::HasSubstr("exp_avg-00001-of-00001.safetensors"));
  TrainingRun weights;
  take_weights(other, weights);
  EXPECT_EQ(weights.weights, at_two.weights);
  test::expect_error([&] { (void)other.load_checkpoint(folder.path(), "step-00000004"); },
                     {"exp_avg-00001-of-00001.safetensors"});
}

/// A full disk fails the save, with one line, and neither the run nor the older checkpoint.
TEST(Checkpoint, ThatCannotBeWrittenLeavesTheRunWhole) {
  const TempDir folder;
  Engine engine(arguments({}));
  (void)go_on(engine, {}, 1);
  test::put(folder / "file", "no folder");
  const CheckpointOutcome outcome = engine.save_checkpoint(folder / "file");
  EXPECT_FALSE(outcome.saved());
  EXPECT_THAT(outcome.error, ::testing::HasSubstr("file"));
  EXPECT_EQ(outcome.error.find('\n'), std::string::npos);
  (void)go_on(engine, {}, 2);
  EXPECT_TRUE(engine.save_checkpoint(folder / "other").saved());
}

}  // namespace
}  // namespace tandem::toy
