// The engine checks a batch before it uses it: a batch of another shape is an Error, and the engine
// goes on with the next one.
#include "engine/tensors/batch_check.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/throws_error.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

at::Tensor longs(at::IntArrayRef shape) { return at::zeros(shape, at::kLong); }

TEST(BatchCheck, TakesTokensAndFeatures) {
  check_batch({.inputs = longs({2, 3}), .labels = longs({2, 3})}, BatchUse::kLoss);
  check_batch({.inputs = at::zeros({2, 3, 4}), .labels = longs({2})}, BatchUse::kLoss);
  check_batch({.inputs = longs({2, 3})}, BatchUse::kLogits);
  check_batch({.inputs = longs({2, 3}), .labels = longs({2, 3}), .positions = longs({2, 3})},
              BatchUse::kLoss);
}

TEST(BatchCheck, NamesWhatIsWrong) {
  const auto refused = [](const Batch& batch) {
    return error_text([&] { check_batch(batch, BatchUse::kLoss); });
  };
  EXPECT_THAT(refused({}), HasSubstr("inputs of a batch are missing"));
  EXPECT_THAT(refused({.inputs = longs({0, 3}), .labels = longs({0, 3})}),
              HasSubstr("Long [0, 3]"));
  EXPECT_THAT(refused({.inputs = longs({1, 2, 3}), .labels = longs({1, 2, 3})}),
              HasSubstr("inputs of a batch are Long [1, 2, 3]"));
  EXPECT_THAT(refused({.inputs = at::zeros({2, 3}, at::kInt), .labels = longs({2, 3})}),
              HasSubstr("Int [2, 3]"));
  EXPECT_THAT(refused({.inputs = longs({2, 3}), .labels = longs({2, 15})}),
              HasSubstr("labels of a batch are Long [2, 15], and the engine takes Long [2, 3]"));
  EXPECT_THAT(refused({.inputs = longs({2, 3}), .labels = at::zeros({2, 3})}),
              HasSubstr("Float [2, 3]"));
  EXPECT_THAT(refused({.inputs = at::zeros({2, 3}), .labels = longs({3})}), HasSubstr("2 rows"));
  EXPECT_THAT(
      refused({.inputs = longs({2, 3}), .labels = longs({2, 3}), .positions = longs({1, 3})}),
      HasSubstr("positions of a batch are Long [1, 3], and the engine takes Long [2, 3]"));
  EXPECT_THAT(refused({.inputs = longs({2, 3}),
                       .labels = longs({2, 3}),
                       .positions = longs({2, 3}),
                       .memory = std::make_shared<TextMemory>()}),
              HasSubstr("cannot be continued"));
}

TEST(BatchCheck, TheEngineGoesOnBehindABadBatch) {
  Engine engine(toy::arguments({}));
  Batch bad = toy::batch(0);
  bad.labels = bad.labels.repeat({1, 5});
  EXPECT_THAT([&] { (void)engine.forward(bad); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("labels")));
  EXPECT_THAT([&] { (void)engine.train_step(std::vector{bad}); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("labels")));
  EXPECT_THAT([&] { (void)engine.evaluate(bad); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("labels")));
  EXPECT_THAT([&] { (void)engine.logits({.inputs = bad.inputs.flatten()}); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("inputs")));
  EXPECT_EQ(engine.train_step(std::vector{toy::batch(0)}).step, 1);
}

}  // namespace
}  // namespace tandem
