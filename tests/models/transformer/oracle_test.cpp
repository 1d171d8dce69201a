// Logits, loss and every gradient of reference models against what Transformers computed: large
// ones in shared/, and small ones that every clone has (tests/data/references).
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "actors/storage/safetensors.hpp"
#include "models/causal_lm.hpp"
#include "models/io/checkpoint.hpp"
#include "models/layers/aten/layers.hpp"
#include "tests/models/layers/harness.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/tensor_file.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::read;

struct Limits {
  double logits_abs, loss_abs, gradients_rel;
};

struct Reference {
  std::string folder;
  Limits limits;  // "recommended" in its tolerances.json
};
void PrintTo(const Reference& one, std::ostream* out) { *out << one.folder; }

/// With true as the second: by ATen's operations, as on a GPU.
using Case = std::tuple<Reference, bool>;

class Oracle : public testing::TestWithParam<Case> {
 protected:
  void TearDown() override { aten::take_always(false); }
  void SetUp() override {
    aten::take_always(std::get<bool>(GetParam()));
    folder_ = fs::path(test::source_dir()) / reference().folder;
    const HfConfig config = read_hf_config(folder_ / "checkpoint");
    const auto checkpoint = std::make_shared<Checkpoint>(Checkpoint::open(folder_ / "checkpoint"));
    harness_ = std::make_unique<test::MathHarness>(
        make_causal_lm(config), at::kFloat,
        [checkpoint](const ParameterSpec& p, std::int64_t begin, std::int64_t end, float* out) {
          checkpoint->read_f32(p.name, begin, end, out);
        });
  }

  static const Reference& reference() { return std::get<Reference>(GetParam()); }

  fs::path folder_;
  std::unique_ptr<test::MathHarness> harness_;
};

TEST_P(Oracle, LogitsWhereTheMaskIsOne) {
  const auto file = SafetensorsFile::open(folder_ / "logits.safetensors");
  const at::Tensor difference =
      (harness_->logits(read(file, "input_ids")) - read(file, "logits")).abs().amax(-1);
  const at::Tensor mask = read(file, "attention_mask").to(at::kBool);
  EXPECT_LE(difference.masked_select(mask).max().item<double>(), reference().limits.logits_abs);
}

TEST_P(Oracle, LossAndGradients) {
  const auto file = SafetensorsFile::open(folder_ / "grads.safetensors");
  const float loss = harness_->step({read(file, "input_ids"), read(file, "labels")});
  EXPECT_NEAR(loss, read(file, "loss").item<float>(), reference().limits.loss_abs);
  std::size_t compared = 0;
  for (const auto& [name, weight] : harness_->parameters()) {
    const at::Tensor expected = read(file, "grad." + name);
    ASSERT_TRUE(weight->grad_written) << name;
    at::Tensor got = weight->grad;
    double scale = expected.abs().max().item<double>();
    at::Tensor difference = (got - expected).abs();
    EXPECT_LE(difference.max().item<double>(), reference().limits.gradients_rel * scale) << name;
    ++compared;
  }
  std::size_t in_file = 0;
  for (const TensorInfo& tensor : file.tensors()) {
    in_file += tensor.name.starts_with("grad.") ? 1 : 0;
  }
  EXPECT_EQ(compared, in_file);
}

TEST_P(Oracle, SeedScalesGradients) {
  const auto file = SafetensorsFile::open(folder_ / "grads.safetensors");
  const Batch batch{read(file, "input_ids"), read(file, "labels")};
  harness_->step(batch);
  std::vector<at::Tensor> whole;
  for (const at::Tensor& g : harness_->gradients()) {
    whole.push_back(g.clone());
  }
  harness_->step(batch, 0.5F);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_TRUE(at::allclose(harness_->gradients()[i] * 2, whole[i], 1e-6, 1e-12));
  }
}

TEST_P(Oracle, SameBitsAgainAndOnOneThread) {
  const auto file = SafetensorsFile::open(folder_ / "grads.safetensors");
  const Batch batch{read(file, "input_ids"), read(file, "labels")};
  const int threads = at::get_num_threads();
  const float loss = harness_->step(batch);
  std::vector<at::Tensor> first;
  for (const at::Tensor& g : harness_->gradients()) {
    first.push_back(g.clone());
  }
  EXPECT_EQ(harness_->step(batch), loss);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(at::equal(harness_->gradients()[i], first[i])) << "unit " << i;
  }
  at::set_num_threads(1);
  EXPECT_NEAR(harness_->step(batch), loss, 1e-6);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(at::allclose(harness_->gradients()[i], first[i], 1e-4, 1e-7)) << "unit " << i;
  }
  at::set_num_threads(threads);
}

std::vector<Reference> references() {
  std::vector<Reference> all = {
      {"tests/data/references/small_gpt2", {2e-6, 3e-6, 5e-6}},
      {"tests/data/references/small_gpt_oss", {2e-6, 1e-6, 4e-6}},
      {"tests/data/references/small_qwen2", {2e-6, 3e-6, 4e-6}},
      {"tests/data/references/small_qwen3", {2e-6, 2e-6, 4e-6}},
      {"tests/data/references/small_mixtral", {2e-6, 1e-6, 4e-6}},
      {"tests/data/references/small_gemma3_text", {4e-6, 3e-6, 4e-6}},
      {"../shared/oracles/models/qwen3", {1e-5, 3e-6, 8e-6}},
      {"../shared/oracles/models/qwen3_tied", {9e-6, 2e-6, 8e-6}},
      {"../shared/oracles/models/gpt2", {7e-6, 1e-6, 7e-6}},
  };
  std::erase_if(all, [](const Reference& one) {
    return one.folder.starts_with("..") && !fs::exists(test::source_path(one.folder));
  });
  return all;
}

INSTANTIATE_TEST_SUITE_P(
    Models, Oracle, testing::Combine(testing::ValuesIn(references()), testing::Bool()),
    [](const auto& info) {
      return fs::path(std::get<Reference>(info.param).folder).filename().string() +
             (std::get<bool>(info.param) ? "_plain" : "");
    });

}  // namespace
}  // namespace tandem
