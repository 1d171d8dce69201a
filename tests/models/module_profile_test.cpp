// The module tree of the families' models and of the CIFAR-10 nets: every parameter and every
// operation once.
#include "engine/metrics/module_profile.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/metrics/flops.hpp"
#include "models/causal_lm.hpp"
#include "models/cifar/moe_net.hpp"
#include "models/cifar/net.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

ModuleProfile profile_of(const Model& model, std::int64_t length) {
  return profile_modules(model, std::vector<BatchExtents>{{.rows = 3, .length = length}},
                         std::vector<SegmentSeconds>(model.segments.size()), false);
}

std::vector<std::string> names_of(const ModuleProfile& module) {
  std::vector<std::string> names;
  for (const ModuleProfile& part : module.parts) {
    names.push_back(part.name);
  }
  return names;
}

/// Parts hold what their whole has, but for what is said of `module` itself.
void expect_sums(const ModuleProfile& module) {
  if (module.parts.empty()) {
    return;
  }
  double flops = 0;
  std::int64_t parameters = 0;
  for (const ModuleProfile& part : module.parts) {
    flops += part.forward_flops;
    parameters += part.parameters;
    expect_sums(part);
  }
  EXPECT_LE(flops, module.forward_flops * (1 + 1e-9)) << module.name;
  EXPECT_LE(parameters, module.parameters) << module.name;
}

class FamilyTree : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(References, FamilyTree,
                         ::testing::Values("small_qwen2", "small_mixtral", "small_gpt_oss"));

TEST_P(FamilyTree, HoldsEveryParameterAndOperationOnce) {
  const HfConfig config = read_hf_config(std::string(test::source_dir()) +
                                         "/tests/data/references/" + GetParam() + "/checkpoint");
  const Model model = make_causal_lm(config);
  const ModuleProfile profile = profile_of(model, 64);
  std::int64_t parameters = 0;
  for (const UnitSpec& unit : model.units) {
    parameters += unit.numel();
  }
  EXPECT_EQ(profile.parameters, parameters);
  EXPECT_EQ(3 * profile.forward_flops, model_flops_per_token(model, 64) * 3 * 64);
  EXPECT_EQ(profile.backward_flops, 2 * profile.forward_flops);
  expect_sums(profile);
  ASSERT_EQ(profile.parts.size(), model.segments.size());
  EXPECT_EQ(profile.parts.front().name, "embedding");
  EXPECT_EQ(profile.parts.front().forward_flops, 0);
  EXPECT_EQ(profile.parts.back().name, "head");
  const ModuleProfile& block = profile.parts[1];
  EXPECT_EQ(block.name, "block 0");
  EXPECT_THAT(names_of(block), Contains("self_attn"));
  double flops = 0;
  std::int64_t inside = 0;
  for (const ModuleProfile& part : block.parts) {
    flops += part.forward_flops;
    inside += part.parameters;
  }
  EXPECT_EQ(inside, block.parameters);
  EXPECT_NEAR(flops, block.forward_flops, 1e-9 * block.forward_flops);
  const auto attention = std::ranges::find(block.parts, "self_attn", &ModuleProfile::name);
  double projections = 0;
  for (const ModuleProfile& part : attention->parts) {
    projections += part.forward_flops;
  }
  EXPECT_GT(attention->forward_flops, projections) << "scores and their sums";
}

TEST(ModuleProfile, OfTheCifarNet) {
  const ModuleProfile net = profile_of(make_cifar_model(nullptr), 1).parts.at(0);
  EXPECT_EQ(net.parameters, 62006);
  EXPECT_THAT(names_of(net), ElementsAre("conv1", "conv2", "fc1", "fc2", "fc3"));
  EXPECT_EQ(net.parts[0].forward_macs(), 3.0 * 28 * 28 * 6 * 75);
  EXPECT_EQ(net.parts[1].forward_macs(), 3.0 * 10 * 10 * 16 * 150);
  expect_sums(net);
}

TEST(ModuleProfile, OfTheCifarNetWithExperts) {
  const CifarMoe shape{.experts = {2, 4}, .residual = true};
  const ModuleProfile net = profile_of(make_cifar_moe_model(shape, nullptr), 1).parts.at(0);
  const double without = 28 * 28 * 6 * 75 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10;
  // Each mixture counts one expert, the gate, the residual layer and the two coefficients.
  const double mixtures = 2 * (84 * 84 + 84 * 84 + 2 * 84) + (2 + 4) * 84;
  EXPECT_EQ(net.forward_macs(), 3 * (without + mixtures));
  expect_sums(net);
}

}  // namespace
}  // namespace tandem
