// A config's optimizer block, as the update kernels take it.
#include "engine/layout/update_config.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

OptimizerConfig optimizer_of(std::string_view optimizer) {
  return parse_config(fmt::format(R"({{"train_batch_size": 1, "optimizer": {}}})", optimizer),
                      "ds.json")
      .optimizer;
}

UpdateConfig update_of(std::string_view optimizer) {
  return update_config(optimizer_of(optimizer));
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

TEST(UpdateConfig, LambAndMuonHaveDeepSpeedsDefaults) {
  const UpdateConfig lamb = update_of(R"({"type": "Lamb"})");
  EXPECT_EQ(lamb.kind, OptimizerKind::kLamb);
  EXPECT_EQ(lamb.beta2, 0.999);
  EXPECT_EQ(lamb.min_coeff, 0.01);
  EXPECT_EQ(lamb.max_coeff, 10.0);
  EXPECT_FALSE(lamb.eps_inside_sqrt);
  EXPECT_EQ(state_arrays(lamb), 2U);
  const UpdateConfig muon = update_of(R"({"type": "Muon"})");
  EXPECT_EQ(muon.lr, 0.02);
  EXPECT_EQ(muon.momentum, 0.95);
  EXPECT_TRUE(muon.nesterov);
  EXPECT_EQ(muon.beta2, 0.95);
  EXPECT_EQ(muon.eps, 1e-10);
}

TEST(UpdateConfig, MuonsTwoHalvesHaveTheirRates) {
  const auto expect_rates = [](const char* params, double matrices, double others) {
    const OptimizerConfig optimizer =
        optimizer_of(fmt::format(R"({{"type": "Muon", "params": {{{}}}}})", params));
    const auto groups = update_groups(update_config(optimizer), optimizer.adam_lr_factor());
    EXPECT_EQ(groups.size(), 2U);
    EXPECT_EQ(groups[0].kind, OptimizerKind::kMuon);
    EXPECT_EQ(groups[1].kind, OptimizerKind::kAdam);
    EXPECT_TRUE(groups[1].adamw);
    EXPECT_DOUBLE_EQ(groups[0].lr, matrices) << params;
    EXPECT_DOUBLE_EQ(groups[1].lr, others) << params;
  };
  expect_rates("", 0.02, 3e-4);
  expect_rates(R"("lr": 0.5)", 0.5, 0.5);
  expect_rates(R"("lr": 0.5, "adam_lr": 0.25)", 0.5, 0.25);
  expect_rates(R"("lr": 0.5, "muon_lr": 0.25)", 0.25, 0.5);
  expect_rates(R"("muon_lr": 0.5, "adam_lr": 0.125)", 0.5, 0.125);
  EXPECT_EQ(update_groups(update_of(R"({"type": "Lamb"})"), 1).size(), 1U);
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
