// Parameter groups, and parameters that are frozen: one by one, as a whole unit, and the first unit
// of the model.
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/layout/decay_groups.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using toy::arguments;
using toy::Setting;

using Values = std::map<std::string, std::vector<float>>;

Values values_of(Engine& engine) {
  Values values;
  engine.for_each_parameter([&](const ParameterSpec& spec, std::span<const float> data) {
    values[spec.name].assign(data.begin(), data.end());
  });
  return values;
}

Values after_steps(InitializeArgs args, int steps, std::vector<double>* losses = nullptr) {
  Engine engine(std::move(args));
  for (int step = 0; step < steps; ++step) {
    const Batch batch = toy::batch(step);
    const double loss = engine.train_step(std::span(&batch, 1)).loss;
    if (losses != nullptr) {
      losses->push_back(loss);
    }
  }
  return values_of(engine);
}

TEST(ParameterGroups, EachHasItsOwnRateAndDecay) {
  // Without clipping, so that the first step of a unit depends on nothing but its own group.
  const Setting setting{.clip = 0};
  InitializeArgs grouped = arguments(setting);
  for (ParameterSpec& parameter : grouped.model.units[2].parameters) {
    parameter.group = 1;
  }
  grouped.parameter_groups = {{}, {.learning_rate_factor = 0.5, .weight_decay = 0.25}};
  const Values got = after_steps(std::move(grouped), 1);

  InitializeArgs other = arguments(setting);
  other.parameter_groups = {{.learning_rate_factor = 0.5, .weight_decay = 0.25}};
  const Values all_of_group_1 = after_steps(std::move(other), 1);
  const Values all_of_group_0 = after_steps(arguments(setting), 1);
  for (const auto& [name, data] : got) {
    const bool second = name.starts_with("block.1.");
    EXPECT_EQ(data, (second ? all_of_group_1 : all_of_group_0).at(name)) << name;
    EXPECT_NE(data, (second ? all_of_group_0 : all_of_group_1).at(name)) << name;
  }
}

// decay_norms: the Trainer's grouping, which a caller could make by hand.
TEST(ParameterGroups, NormsAndBiasesTakeNoDecayWhereThatIsAskedFor) {
  for (const std::string& optimizer :
       {Setting().optimizer, std::string(R"({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9,
          "weight_decay": 0.1}})"),
        toy::kToyLamb, toy::kToyMuon}) {
    Setting setting{.optimizer = optimizer};
    setting.blocks = R"(, "decay_norms": true)";
    const Values decayed = after_steps(arguments(setting), 3);
    setting.blocks = "";
    EXPECT_EQ(after_steps(arguments(setting), 3), decayed) << "the default";
    InitializeArgs grouped = arguments(setting);
    for (UnitSpec& unit : grouped.model.units) {
      for (ParameterSpec& parameter : unit.parameters) {
        parameter.group = parameter.name.ends_with(".bias") ? 1 : 0;
      }
    }
    grouped.parameter_groups = {{}, {.weight_decay = 0}};
    const Values by_hand = after_steps(std::move(grouped), 3);
    setting.blocks = R"(, "decay_norms": false)";
    EXPECT_EQ(after_steps(arguments(setting), 3), by_hand) << optimizer;
    EXPECT_NE(by_hand, decayed) << optimizer;
  }
}

TEST(ParameterGroups, NormsAndBiasesAreToldByTheirNamesAsInTheTrainer) {
  for (const char* name :
       {"transformer.h.0.ln_1.weight", "transformer.ln_f.bias", "transformer.h.0.attn.c_attn.bias",
        "model.norm.weight", "model.layers.1.input_layernorm.weight",
        "model.layers.1.self_attn.q_norm.weight", "model.layers.0.mlp.experts.down_proj_bias",
        "model.layers.0.pre_feedforward_layernorm.weight", "blocks.0.RMSNorm.scale",
        "norm.weight"}) {
    EXPECT_TRUE(is_norm_or_bias(name)) << name;
  }
  for (const char* name :
       {"model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.sinks",
        "model.layers.0.self_attn.q_proj.weight", "model.normal.weight", "transformer.wte.weight",
        "model.layers.0.mlp.gate.weight", "base_model.q_proj.lora_A.weight"}) {
    EXPECT_FALSE(is_norm_or_bias(name)) << name;
  }
}

TEST(ParameterGroups, AGroupThatIsNotThereIsRefused) {
  InitializeArgs args = arguments({});
  args.model.units[1].parameters[0].group = 2;
  args.parameter_groups = {{}, {}};
  EXPECT_THAT(
      [&] { Engine engine(std::move(args)); },
      ThrowsError(ExitCode::kUserInput, ::testing::AllOf(::testing::HasSubstr("block.0.up.weight"),
                                                         ::testing::HasSubstr("group 2"))));
}

TEST(FrozenParameters, KeepTheirBitsAndTheOthersLearn) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const std::string type : {"fp32", "bf16"}) {
      InitializeArgs args = arguments({.stage = stage, .type = type});
      args.model.units[0].parameters[0].frozen = true;  // tied: the embedding and the head
      args.model.units[1].parameters[1].frozen = true;  // a bias among others
      for (ParameterSpec& parameter : args.model.units[3].parameters) {
        parameter.frozen = true;
      }
      Engine engine(std::move(args));
      const Values before = values_of(engine);
      for (int step = 0; step < 4; ++step) {
        const Batch batch = toy::batch(step);
        engine.backward(engine.forward(batch));
        engine.for_each_gradient([&](const ParameterSpec& spec, std::span<const float> gradient) {
          double sum = 0;
          for (const float value : gradient) {
            sum += std::abs(value);
          }
          EXPECT_EQ(sum == 0, spec.frozen || spec.name == "unused.weight") << spec.name;
        });
        engine.step();
      }
      for (const auto& [name, data] : values_of(engine)) {
        const bool frozen =
            name == "embedding.weight" || name == "block.0.up.bias" || name.starts_with("block.2.");
        EXPECT_EQ(data == before.at(name), frozen) << name << " stage " << stage << " " << type;
      }
    }
  }
}

TEST(FrozenParameters, HoldNoOptimizerState) {
  for (const char* type : {"fp32", "bf16"}) {
    InitializeArgs args = arguments({.type = type});
    Engine all(arguments({.type = type}));
    for (ParameterSpec& parameter : args.model.units[3].parameters) {
      parameter.frozen = true;
    }
    const auto padded = static_cast<std::size_t>((args.model.units[3].numel() + 511) / 512 * 512);
    Engine frozen(std::move(args));
    EXPECT_EQ(all.resident_bytes().optimizer - frozen.resident_bytes().optimizer,
              padded * (std::string(type) == "fp32" ? 8 : 12))
        << "moments, and of 16 bits the master; " << type;
  }
}

}  // namespace
}  // namespace tandem
