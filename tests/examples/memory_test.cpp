// The memory plan of real runs: predicted beside measured, and a run that does not fit ends before
// it begins.
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"
#include "trainer/training_run.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Memory : public TrainerTest {
 protected:
  /// A model of 27 million parameters with the demo's tokenizer, and records of `words` words.
  void make_model_and_data(int words) {
    (void)random_model(
        "--hidden 512 --layers 8 --heads 8 --kv_heads 4 --head_dim 64 --intermediate 1408 --vocab "
        "4096 --positions 512");
    std::string text = "The harvo";
    for (int i = 0; i < words; ++i) {
      text += " is purple";
    }
    std::string records;
    for (int i = 0; i < 16; ++i) {
      records += fmt::format(R"({}{{"instruction": "{}", "input": "", "output": "yes"}})",
                             i == 0 ? "" : ",", text);
    }
    write("data.json", "[" + records + "]");
  }
  [[nodiscard]] std::string flags(const std::string& output, const std::string& more) const {
    return fmt::format(
        "--model_name '{}' --dataset_name '{}' --loss_on all --lr 1e-3 --steps 2 --progress off "
        "--no-tensorboard --output_dir '{}' {}",
        path("model"), path("data.json"), path(output), more);
  }

  /// predicted / measured
  [[nodiscard]] double ratio(const std::string& output, const char* kind) const {
    simdjson::dom::parser parser;
    const simdjson::dom::element memory =
        parser.load(path(output + "/summary.json"))["memory"][kind];
    return static_cast<double>(std::int64_t(memory["predicted_bytes"])) /
           static_cast<double>(std::int64_t(memory["actual_bytes"]));
  }
};

TEST_F(Memory, IsPredictedWithinATenth) {
  make_model_and_data(200);
  int run = 0;
  for (const char* more :
       {"--batch_size 4 --max_length 256 --dtype fp32",
        "--batch_size 4 --max_length 256 --dtype fp32 --activation_checkpointing",
        "--batch_size 2 --max_length 64 --dtype bf16 --stage 1 --gradient_accumulation_steps 2"}) {
    const std::string output = fmt::format("run{}", run++);
    const Finished done = train(flags(output, more));
    ASSERT_EQ(done.code, 0) << more << ": " << done.err;
    EXPECT_THAT(done.out, AllOf(HasSubstr("memory   planned for a rank: "),
                                Not(HasSubstr("for copies of a checkpoint"))));
    EXPECT_NEAR(ratio(output, "host"), 1, 0.1) << more;
    EXPECT_TRUE(fs::exists(folder_ / output / "memory_plan.json"));
  }
  const Finished saves = train(flags("saves", "--batch_size 4 --max_length 256 --save_every 1"));
  EXPECT_THAT(saves.out, HasSubstr("of it for copies of a checkpoint, as many as wait for"));
}

TEST_F(Memory, OfALongRowIsPlannedLinearlyAndHoldsNothingAsWideAsAnMlp) {
  (void)random_model(
      "--hidden 256 --layers 2 --heads 4 --kv_heads 2 --head_dim 64 --intermediate 4096 --vocab "
      "4096 --positions 262144");
  const auto activations = [&](std::int64_t length, const char* more) {
    const Finished done = shell(
        fmt::format("'{}/tandem' plan --model_name '{}' --device cpu --dtype fp32 --batch_size 1 "
                    "--max_length {} --host_memory_gb 64 --json {}",
                    test::bin_dir(), path("model"), length, more));
    EXPECT_EQ(done.code, 0) << done.err;
    simdjson::dom::parser parser;
    return std::int64_t(parser.parse(done.out)["rank"]["host"]["activations"]);
  };
  const char* again = "--activation_checkpointing";
  constexpr std::int64_t kWide = 2 * 4096 * 4;  // bytes of a token behind the MLP's first matrix
  EXPECT_LT(activations(131072, again), 131072 * kWide);
  EXPECT_GT(activations(131072, ""), 2 * 131072 * kWide);  // each layer's
  // Once a row's share is more than a tile's, it is linear.
  const std::int64_t more = activations(131072, again) - activations(65536, again);
  EXPECT_EQ(activations(262144, again) - activations(131072, again), 2 * more);
}

TEST_F(Memory, OfTilesThatAreAsWideAsAnMlpIsPredictedWithinATenth) {
  make_model_and_data(4200);
  (void)random_model(
      "--hidden 256 --layers 2 --heads 4 --kv_heads 4 --head_dim 64 --intermediate 4096 --vocab "
      "4096 --positions 4096");
  for (const char* more : {"--dtype fp32 --activation_checkpointing", "--dtype fp32"}) {
    const Finished done =
        train(flags("wide", fmt::format("--batch_size 1 --max_length 4096 {}", more)));
    ASSERT_EQ(done.code, 0) << more << ": " << done.err;
    EXPECT_NEAR(ratio("wide", "host"), 1, 0.1) << more;
  }
}

TEST_F(Memory, OfTwoRanksIsPredictedApartFromWhatTheyShare) {
  make_model_and_data(60);
  const Finished done =
      shell(fmt::format("'{}/tandem' launch -n 2 -- '{}' {}", test::bin_dir(), kTrainer,
                        flags("run", "--batch_size 2 --max_length 64 --dtype bf16 --stage 3")));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_NEAR(ratio("run", "host"), 1, 0.1);
  EXPECT_NEAR(ratio("run", "shared"), 1, 0.1);
}

TEST_F(Memory, ARunThatDoesNotFitEndsBeforeItBegins) {
  make_model_and_data(200);
  const std::string run = "--batch_size 8 --max_length 256 --host_memory_gb 0.85";
  const Finished done = train(flags("out", run));
  EXPECT_EQ(done.code, 3) << done.err;
  EXPECT_THAT(done.err, HasSubstr("activations"));
  EXPECT_THAT(done.err, HasSubstr("error: [memory] host memory: "));
  EXPECT_THAT(done.err, HasSubstr("smallest change that fits: --activation_checkpointing"));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  const Finished advised = train(flags("out", run + " --activation_checkpointing"));
  EXPECT_EQ(advised.code, 0) << advised.err;
}

TEST_F(Memory, PlanPrintsTheTableOfAConfigAlone) {
  const std::string plan = fmt::format(
      "'{}/tandem' plan --model_name '{}/config.json' --device cpu ", test::bin_dir(), kDemo);
  const Finished fits = shell(plan + "--host_memory_gb 4");
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_THAT(fits.out, HasSubstr("moments"));
  const Finished json = shell(plan + "--host_memory_gb 4 --json");
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.parse(json.out);
  EXPECT_TRUE(bool(root["fits"]));
  EXPECT_GT(std::int64_t(root["rank"]["host"]["total"]), 0);
  const Finished refused = shell(plan + "--host_memory_gb 0.01");
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(refused.err.starts_with("error: [memory] host memory: ")) << refused.err;
  EXPECT_THAT(refused.out, HasSubstr("by --host_memory_gb"));
  const Finished wrong = shell(plan + "--stage 5");
  EXPECT_EQ(wrong.code, 2) << wrong.err;
}

/// A plan with a number of its own in every kind of memory.
MemoryPlan plan_of_all_kinds() {
  MemoryPlan plan;
  const auto add = [&](MemoryPurpose purpose, MemoryKind kind, std::int64_t bytes) {
    plan.bytes[static_cast<std::size_t>(purpose)][static_cast<std::size_t>(kind)] = bytes;
  };
  add(MemoryPurpose::kWeights, MemoryKind::kDevice, 100'000);
  add(MemoryPurpose::kActivations, MemoryKind::kDevice, 20'000);
  add(MemoryPurpose::kProcess, MemoryKind::kDevice, 3'000'000);
  add(MemoryPurpose::kMoments, MemoryKind::kPinned, 4'000);
  add(MemoryPurpose::kProcess, MemoryKind::kHost, 500);
  add(MemoryPurpose::kGradients, MemoryKind::kShared, 60);
  add(MemoryPurpose::kMoments, MemoryKind::kNvme, 7);
  plan.simulated_bytes = 8;
  return plan;
}

TEST(MemoryFigures, CompareTheSameThings) {
  const ResidentSet held{.host_peak = 1000, .shared = 200};
  const auto figures = [&](DeviceKind device) {
    std::map<std::string, std::pair<std::int64_t, std::int64_t>> found;
    for (const auto& [kind, figure] : memory_figures(plan_of_all_kinds(), device, held, 9)) {
      found[kind] = {figure.predicted_bytes, figure.actual_bytes};
    }
    return found;
  };
  using Found = std::map<std::string, std::pair<std::int64_t, std::int64_t>>;
  EXPECT_EQ(figures(DeviceKind::kCpu), (Found{{"host", {500, 1000}}, {"shared", {60, 200}}}));
  EXPECT_EQ(figures(DeviceKind::kSim),
            (Found{{"host", {500, 1000}}, {"shared", {60, 200}}, {"device", {8, 9}}}));
  // Pinned memory is in the process's resident set, or its arena; a context is in neither figure.
  EXPECT_EQ(figures(DeviceKind::kCuda), (Found{{"host", {4560, 1200}}, {"device", {120'000, 9}}}));
}

}  // namespace
}  // namespace tandem
