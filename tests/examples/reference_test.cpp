// Each family against Transformers: a small checkpoint with reference outputs made by
// tools/make_reference.py, `tandem parity` on it as it is and with planted mistakes, then
// fine-tuning it, and Transformers on what was saved. The families of a test share two runs of
// Python, whose imports take longer than a family.
#include <ostream>

#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

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
  const char* flags;       // for make_reference.py
  const char* plants;      // mistakes of plants.py that must be found
  const char* alike = "";  // changes of plants.py that are none
};

struct Group {
  const char* isa;  // make_reference.py's, which holds Transformers to the limits as well
  std::vector<Reference> references;
};
void PrintTo(const Group& one, std::ostream* out) { *out << one.isa; }

class References : public TrainerTest, public testing::WithParamInterface<Group> {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    if (!has_transformers()) {
      GTEST_SKIP() << "no Python with transformers in .venv";
    }
    // Two steps are all of Adam's code. A row and a column of five noisy runs tell what rounding
    // does to their elements. The vocabulary is that of the demo's tokenizer.
    std::string jobs;
    for (const Reference& reference : GetParam().references) {
      jobs += fmt::format(
          "--out '{}' --steps 2 --samples 5 --set vocab_size=768 "
          "--set eos_token_id=767 {}\n",
          path(of(reference, "reference")), reference.flags);
    }
    const Finished made =
        shell(fmt::format("{} '{}' '{}/tests/examples/make_references.py' '{}/tools' < '{}'",
                          instructions(GetParam().isa), kPython, test::source_dir(),
                          test::source_dir(), write("jobs", jobs)));
    ASSERT_EQ(made.code, 0) << made.out << made.err;
  }

  /// A folder of one reference.
  static std::string of(const Reference& reference, const std::string& folder) {
    return fmt::format("{}/{}", reference.name, folder);
  }

  [[nodiscard]] Finished parity(const std::string& folder, const std::string& environment) const {
    return shell(
        fmt::format("{} '{}/tandem' parity '{}'", environment, test::bin_dir(), path(folder)));
  }

  /// The limits come from arithmetic, not from the processor that made the reference.
  void expect_parity(const Reference& reference) const {
    std::vector<std::string> environments = {""};
    // One family: the engine's own fp32 kernels ask none of these libraries, so that all bits are
    // equal.
    if (std::string_view(reference.name) == "qwen3_moe") {
      environments = {"", instructions("avx2"), instructions("avx512")};
    }
    for (const std::string& environment : environments) {
      const Finished done = parity(of(reference, "reference"), environment);
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

  void expect_mistakes_are_found(const Reference& reference) const {
    const Finished planted =
        shell(fmt::format("'{}' '{}/tests/examples/plants.py' '{}' '{}' {} {}", kPython,
                          test::source_dir(), path(of(reference, "reference")),
                          path(of(reference, "planted")), reference.plants, reference.alike));
    ASSERT_EQ(planted.code, 0) << planted.err;
    std::istringstream names(reference.plants);
    for (std::string name; names >> name;) {
      const Finished done = parity(of(reference, "planted/" + name), "");
      EXPECT_EQ(done.code, 1) << name << '\n' << done.out << done.err;
      EXPECT_NE(done.out.find("FAIL"), std::string::npos) << name << '\n' << done.out;
    }
    std::istringstream others(reference.alike);
    for (std::string name; others >> name;) {
      const Finished done = parity(of(reference, "planted/" + name), "");
      EXPECT_EQ(done.code, 0) << name << '\n' << done.out << done.err;
    }
  }

  void expect_training_to_be_the_same_on_ranks(const Reference& reference) const {
    const std::string checkpoint = of(reference, "reference/checkpoint");
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(fs::path(kDemo) / file, folder_ / checkpoint / file);
    }
    const fs::path alpaca = fs::path(kShared) / "data/alpaca/alpaca_small.json";
    const fs::path demo = fs::path(kDemo) / "instructions.json";
    const auto trained = [&](int ranks, const std::string& output, const std::string& flags) {
      const Finished done = shell(fmt::format(
          "'{}/tandem' launch -n {} -- '{}' --model_name '{}' --dataset_name '{}' --lr 3e-3 "
          "--recipe deepspeed_example --batch_size 2 --gradient_accumulation_steps {} "
          "--max_length 64 --steps 12 --output_dir '{}' --progress off --no-tensorboard {}",
          test::bin_dir(), ranks, kTrainer, path(checkpoint),
          (fs::exists(alpaca) ? alpaca : demo).string(), 2 / ranks, path(of(reference, output)),
          flags));
      EXPECT_EQ(done.code, 0) << done.err;
      return content_of(folder_ / of(reference, output) / "model/model.safetensors");
    };
    // With the dropout that the family's config asks for.
    const std::string weights = trained(1, "run", "");
    EXPECT_TRUE(trained(2, "ranks", "--stage 3 --overlap offload --activation_checkpointing") ==
                weights)
        << "ranks, stage, overlap and recomputation change no bit";
    const auto losses = column(of(reference, "run"), "loss");
    EXPECT_LT(std::stod(losses.back()), std::stod(losses.front()) - 0.1);
  }
};

TEST_P(References, ParityPassesAndTransformersLoadsWhatWasTrained) {
  std::vector<std::string> models;
  for (const Reference& reference : GetParam().references) {
    SCOPED_TRACE(reference.name);
    expect_parity(reference);
    expect_mistakes_are_found(reference);
    expect_training_to_be_the_same_on_ranks(reference);
    models.push_back(path(of(reference, "run/model")));
  }
  expect_transformers_agrees(models);
}

INSTANTIATE_TEST_SUITE_P(
    Families, References,
    testing::Values(
        Group{"",
              {{"llama", "--family llama", "rope_theta clipping"},
               {"mistral", "--family mistral", "window"},
               {"qwen2", "--family qwen2 --shards 2", "labels"},
               {"qwen2_tied_full", "--family qwen2 --tied --set use_sliding_window=false",
                "rope_theta"},
               {"gemma3_untied_yarn",
                "--family gemma3_text --set tie_word_embeddings=false --set attention_bias=true "
                "--set 'layer_types=[\"full_attention\", \"sliding_attention\", "
                "\"full_attention\"]' --set 'rope_scaling={\"rope_type\": \"yarn\", "
                "\"factor\": 4.0, \"original_max_position_embeddings\": 16}'",
                "rope_theta"}}},
        Group{"avx2",
              {{"llama_linear_tied",
                "--family llama --tied --shards 3 --set attention_bias=true --set mlp_bias=true "
                "--set 'rope_scaling={\"type\": \"linear\", \"factor\": 4.0}'",
                "norm_eps"},
               {"seed_oss", "--family seed_oss --shards 2", "rope_theta"},
               {"qwen3_moe", "--family qwen3_moe",
                "routing expert norm_eps adam_eps bias_correction weight_decay"},
               {"gpt2", "--family gpt2", "norm_eps adam_eps"},
               {"mixtral", "--family mixtral --shards 2", "window expert chosen"}}},
        Group{"avx512",
              {{"phi3", "--family phi3", "window labels element"},
               {"qwen3_window_yarn",
                "--family qwen3 --set 'rope_scaling={\"rope_type\": \"yarn\", \"factor\": 4.0, "
                "\"original_max_position_embeddings\": 16}'",
                "window beta2"},
               {"gpt_oss", "--family gpt_oss", "window chosen"},
               {"gemma3", "--family gemma3_text", "window window_theta score_scale norm_eps",
                "with_eyes"}}}),
    [](const auto& info) {
      return std::string(*info.param.isa == 0 ? "default" : info.param.isa);
    });

}  // namespace
}  // namespace tandem
