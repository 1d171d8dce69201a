// Config files as people keep them: "auto", old spellings, keys of other trainers, notes, blocks
// that are switched off. Each is parsed as documented, and a typo is still an error.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/config/config.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Config parse(std::string_view members, std::vector<KeyFill> fills = {}) {
  return parse_config(fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, {}}})", members),
                      "ds.json", {.fills = std::move(fills)});
}

TEST(ConfigWild, AutoIsFilledAndSaysFromWhat) {
  const Config c = parse(R"("gradient_clipping": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": 1e-6, "weight_decay": null}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
      "warmup_num_steps": "auto", "warmup_max_lr": "auto"}})",
                         {{"optimizer.params.lr", "3e-4", "--lr"},
                          {"optimizer.params.eps", "1e-8", "elsewhere"},
                          {"optimizer.params.weight_decay", "0.01", "--weight_decay"},
                          {"scheduler.params.total_num_steps", "500", "--steps"},
                          {"scheduler.params.warmup_num_steps", "1", "--warmup"},
                          {"scheduler.params.warmup_max_lr", "3e-4", "--lr"}});
  EXPECT_EQ(c.optimizer.lr, 3e-4);
  EXPECT_EQ(c.optimizer.eps, 1e-6);  // the file's value is no "auto"
  EXPECT_EQ(c.optimizer.weight_decay, 0.01);
  EXPECT_EQ(c.schedule.total_num_steps, 500);
  EXPECT_EQ(c.schedule.warmup_num_steps, 1);
  EXPECT_THAT(report_lines(c),
              AllOf(Contains("optimizer.params.lr: auto: 3e-04, from --lr  applied"),
                    Contains("gradient_clipping: 1 (auto)  applied"),
                    Contains("optimizer.params.eps: 1e-06  applied")));
}

// DeepSpeed 0.19 raises ValueError.
TEST(ConfigWild, AWarmUpOfNoStepIsRefusedWhereverItComesFrom) {
  const char* const kSchedule = R"("optimizer": {{"type": "AdamW"}}, "scheduler": {{"type": "{}",
    "params": {{"total_num_steps": 9, "warmup_num_steps": {}}}}})";
  for (const char* type : {"WarmupDecayLR", "WarmupCosineLR"}) {
    EXPECT_THAT(error_text([&] { (void)parse(fmt::format(fmt::runtime(kSchedule), type, 0)); }),
                HasSubstr("scheduler.params.warmup_num_steps is 0"));
    EXPECT_THAT(error_text([&] {
                  (void)parse(fmt::format(fmt::runtime(kSchedule), type, "\"auto\""),
                              {{"scheduler.params.warmup_num_steps", "0", "--warmup"}});
                }),
                AllOf(HasSubstr("warmup_num_steps"), HasSubstr("--warmup")));
  }
}

// The updates multiply by its inverse, in fp32.
TEST(ConfigWild, ALossScaleWhoseInverseIsNotFiniteIsRefused) {
  const auto said = [](std::string_view scale) {
    return error_text(
        [&] { (void)parse(fmt::format(R"("fp16": {{"enabled": true, {}}})", scale)); });
  };
  for (const char* name : {"loss_scale", "min_loss_scale"}) {
    for (const char* value : {"1e-40", "1e-38", "1.8e38", "1e300", "5e-324"}) {
      EXPECT_THAT(said(fmt::format("\"{}\": {}, \"initial_scale_power\": 127", name, value)),
                  AllOf(HasSubstr(fmt::format("fp16.{} is", name)),
                        HasSubstr("it takes 0, or 2^-126 to 2^127")))
          << value;
    }
  }
  EXPECT_EQ(
      parse(R"("fp16": {"enabled": true, "loss_scale": 1.1754943508222875e-38})").fp16.loss_scale,
      0x1p-126);
  EXPECT_EQ(
      parse(R"("fp16": {"enabled": true, "loss_scale": 0, "min_loss_scale": 0})").fp16.loss_scale,
      0);
  EXPECT_EQ(parse(R"("fp16": {"enabled": false, "loss_scale": 1e-40})").fp16.loss_scale, 1e-40);
}

TEST(ConfigWild, ABadFillNamesItsFlag) {
  EXPECT_THAT(
      error_text([] {
        (void)parse(R"("gradient_clipping": "auto")",
                    {{"gradient_clipping", "-1", "--max_grad_norm"}});
      }),
      AllOf(HasSubstr("--max_grad_norm: gradient_clipping is -1"), HasSubstr("at least 0")));
}

TEST(ConfigWild, OldClippingActsWhereThereIsNoOther) {
  const std::string old = R"("optimizer": {"type": "Adam", "params": {"max_grad_norm": 0.5}})";
  EXPECT_EQ(parse(old).gradient_clipping, 0.5);
  EXPECT_EQ(parse(old + R"(, "gradient_clipping": 2)").gradient_clipping, 2);
  EXPECT_EQ(parse(R"("optimizer": {"type": "Adam", "params": {"max_grad_norm": "auto"}})")
                .gradient_clipping,
            1);
  EXPECT_THAT(
      report_lines(parse(old)),
      Contains(StartsWith("optimizer.params.max_grad_norm: 0.5  not applicable: clips as")));
}

TEST(ConfigWild, OldSpellingsOfZero) {
  EXPECT_EQ(parse(R"("zero_optimization": true)").zero.stage, 1);
  EXPECT_EQ(parse(R"("zero_optimization": false)").zero.stage, 0);
  const Config c = parse(R"("zero_optimization": {"stage": 3, "max_live_parameters": 7,
    "max_reuse_distance": 8, "prefetch_bucket_size": 15099494.4, "param_persistence_threshold": 9,
    "gather_16bit_weights_on_model_save": true})");
  EXPECT_EQ(c.zero.max_live_parameters, 7);
  EXPECT_EQ(c.zero.max_reuse_distance, 8);
  EXPECT_EQ(c.zero.prefetch_bucket_size, 15099494);
  EXPECT_EQ(c.zero.param_persistence_threshold, 9);
  EXPECT_TRUE(c.zero.gather_16bit_weights_on_model_save);
}

/// Each is accepted, and says in a line what becomes of it.
TEST(ConfigWild, KeysThatAreLeftAside) {
  for (const char* members : {R"("_comment": "by hand")",
                              R"("_read_the_docs": {"at": 1})",
                              R"("// why": [1])",
                              R"("zero_optimization": {"_note": 3, "stage": 1})",
                              R"("fp16": {"opt_level": "O2"})",
                              R"("fp16": {"fp16_scale_tolerance": 0.25})",
                              R"("amp": {"enabled": true, "opt_level": "O1"})",
                              R"("amp": {"enabled": "auto", "opt_level": "auto"})",
                              R"("bf16": {"loss_scale": 0})",
                              R"("bf16": {"auto_cast": true})",
                              R"("bfloat16": {"hysteresis": 2})",
                              R"("autotuning": {"enabled": true, "fast": true})",
                              R"("comms_config": {"verbose": true})",
                              R"("backend": "nccl")",
                              R"("max_grad_norm": 0.5)",
                              R"("micro_batch_size_per_gpu": "auto")",
                              R"("checkpointing": {"enabled": true})",
                              R"("optimizer": {"type": "Adam", "eps": 1e-8})",
                              R"("elasticity": {"enabled": false, "max_train_batch_size": 64})",
                              R"("zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8})",
                              R"("communication_data_type": "bfp16")",
                              R"("gradient_checkpointing": true)"}) {
    SCOPED_TRACE(members);
    const Config c = parse(members);
    EXPECT_THAT(report_lines(c), Contains(HasSubstr("  not applicable: ")));
    EXPECT_EQ(parse_config(resolved_json(c), "again", 1).zero.stage, c.zero.stage);
  }
}

TEST(ConfigWild, ABlockThatIsOffNeverRefuses) {
  for (const char* block :
       {"zenflow", "compression_training", "data_efficiency", "curriculum_learning", "eigenvalue",
        "progressive_layer_drop", "hybrid_engine", "quantize_training", "pipeline",
        "torch_autocast", "fp8"}) {
    SCOPED_TRACE(block);
    const std::string name = block;
    const auto with = [&](const char* json) {
      const std::string member = fmt::format(R"("{}": {})", name, json);
      return parse(name == "zenflow"
                       ? fmt::format(R"("zero_optimization": {{"stage": 2, {}}})", member)
                       : member);
    };
    EXPECT_NO_THROW((void)with(R"({"enabled": false, "a": {"enabled": true}})"));
    EXPECT_NO_THROW((void)with(R"({"enabled": "auto", "k": 2})"));
    EXPECT_NO_THROW((void)with(R"({"a": {"shared": {"enabled": false, "k": 1}}, "b": 3})"));
    EXPECT_THAT(error_text([&] { (void)with(R"({"enabled": true})"); }),
                HasSubstr(" is refused: "));
    EXPECT_THAT(
        error_text([&] { (void)with(R"({"a": {"enabled": false}, "b": {"enabled": true}})"); }),
        HasSubstr(" is refused: "));
  }
}

TEST(ConfigWild, ATypoIsAnErrorStill) {
  EXPECT_THAT(error_text([] { (void)parse(R"("zero_optimisation": {"stage": 2})"); }),
              HasSubstr("did you mean \"zero_optimization\"?"));
  EXPECT_THAT(error_text([] { (void)parse(R"("gradient_cliping": 1)"); }),
              HasSubstr("did you mean \"gradient_clipping\"?"));
  EXPECT_THAT(error_text([] { (void)parse(R"("zero_optimization": {"max_live_parameter": 1})"); }),
              HasSubstr("unknown key \"zero_optimization.max_live_parameter\""));
  EXPECT_THAT(error_text([] { (void)parse(R"("zero_optimization": 2)"); }),
              HasSubstr("write an object in braces"));
  EXPECT_THAT(error_text([] { (void)parse(R"("zero_optimization": {"stage": 1.5})"); }),
              HasSubstr("write an integer"));
}

}  // namespace
}  // namespace tandem
