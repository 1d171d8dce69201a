// Mixtures of experts through finetune_zero3: the same digits whatever the stage, ranks, schedule
// and units, and a model that Transformers loads.
#include <ostream>

#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr const char* kQwen3Moe = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 768,
  "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "hidden_act": "silu",
  "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": true,
  "mlp_only_layers": [1], "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
  "output_router_logits": true, "router_aux_loss_coef": 0.1,
  "eos_token_id": 767, "initializer_range": 0.05, "torch_dtype": "float32"})";

constexpr const char* kGptOss = R"({
  "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 768,
  "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "hidden_act": "silu",
  "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24, "attention_bias": true,
  "layer_types": ["sliding_attention", "full_attention"], "rms_norm_eps": 1e-5,
  "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
                   "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false},
  "rope_theta": 10000.0, "tie_word_embeddings": false, "eos_token_id": 767,
  "attention_dropout": 0.1, "initializer_range": 0.05, "torch_dtype": "float32"})";

struct Case {
  const char* name;
  const char* config;
  std::vector<const char*> leaves;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class ExpertTraining : public TrainerTest, public testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    const std::string config = write("config.json", GetParam().config);
    const Finished made =
        shell(fmt::format("'{}/make_model' --config '{}' --tokenizer '{}' --seed 3 --output '{}'",
                          test::bin_dir(), config, kDemo, path("model")));
    ASSERT_EQ(made.code, 0) << made.err;
  }

  [[nodiscard]] Finished run(int ranks, const std::string& output, const std::string& flags) const {
    return shell(fmt::format(
        "'{}/tandem' launch -n {} -- '{}' --model_name '{}' --dataset_name '{}/instructions.json' "
        "--lr 2e-3 --batch_size 2 --max_length 96 --bench_steps 4 --progress off --no-tensorboard "
        "--output_dir '{}' --gradient_accumulation_steps {} {}",
        test::bin_dir(), ranks, kTrainer, path("model"), kDemo, path(output), 2 / ranks, flags));
  }
  [[nodiscard]] std::vector<std::string> digits(const std::string& output) const {
    std::vector<std::string> all = column(output, "loss");
    const std::vector<std::string> norms = column(output, "grad_norm");
    all.insert(all.end(), norms.begin(), norms.end());
    return all;
  }
};

TEST_P(ExpertTraining, NothingThatOnlySchedulesChangesOneDigit) {
  const std::pair<int, const char*> settings[] = {
      {1, "--stage 3 --overlap off"},
      {1, "--stage 0 --overlap full"},
      {1, "--stage 1 --overlap offload --compute_threads 1"},
      {1, "--stage 2 --overlap comm"},
      {1, "--stage 3 --overlap full --activation_checkpointing"},
      {1, "--stage 3 --device sim"},
      {2, "--stage 0 --overlap off"},
      {2, "--stage 1 --overlap comm"},
      {2, "--stage 2 --overlap offload"},
      {2, "--stage 3 --overlap full"},
      {2, "--stage 3 --overlap full --gather_slots 1"}};
  std::vector<std::string> expected;
  std::string weights;
  int number = 0;
  for (const auto& [ranks, flags] : settings) {
    const std::string output = fmt::format("run{}", number++);
    const Finished done = run(ranks, output, flags);
    ASSERT_EQ(done.code, 0) << flags << ": " << done.err;
    if (expected.empty()) {
      expected = digits(output);
      weights = content_of(folder_ / output / "model/model.safetensors");
      ASSERT_EQ(expected.size(), 8U);
    }
    EXPECT_EQ(digits(output), expected) << ranks << " ranks, " << flags;
    EXPECT_TRUE(content_of(folder_ / output / "model/model.safetensors") == weights) << flags;
  }
}

TEST_P(ExpertTraining, EvaluationGivesTheLabelsLossWithoutTheRouters) {
  const std::string flags = "--eval_split 0.2 --eval_at_start";
  const auto first = [&](const char* output, const char* name) {
    return std::stod(column(output, name).at(0));
  };
  const Finished with = run(1, "with", flags);
  ASSERT_EQ(with.code, 0) << with.err;
  const std::string key = "\"output_router_logits\": ";
  std::string config = content_of(folder_ / "model/config.json");
  const std::size_t at = config.find(key + "true");
  if (at == std::string::npos) {  // the model has no such loss
    EXPECT_EQ(first("with", "eval_loss"), first("with", "eval_label_loss"));
    return;
  }
  write("model/config.json", config.replace(at, key.size() + 4, key + "false"));
  const Finished without = run(1, "without", flags);
  ASSERT_EQ(without.code, 0) << without.err;
  EXPECT_GT(first("with", "eval_loss"), first("with", "eval_label_loss") + 0.01);
  EXPECT_EQ(first("with", "eval_label_loss"), first("without", "eval_loss"));
  EXPECT_EQ(first("with", "label_perplexity"), first("without", "perplexity"));
}

TEST_P(ExpertTraining, LeafModulesChangeUnitsAndNoDigit) {
  std::vector<std::string> expected;
  std::string weights;
  for (const int ranks : {1, 2}) {
    for (const char* leaf : GetParam().leaves) {
      const std::string output = fmt::format("leaf{}{}", leaf, ranks);
      const Finished done = run(
          ranks, output, fmt::format("--stage 3 {}{}", *leaf == 0 ? "" : "--leaf_module ", leaf));
      ASSERT_EQ(done.code, 0) << leaf << ": " << done.err;
      if (expected.empty()) {
        expected = digits(output);
        weights = content_of(folder_ / output / "model/model.safetensors");
      }
      EXPECT_EQ(digits(output), expected) << leaf << ", " << ranks << " ranks";
      EXPECT_TRUE(content_of(folder_ / output / "model/model.safetensors") == weights) << leaf;
    }
  }
}

TEST_P(ExpertTraining, HalfPrecisionLearns) {
  for (const char* dtype : {"bf16", "fp16"}) {
    const Finished done = run(1, dtype, fmt::format("--dtype {} --steps 12", dtype));
    ASSERT_EQ(done.code, 0) << done.err;
    const auto losses = column(dtype, "loss");
    EXPECT_LT(std::stod(losses.back()), std::stod(losses.front())) << dtype;
  }
}

TEST_P(ExpertTraining, UnknownLeafModulesAreRefused) {
  const Finished none = run(1, "run", "--leaf_module MixtralSparseMoeBlock");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr(GetParam().leaves.back()));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
  const Finished dense = demo("run", "--leaf_module Qwen3MoeMLP");
  EXPECT_EQ(dense.code, 2);
  EXPECT_THAT(dense.err, HasSubstr("no experts"));
}

TEST_P(ExpertTraining, TransformersLoadsTheModelAndAgreesOnLogits) {
  if (!has_transformers()) {
    GTEST_SKIP() << "no Python with transformers in .venv";
  }
  ASSERT_EQ(run(1, "run", "").code, 0);
  expect_transformers_agrees({path("run/model")});
}

INSTANTIATE_TEST_SUITE_P(
    Families, ExpertTraining,
    testing::Values(Case{"Qwen3Moe",
                         kQwen3Moe,
                         {"", "Qwen3MoeDecoderLayer", "Qwen3MoeSparseMoeBlock", "Qwen3MoeMLP"}},
                    Case{"GptOss", kGptOss, {"", "GptOssMLP", "GptOssExperts"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
