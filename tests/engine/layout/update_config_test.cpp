// A config's optimizer block, as the update kernels take it.
#include "engine/layout/update_config.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

UpdateConfig update_of(std::string_view optimizer) {
  return update_config(
      parse_config(fmt::format(R"({{"train_batch_size": 1, "optimizer": {}}})", optimizer),
                   "ds.json")
          .optimizer);
}

TEST(UpdateConfig, TakesEveryHyperparameterOfItsKind) {
  const UpdateConfig adam =
      update_of(R"({"type": "Adam", "params": {"lr": 0.5, "betas": [0.25, 0.75],
      "eps": 1e-3, "weight_decay": 0.125, "adam_w_mode": false, "bias_correction": false}})");
  EXPECT_EQ(adam.kind, OptimizerKind::kAdam);
  EXPECT_EQ(adam.lr, 0.5);
  EXPECT_EQ(adam.beta1, 0.25);
  EXPECT_EQ(adam.beta2, 0.75);
  EXPECT_EQ(adam.eps, 1e-3);
  EXPECT_EQ(adam.weight_decay, 0.125);
  EXPECT_FALSE(adam.adamw || adam.bias_correction);

  const UpdateConfig sgd = update_of(R"({"type": "SGD", "params": {"lr": 0.5, "momentum": 0.75,
      "weight_decay": 0.125, "nesterov": true}})");
  EXPECT_EQ(sgd.kind, OptimizerKind::kSgd);
  EXPECT_EQ(sgd.momentum, 0.75);
  EXPECT_EQ(sgd.weight_decay, 0.125);
  EXPECT_TRUE(sgd.nesterov);
  EXPECT_EQ(
      update_of(R"({"type": "SGD", "params": {"momentum": 0.5, "dampening": 0.25}})").dampening,
      0.25);
}

TEST(UpdateConfig, DefaultsAreThoseOfTheKind) {
  const UpdateConfig none = update_config(OptimizerConfig());
  EXPECT_EQ(none.kind, OptimizerKind::kAdam);
  EXPECT_TRUE(none.adamw);
  const UpdateConfig lion = update_of(R"({"type": "Lion"})");
  EXPECT_EQ(lion.kind, OptimizerKind::kLion);
  EXPECT_EQ(lion.beta2, 0.99);
  const UpdateConfig adagrad = update_of(R"({"type": "Adagrad"})");
  EXPECT_EQ(adagrad.kind, OptimizerKind::kAdagrad);
  EXPECT_EQ(adagrad.lr, 1e-2);
  EXPECT_EQ(adagrad.eps, 1e-10);
  EXPECT_EQ(state_arrays(update_of(R"({"type": "SGD"})")), 0U);
}

}  // namespace
}  // namespace tandem
