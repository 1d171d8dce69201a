// Values of a batch that a GPU would look up outside of its tables are found before it goes there.
#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/small_models.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

/// A model of 100 tokens and 32 learnt positions.
Model model_of() {
  return test::small_model(parse_hf_config(
      R"({"model_type": "gpt2", "activation_function": "gelu_new", "vocab_size": 100, "n_embd": 16,
          "n_head": 2, "n_layer": 1, "n_positions": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
          "attn_pdrop": 0.0})",
      "config.json"));
}

Batch batch_of(std::int64_t length) {
  const at::Tensor inputs = at::arange(2 * length).remainder(100).view({2, length});
  return {.inputs = inputs, .labels = inputs.clone()};
}

void check(const Model& model, const Batch& batch) {
  for (const SegmentSpec& segment : model.segments) {
    segment.run->check_values(batch);
  }
}

TEST(ValueCheck, FindsWhatIsOutsideOfATable) {
  const Model model = model_of();
  EXPECT_NO_THROW(check(model, batch_of(32)));
  for (const std::int64_t bad : {100, -1}) {
    const std::string id = std::to_string(bad);
    Batch batch = batch_of(8);
    batch.inputs[1][3] = bad;
    EXPECT_THAT([&] { check(model, batch); },
                ThrowsError(ExitCode::kUserInput, HasSubstr("token id " + id + " is outside")));
    batch = batch_of(8);
    batch.labels[1][3] = bad;
    EXPECT_THAT([&] { check(model, batch); },
                ThrowsError(ExitCode::kUserInput, HasSubstr("label " + id + " is outside")));
  }
  Batch ignored = batch_of(8);
  ignored.labels[1][3] = -100;
  ignored.labels[1][0] = 5000;  // no token is asked for a row's first
  EXPECT_NO_THROW(check(model, ignored));
  EXPECT_THAT([&] { check(model, batch_of(33)); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("33 tokens, the model has 32")));
  Batch packed = batch_of(40);
  packed.positions = at::arange(20).repeat({2, 2});
  EXPECT_NO_THROW(check(model, packed)) << "of documents";
  packed.positions[0][7] = 32;
  EXPECT_THAT([&] { check(model, packed); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("33 tokens, the model has 32")));
}

}  // namespace
}  // namespace tandem
