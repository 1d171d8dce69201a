// The modules that target_modules, exclude_modules and layers_to_transform allow, as PEFT has it.
#include "models/adapter_targets.hpp"

#include <string>

#include <gtest/gtest.h>

namespace tandem {
namespace {

std::string left_out(const std::string& config, std::string_view module) {
  const JsonDocument document = JsonDocument::parse(config, {"adapter", "file", "correct it"});
  return std::string(AdapterTargets(document.root()).left_out_by(module));
}

constexpr std::string_view kQuery = "model.layers.1.self_attn.q_proj";

TEST(AdapterTargets, AListHasEndsOfNames) {
  EXPECT_EQ(left_out(R"({"target_modules": ["q_proj"]})", kQuery), "");
  EXPECT_EQ(left_out(R"({"target_modules": ["self_attn.q_proj"]})", kQuery), "");
  EXPECT_EQ(left_out(R"({"target_modules": ["proj", "v_proj"]})", kQuery), "target_modules");
}

TEST(AdapterTargets, ATextIsAPatternOfTheWholeName) {
  EXPECT_EQ(left_out(R"({"target_modules": ".*q_proj"})", kQuery), "");
  EXPECT_EQ(left_out(R"({"target_modules": "q_proj"})", kQuery), "target_modules");
  EXPECT_EQ(left_out(R"({"target_modules": ".*self_attn"})", kQuery), "target_modules");
}

TEST(AdapterTargets, NothingSaidAllowsAll) {
  for (const char* config : {"{}", R"({"target_modules": null})", R"({"target_modules": []})",
                             R"({"target_modules": "all-linear", "exclude_modules": null})"}) {
    EXPECT_EQ(left_out(config, kQuery), "") << config;
  }
}

TEST(AdapterTargets, ExcludedModulesAreLeftOut) {
  const std::string targets = R"("target_modules": ["q_proj"], )";
  EXPECT_EQ(
      left_out("{" + targets + R"("exclude_modules": ["layers.1.self_attn.q_proj"]})", kQuery),
      "exclude_modules");
  EXPECT_EQ(left_out("{" + targets + R"("exclude_modules": ".*[.]0[.].*"})", kQuery), "");
}

TEST(AdapterTargets, LayersAreCountedByTheirFirstNumber) {
  const std::string targets = R"({"target_modules": ["q_proj", "up_proj"], )";
  EXPECT_EQ(left_out(targets + R"("layers_to_transform": 1})", kQuery), "");
  EXPECT_EQ(left_out(targets + R"("layers_to_transform": [0]})", kQuery), "layers_to_transform");
  EXPECT_EQ(
      left_out(targets + R"("layers_to_transform": [2], "layers_pattern": "layers"})", kQuery),
      "layers_to_transform");
  EXPECT_EQ(left_out(targets + R"("layers_to_transform": [1], "layers_pattern": ["h"]})", kQuery),
            "layers_to_transform");
  EXPECT_EQ(
      left_out(targets + R"("layers_to_transform": [1]})", "model.layers.1.mlp.experts.0.up_proj"),
      "");
}

}  // namespace
}  // namespace tandem
