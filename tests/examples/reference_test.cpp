// Each family against Transformers: a small checkpoint with reference outputs made by
// tools/make_reference.py, `tandem parity` on it as it is and with planted mistakes, then
// fine-tuning it, and Transformers on what was saved.
#include "tests/examples/trainer_fixture.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

/// How oneDNN, MKL and ATen are told to do without later instructions. ATen takes its word for what
/// the processor has.
std::string instructions(std::string_view name) {
  const bool has_avx512 =
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  if (name == "avx2") {
    return "ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2";
  }
  if (name == "avx512" && has_avx512) {
    return "ONEDNN_MAX_CPU_ISA=AVX512_CORE MKL_ENABLE_INSTRUCTIONS=AVX512 "
           "ATEN_CPU_CAPABILITY=avx512";
  }
  return "";
}

struct Reference {
  const char* name;
  const char* flags;   // of make_reference.py
  const char* plants;  // mistakes of plants.py that must be found
  const char* isa;     // of make_reference.py, which holds Transformers to the limits as well
};

class References : public TrainerTest, public testing::WithParamInterface<Reference> {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    if (!has_transformers()) {
      GTEST_SKIP() << "no Python with transformers in .venv";
    }
    // Two steps are all of Adam's code. The vocabulary is that of the demo's tokenizer.
    const Finished made = shell(fmt::format(
        "{} '{}' '{}/tools/make_reference.py' --out '{}' --steps 2 --set vocab_size=768 "
        "--set eos_token_id=767 {}",
        instructions(GetParam().isa), kPython, TANDEM_SOURCE_DIR, path("reference"),
        GetParam().flags));
    ASSERT_EQ(made.code, 0) << made.out << made.err;
  }

  [[nodiscard]] Finished parity(const std::string& folder, const std::string& environment) const {
    return shell(
        fmt::format("{} '{}/tandem' parity '{}'", environment, TANDEM_BIN_DIR, path(folder)));
  }

  /// The limits come from arithmetic, not from the processor that made the reference.
  void expect_parity() const {
    std::vector<std::string> environments = {""};
    // One family: the engine's own fp32 kernels ask none of these libraries, so that all bits are
    // equal.
    if (std::string_view(GetParam().name) == "qwen3_moe") {
      environments = {"", instructions("avx2"), instructions("avx512")};
    }
    for (const std::string& environment : environments) {
      const Finished done = parity("reference", environment);
      EXPECT_EQ(done.code, 0) << environment << '\n' << done.out << done.err;
      EXPECT_EQ(done.out.find("FAIL"), std::string::npos) << done.out;
      EXPECT_EQ(done.out.find("limit=none"), std::string::npos) << done.out;
      for (const char* check :
           {"logits max_abs=", "config spellings", "loss max_abs=", "grads (worst",
            "trace clip loss", "trace noclip grad_norm", "final weights clip (worst"}) {
        EXPECT_NE(done.out.find(check), std::string::npos) << check << " did not run\n" << done.out;
      }
    }
  }

  void expect_mistakes_are_found() const {
    const std::string plants = GetParam().plants;
    const Finished planted =
        shell(fmt::format("'{}' '{}/tests/examples/plants.py' '{}' '{}' {}", kPython,
                          TANDEM_SOURCE_DIR, path("reference"), path("planted"), plants));
    ASSERT_EQ(planted.code, 0) << planted.err;
    std::istringstream names(plants);
    for (std::string name; names >> name;) {
      const Finished done = parity("planted/" + name, "");
      EXPECT_EQ(done.code, 1) << name << '\n' << done.out << done.err;
      EXPECT_NE(done.out.find("FAIL"), std::string::npos) << name << '\n' << done.out;
    }
  }
};

TEST_P(References, ParityPassesAndTransformersLoadsWhatWasTrained) {
  expect_parity();
  expect_mistakes_are_found();

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
        Reference{"llama", "--family llama", "rope_theta clipping", ""},
        Reference{"llama_linear_tied",
                  "--family llama --tied --shards 3 --set attention_bias=true --set mlp_bias=true "
                  "--set 'rope_scaling={\"type\": \"linear\", \"factor\": 4.0}'",
                  "norm_eps", "avx2"},
        Reference{"phi3", "--family phi3", "window labels element", "avx512"},
        Reference{"seed_oss", "--family seed_oss --shards 2", "rope_theta", "avx2"},
        Reference{"qwen3_window_yarn",
                  "--family qwen3 --set 'rope_scaling={\"rope_type\": \"yarn\", \"factor\": 4.0, "
                  "\"original_max_position_embeddings\": 16}'",
                  "window beta2", "avx512"},
        Reference{"qwen3_moe", "--family qwen3_moe",
                  "routing expert norm_eps adam_eps bias_correction weight_decay", "avx2"},
        Reference{"gpt_oss", "--family gpt_oss", "window chosen", "avx512"},
        Reference{"gpt2", "--family gpt2", "norm_eps adam_eps", "avx2"},
        Reference{"mistral", "--family mistral", "window", ""},
        Reference{"qwen2", "--family qwen2 --shards 2", "labels", ""},
        Reference{"qwen2_tied_full", "--family qwen2 --tied --set use_sliding_window=false",
                  "rope_theta", ""}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tandem
