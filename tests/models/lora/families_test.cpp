// Adapters of all linear modules in every kind of block: both ways to compute them agree, and so
// does the model that they are merged into.
#include <filesystem>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/engine.hpp"
#include "models/families/family.hpp"
#include "models/io/random_init.hpp"
#include "models/layers/aten/layers.hpp"
#include "models/merge_adapters.hpp"
#include "models/transformer/adapters.hpp"
#include "tests/models/layers/harness.hpp"
#include "tests/models/lora/oracle.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/tensor_file.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::read;

class AdaptersOfFamilies : public testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { aten::take_always(false); }

  static fs::path folder() {
    return fs::path(test::source_dir()) / "tests/data/references" / GetParam();
  }
  static fs::path checkpoint() { return folder() / "checkpoint"; }
  static HfConfig config() { return read_hf_config(checkpoint()); }
  static LoraOptions lora() {
    return {.rank = 3, .alpha = 5, .rank_stabilised = true, .targets = {"all-linear"}};
  }
  /// With a B that is not zero.
  static Model model() {
    Model model = make_causal_lm(config(), {}, 0, {.lora = lora()});
    model.source = [base = adapter_source(test::LoraOracle::base_source(checkpoint()), 1, nullptr)](
                       const ParameterSpec& p, std::int64_t begin, std::int64_t end, float* out) {
      if (p.name.ends_with(kAdapterB)) {
        fill_normal(p.name, 1, 0.05, begin, end, out);
      } else {
        base(p, begin, end, out);
      }
    };
    return model;
  }
  static test::MathHarness harness() {
    Model made = model();
    const ParameterSource source = made.source;
    return {std::move(made), at::kFloat, source};
  }
  static double largest(const at::Tensor& x) { return x.abs().max().item<double>(); }
};

TEST_P(AdaptersOfFamilies, BothWaysAgree) {
  const auto file = SafetensorsFile::open(folder() / "grads.safetensors");
  const Batch batch{read(file, "input_ids"), read(file, "labels")};
  test::MathHarness ours = harness();
  const float loss = ours.step(batch);
  aten::take_always(true);
  test::MathHarness plain = harness();
  EXPECT_NEAR(plain.step(batch), loss, 3e-6);
  const auto others = plain.parameters();
  std::size_t adapters = 0;
  for (const auto& [name, weight] : ours.parameters()) {
    ASSERT_EQ(weight->grad_written, is_adapter(name)) << name;
    if (is_adapter(name)) {
      const at::Tensor& other = others.at(name)->grad;
      EXPECT_GT(largest(other), 0) << name;
      EXPECT_LE(largest(weight->grad - other), 2e-5 * largest(other)) << name;
      ++adapters;
    }
  }
  const DecoderSpec spec = family_of(config()).describe(config());
  EXPECT_EQ(adapters, 2 * adaptable_modules(spec).size());
}

TEST_P(AdaptersOfFamilies, MergedTheyAreTheSameModel) {
  const test::TempDir dir;
  Engine engine({.model = model(),
                 .config = ConfigSource::of_text(
                     R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}})"),
                 .options = {.plans_run = false, .compute_threads = 1}});
  save_adapters(engine, dir / "adapter", TensorType::kF32, lora(), config(), "base");
  const MergedAdapters merged =
      merge_adapters(AdapterFolder::open(dir / "adapter"), checkpoint(), dir / "merged");
  EXPECT_GT(merged.adapted, 0U);
  const auto file = SafetensorsFile::open(folder() / "grads.safetensors");
  const at::Tensor ids = read(file, "input_ids");
  test::MathHarness whole(make_causal_lm(read_hf_config(dir / "merged")), at::kFloat,
                          test::LoraOracle::base_source(dir / "merged"));
  test::MathHarness base(make_causal_lm(config()), at::kFloat,
                         test::LoraOracle::base_source(checkpoint()));
  const at::Tensor with = harness().logits(ids);
  EXPECT_LE(largest(whole.logits(ids) - with), 1e-5);
  EXPECT_GT(largest(base.logits(ids) - with), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(All, AdaptersOfFamilies,
                         testing::Values("small_gpt2", "small_qwen2", "small_gpt_oss",
                                         "small_mixtral", "small_gemma3_text"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tandem
