// Each family against Transformers: a small checkpoint with reference outputs made by
// tools/make_reference.py, `tandem parity` on it, then fine-tuning it, and Transformers on what was
// saved.
#include "tests/examples/trainer_fixture.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

struct Reference {
  const char* name;
  const char* flags;  // of make_reference.py
};

class References : public TrainerTest, public testing::WithParamInterface<Reference> {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    if (!has_transformers()) {
      GTEST_SKIP() << "no Python with transformers in .venv";
    }
    // Few steps: the traces of 20 are the same code. The vocabulary is that of the demo's
    // tokenizer.
    const Finished made = shell(
        fmt::format("'{}' '{}/tools/make_reference.py' --out '{}' --steps 3 --set vocab_size=768 "
                    "--set eos_token_id=767 {}",
                    kPython, TANDEM_SOURCE_DIR, path("reference"), GetParam().flags));
    ASSERT_EQ(made.code, 0) << made.out << made.err;
  }
};

TEST_P(References, ParityPassesAndTransformersLoadsWhatWasTrained) {
  const Finished parity =
      shell(fmt::format("'{}/tandem' parity '{}'", TANDEM_BIN_DIR, path("reference")));
  EXPECT_EQ(parity.code, 0) << parity.out << parity.err;
  EXPECT_EQ(parity.out.find("FAIL"), std::string::npos) << parity.out;
  EXPECT_EQ(parity.out.find("limit=none"), std::string::npos) << parity.out;
  for (const char* check :
       {"logits max_abs=", "config spellings", "loss max_abs=", "grads (worst", "trace clip loss",
        "trace noclip grad_norm", "final weights clip (worst"}) {
    EXPECT_NE(parity.out.find(check), std::string::npos) << check << " did not run\n" << parity.out;
  }

  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(fs::path(kDemo) / file, folder_ / "reference/checkpoint" / file);
  }
  const fs::path alpaca = fs::path(kShared) / "data/alpaca/alpaca_small.json";
  const fs::path demo = fs::path(kDemo) / "instructions.json";
  const auto trained = [&](int ranks, const std::string& output, const std::string& flags) {
    const Finished done = shell(fmt::format(
        "'{}/tandem' launch -n {} -- '{}' --model_name '{}' --dataset_name '{}' --lr 3e-3 "
        "--batch_size 2 --gradient_accumulation_steps {} --max_length 64 --steps 12 "
        "--output_dir '{}' --progress off --no-tensorboard {}",
        TANDEM_BIN_DIR, ranks, kTrainer, path("reference/checkpoint"),
        (fs::exists(alpaca) ? alpaca : demo).string(), 2 / ranks, path(output), flags));
    EXPECT_EQ(done.code, 0) << done.err;
    return content_of(folder_ / output / "model/model.safetensors");
  };
  // With the dropout that the family's config asks for.
  const std::string weights = trained(1, "run", "");
  EXPECT_TRUE(trained(2, "ranks", "--stage 3 --overlap offload") == weights) << "ranks, sharded";
  EXPECT_TRUE(trained(2, "other", "--stage 1 --overlap off --activation_checkpointing") == weights)
      << "stage, overlap and recomputation change no bit";
  const auto losses = column("run", "loss");
  EXPECT_LT(std::stod(losses.back()), std::stod(losses.front()) - 0.1);
  expect_transformers_agrees(path("run/model"));
}

INSTANTIATE_TEST_SUITE_P(
    Families, References,
    testing::Values(
        Reference{"llama", "--family llama"},
        Reference{"llama_linear_tied",
                  "--family llama --tied --shards 3 --set attention_bias=true --set mlp_bias=true "
                  "--set 'rope_scaling={\"type\": \"linear\", \"factor\": 4.0}'"},
        Reference{"phi3", "--family phi3"}, Reference{"seed_oss", "--family seed_oss --shards 2"},
        Reference{"qwen3_window_yarn",
                  "--family qwen3 --set 'rope_scaling={\"rope_type\": \"yarn\", \"factor\": 4.0, "
                  "\"original_max_position_embeddings\": 16}'"},
        Reference{"qwen3_moe", "--family qwen3_moe"}, Reference{"gpt_oss", "--family gpt_oss"},
        Reference{"gpt2", "--family gpt2"}, Reference{"mistral", "--family mistral"},
        Reference{"qwen2", "--family qwen2 --shards 2"},
        Reference{"qwen2_tied_full", "--family qwen2 --tied --set use_sliding_window=false"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tandem
