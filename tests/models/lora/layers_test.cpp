// Adapters' arithmetic against what PEFT computed, by our kernels and by ATen's operations, and
// against finite differences and each other where PEFT's draws cannot be repeated (dropout).
#include "models/layers/aten/layers.hpp"

#include <cmath>
#include <tuple>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "models/transformer/adapters.hpp"
#include "tests/models/layers/harness.hpp"
#include "tests/models/lora/oracle.hpp"
#include "tests/support/tensor_file.hpp"

namespace tandem {
namespace {

using test::LoraOracle;
using test::read;

/// The tensor that PEFT calls so for a parameter.
std::string peft_name(const std::string& parameter) { return "base_model.model." + parameter; }

/// With true as the second: by ATen's operations, as on a GPU.
class AdaptersOfPeft : public testing::TestWithParam<std::tuple<LoraOracle, bool>> {
 protected:
  void SetUp() override { aten::take_always(std::get<bool>(GetParam())); }
  void TearDown() override { aten::take_always(false); }

  static const LoraOracle& oracle() { return std::get<0>(GetParam()); }
  static test::MathHarness harness(const std::string& adapters) {
    Model model = oracle().model(adapters);
    const ParameterSource source = model.source;
    return {std::move(model), at::kFloat, source};
  }
  /// The largest difference where the mask is one.
  static double difference(const at::Tensor& got, const SafetensorsFile& file, const char* wanted) {
    const at::Tensor mask = read(file, "attention_mask").to(at::kBool);
    return (got - read(file, wanted)).abs().amax(-1).masked_select(mask).max().item<double>();
  }
};

TEST_P(AdaptersOfPeft, Logits) {
  simdjson::dom::parser parser;
  const double limit = double(
      parser.load((oracle().folder() / "losses.json").string())["recommended"]["logits max abs"]);
  const auto file = SafetensorsFile::open(oracle().folder() / "logits.safetensors");
  const at::Tensor ids = read(file, "input_ids");
  for (const char* when : {"initial", "final"}) {
    const at::Tensor logits = harness(std::string("adapter_") + when).logits(ids);
    EXPECT_LE(difference(logits, file, when), limit) << when;
  }
}

TEST_P(AdaptersOfPeft, LossAndGradientsAndNoneOfTheFrozen) {
  const auto file = SafetensorsFile::open(oracle().folder() / "grads.safetensors");
  test::MathHarness model = harness("adapter_initial");
  const float loss = model.step({read(file, "input_ids"), read(file, "labels")});
  EXPECT_NEAR(loss, read(file, "loss").item<float>(), 5e-6);
  std::size_t compared = 0;
  for (const auto& [name, weight] : model.parameters()) {
    if (!is_adapter(name)) {
      EXPECT_FALSE(weight->grad_written) << name;
      continue;
    }
    ASSERT_TRUE(weight->grad_written) << name;
    const at::Tensor wanted = read(file, "grad." + peft_name(name));
    // With B zero A's gradient is zero, too, and has to be exactly that.
    const double scale = wanted.abs().max().item<double>();
    EXPECT_LE((weight->grad - wanted).abs().max().item<double>(), 8e-6 * scale) << name;
    ++compared;
  }
  EXPECT_EQ(compared, file.tensors().size() - 4);  // ids, mask, labels, loss
}

TEST_P(AdaptersOfPeft, DropoutIsTheSameBothWaysAndItsGradientIsThatOfTheLoss) {
  Model model = oracle().model("adapter_final");
  const ParameterSource source = model.source;
  LoraOptions lora = oracle().lora();
  lora.dropout = 0.4;
  const auto make = [&] {
    return test::MathHarness(make_causal_lm(oracle().config(), {}, 5, {.lora = lora}), at::kFloat,
                             source);
  };
  const auto file = SafetensorsFile::open(oracle().folder() / "grads.safetensors");
  Batch batch{read(file, "input_ids"), read(file, "labels")};
  test::MathHarness dropping = make();
  const float without = dropping.step(batch);
  batch.number = 3;
  const float with = dropping.step(batch);
  EXPECT_NE(with, without);
  EXPECT_EQ(dropping.step(batch), with) << "the micro-batch's number decides";
  batch.number = 4;
  EXPECT_NE(dropping.step(batch), with);
  batch.number = 3;
  dropping.step(batch);

  aten::take_always(!std::get<bool>(GetParam()));
  test::MathHarness other_way = make();
  EXPECT_NEAR(other_way.step(batch), with, 2e-6);
  const auto others = other_way.parameters();
  aten::take_always(std::get<bool>(GetParam()));
  for (const auto& [name, weight] : dropping.parameters()) {
    if (!is_adapter(name)) {
      continue;
    }
    const at::Tensor& other = others.at(name)->grad;
    EXPECT_LE((weight->grad - other).abs().max().item<double>(),
              2e-5 * other.abs().max().item<double>())
        << name;
    // Along its own gradient the loss rises as that says.
    const double slope = weight->grad.pow(2).sum().item<double>();
    const double step = 2e-3 / std::sqrt(slope);
    const at::Tensor direction = weight->grad.clone();
    const auto loss_at = [&](double factor) {
      weight->value.detach().add_(direction, factor);
      const float loss = dropping.step(batch);
      weight->value.detach().sub_(direction, factor);
      return static_cast<double>(loss);
    };
    const double measured = (loss_at(step) - loss_at(-step)) / (2 * step);
    EXPECT_NEAR(measured / slope, 1, 0.05) << name;
    break;  // each costs two passes; the comparison above covers all
  }
}

TEST_P(AdaptersOfPeft, InBf16TheyAreNear) {
  Model model = oracle().model("adapter_final");
  const ParameterSource source = model.source;
  test::MathHarness harness(std::move(model), at::kBFloat16, source);
  const auto file = SafetensorsFile::open(oracle().folder() / "logits.safetensors");
  const at::Tensor logits = harness.logits(read(file, "input_ids"));
  const double wanted = read(file, "final").abs().max().item<double>();
  EXPECT_LE(difference(logits, file, "final"), 0.03 * wanted);
}

INSTANTIATE_TEST_SUITE_P(Cases, AdaptersOfPeft,
                         testing::Combine(testing::ValuesIn(test::lora_oracles()), testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param).name() +
                                  (std::get<bool>(info.param) ? "_plain" : "");
                         });

}  // namespace
}  // namespace tandem
