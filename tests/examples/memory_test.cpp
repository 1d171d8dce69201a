// The memory plan of real runs: predicted beside measured, and a run that does not fit ends before
// it begins.
#include "tests/examples/trainer_fixture.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Memory : public TrainerTest {
 protected:
  /// A model of 27 million parameters with the demo's tokenizer, and records of `words` words.
  void make_model_and_data(int words) {
    make_model_and_data(
        "--hidden 512 --layers 8 --heads 8 --kv_heads 4 --head_dim 64 --intermediate 1408 --vocab "
        "4096 --positions 512",
        words);
  }
  void make_model_and_data(const char* shape, int words) {
    (void)random_model(shape);
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
    EXPECT_THAT(done.out, HasSubstr("memory   planned for a rank: "));
    EXPECT_NEAR(ratio(output, "host"), 1, 0.1) << more;
    EXPECT_TRUE(fs::exists(folder_ / output / "memory_plan.json"));
  }
}

TEST_F(Memory, OfALongRowHoldsNothingAsWideAsAnMlp) {
  constexpr std::int64_t kLength = 8192;
  constexpr std::int64_t kWide = kLength * 2 * 4096 * 4;  // what its first matrix gives
  make_model_and_data(
      "--hidden 256 --layers 2 --heads 4 --kv_heads 2 --head_dim 64 --intermediate 4096 --vocab "
      "4096 --positions 8192",
      kLength);
  const Finished done = train(flags(
      "run", fmt::format("--batch_size 1 --max_length {} --dtype fp32 --activation_checkpointing",
                         kLength)));
  ASSERT_EQ(done.code, 0) << done.err;
  // Apart from what the process has had before.
  simdjson::dom::parser parser;
  const auto process =
      std::int64_t(parser.load(path("run/memory_plan.json"))["rank"]["host"]["process"]);
  const simdjson::dom::element host = parser.load(path("run/summary.json"))["memory"]["host"];
  const std::int64_t predicted = std::int64_t(host["predicted_bytes"]) - process;
  const std::int64_t actual = std::int64_t(host["actual_bytes"]) - process;
  EXPECT_NEAR(static_cast<double>(predicted) / static_cast<double>(actual), 1, 0.1);
  const std::int64_t state = 16 * std::int64_t{8'400'000};  // weights, gradients, moments
  EXPECT_LT(actual - state, kWide);
}

TEST_F(Memory, OfTwoRanksIsPredictedApartFromWhatTheyShare) {
  make_model_and_data(60);
  const Finished done =
      shell(fmt::format("'{}/tandem' launch -n 2 -- '{}' {}", TANDEM_BIN_DIR, kTrainer,
                        flags("run", "--batch_size 2 --max_length 64 --dtype bf16 --stage 3")));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_NEAR(ratio("run", "host"), 1, 0.1);
  EXPECT_NEAR(ratio("run", "shared"), 1, 0.1);
}

TEST_F(Memory, ARunThatDoesNotFitEndsBeforeItBegins) {
  make_model_and_data(200);
  const std::string run = "--batch_size 8 --max_length 256 --host_memory_gb 1";
  const Finished done = train(flags("out", run));
  EXPECT_EQ(done.code, 3) << done.err;
  EXPECT_THAT(done.err, HasSubstr("activations"));
  EXPECT_THAT(done.err, HasSubstr("error: [memory] host memory: "));
  EXPECT_THAT(done.err, HasSubstr("smallest change that fits: activation_checkpointing"));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  const Finished advised = train(flags("out", run + " --activation_checkpointing"));
  EXPECT_EQ(advised.code, 0) << advised.err;
}

TEST_F(Memory, PlanPrintsTheTableOfAConfigAlone) {
  const std::string plan = fmt::format(
      "'{}/tandem' plan --model_name '{}/config.json' --device cpu ", TANDEM_BIN_DIR, kDemo);
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

}  // namespace
}  // namespace tandem
