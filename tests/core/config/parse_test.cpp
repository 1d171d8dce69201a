// The DeepSpeed JSON parser: the two example configurations, what hand-written files contain, and
// each kind of mistake.
#include <filesystem>
#include <fstream>
#include <ostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "engine/config/config.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kCifar = R"({
  "train_batch_size": 16,
  "steps_per_print": 2000,
  "optimizer": {"type": "Adam",
    "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
  "scheduler": {"type": "WarmupLR",
    "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}},
  "gradient_clipping": 1.0,
  "prescale_gradients": false,
  "bf16": {"enabled": false},
  "fp16": {"enabled": true, "fp16_master_weights_and_grads": false, "loss_scale": 0,
    "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1, "initial_scale_power": 15},
  "wall_clock_breakdown": false,
  "zero_optimization": {"stage": 2, "allgather_partitions": true, "reduce_scatter": true,
    "allgather_bucket_size": 50000000, "reduce_bucket_size": 50000000, "overlap_comm": true,
    "contiguous_gradients": true, "cpu_offload": false}
})";

constexpr std::string_view kSuperOffload = R"({
    "train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "bf16": { "enabled": true },
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": false,
        "reduce_bucket_size": 4e8,
        "sub_group_size": 4e8,
        "offload_optimizer": {
            "device": "cpu",
            "pin_memory": true,
            "ratio": 0.90,
            "super_offload": true,
            "cpuadam_cores_perc": 0.90
        }
    },
    "wall_clock_breakdown": true
})";

/// The message of the error that parsing `text` ends with.
std::string error_of(std::string_view text, const ParseOptions& options = {}) {
  return error_text([&] { (void)parse_config(text, "ds.json", options); });
}

Config parse(std::string_view text, std::int64_t world_size = 1) {
  return parse_config(text, "ds.json", world_size);
}

std::string with_batch(std::string_view members) {
  return "{\"train_batch_size\": 4, " + std::string(members) + "}";
}

TEST(ConfigParse, CifarExample) {
  const Config c = parse(kCifar, 2);
  EXPECT_EQ(c.batch.train_batch_size, 16);
  EXPECT_EQ(c.batch.micro_batch_size, 8);
  EXPECT_EQ(c.batch.accumulation_steps, 1);
  EXPECT_TRUE(c.optimizer.given);
  EXPECT_TRUE(c.optimizer.adam_w_mode) << "Adam means decoupled decay unless adam_w_mode is false";
  EXPECT_EQ(c.optimizer.betas, (std::array{0.8, 0.999}));
  EXPECT_EQ(c.optimizer.weight_decay, 3e-7);
  EXPECT_EQ(c.schedule.type, ScheduleType::kWarmup);
  EXPECT_EQ(c.schedule.warmup_type, WarmupShape::kLog);
  EXPECT_EQ(c.precision(), Precision::kF16);
  EXPECT_EQ(c.fp16.initial_scale_power, 15);
  EXPECT_EQ(c.fp16.loss_scale_window, 500);
  EXPECT_EQ(c.zero.stage, 2);
  EXPECT_EQ(c.zero.overlap_comm, true);
  EXPECT_EQ(c.zero.reduce_bucket_size, 50'000'000);
  EXPECT_EQ(c.zero.offload_optimizer.device, "none");
  EXPECT_EQ(c.steps_per_print, 2000);
}

TEST(ConfigParse, SuperOffloadExample) {
  const Config c = parse(kSuperOffload);
  EXPECT_EQ(c.batch.micro_batch_size, 4);
  EXPECT_EQ(c.precision(), Precision::kBF16);
  EXPECT_EQ(c.zero.stage, 3);
  EXPECT_EQ(c.zero.overlap_comm, false);
  EXPECT_EQ(c.zero.sub_group_size, 400'000'000);
  EXPECT_EQ(c.zero.offload_optimizer.device, "cpu");
  EXPECT_EQ(c.zero.offload_optimizer.ratio, 0.9);
  EXPECT_TRUE(c.zero.offload_optimizer.super_offload);
  EXPECT_EQ(c.zero.offload_optimizer.cpuadam_cores_perc, 0.9);
  EXPECT_EQ(c.gradient_clipping, 1.0);
  EXPECT_FALSE(c.optimizer.given);
  EXPECT_EQ(c.schedule.type, ScheduleType::kConstant);
}

TEST(ConfigParse, Defaults) {
  const Config c = parse(R"({"train_batch_size": 1})");
  EXPECT_EQ(c.optimizer.lr, 1e-3);
  EXPECT_EQ(c.optimizer.betas, (std::array{0.9, 0.999}));
  EXPECT_EQ(c.optimizer.eps, 1e-8);
  EXPECT_EQ(c.optimizer.weight_decay, 0);
  EXPECT_TRUE(c.optimizer.bias_correction);
  EXPECT_EQ(c.zero.stage, 0);
  EXPECT_EQ(c.zero.overlap_comm, false) << "resolved to true for stage 3 only";
  EXPECT_EQ(parse(with_batch(R"("zero_optimization": {"stage": 3})")).zero.overlap_comm, true);
  EXPECT_EQ(c.steps_per_print, std::nullopt);
  EXPECT_EQ(c.fp16.initial_scale_power, 16);
  EXPECT_EQ(c.zero.offload_optimizer.cpuadam_cores_perc, 0.8);
}

TEST(ConfigParse, CommentsAndTrailingCommas) {
  const Config c = parse(
      "\xEF\xBB\xBF// first\n{ # second\n \"train_batch_size\": 8, /* third,\n */\n"
      " \"zero_optimization\": {\"stage\": 3, // \"stage\": 2\n },\n"
      " \"tensorboard\": {\"output_path\": \"a//b#c,}\",},\n}\n# last");
  EXPECT_EQ(c.batch.train_batch_size, 8);
  EXPECT_EQ(c.zero.stage, 3);
  EXPECT_THAT(report_lines(c), Contains(StartsWith("tensorboard.output_path: \"a//b#c,}\"")));
}

TEST(ConfigParse, NumbersAsPeopleWriteThem) {
  const Config c = parse(R"({"train_batch_size": 8.0, "gradient_clipping": 1,
    "zero_optimization": {"stage": "3", "reduce_bucket_size": "5e7", "sub_group_size": 1E9,
                          "overlap_comm": "true", "reduce_scatter": 1},
    "fp16": {"enabled": "false"}})");
  EXPECT_EQ(c.batch.train_batch_size, 8);
  EXPECT_EQ(c.zero.stage, 3);
  EXPECT_EQ(c.zero.reduce_bucket_size, 50'000'000);
  EXPECT_EQ(c.zero.sub_group_size, 1'000'000'000);
  EXPECT_EQ(c.zero.overlap_comm, true);
  EXPECT_TRUE(c.zero.reduce_scatter);
  EXPECT_FALSE(c.fp16.enabled);
}

TEST(ConfigParse, AutoMeansTheDefaultAndIsReported) {
  const Config c = parse(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "offload_param": null}})",
                         2);
  EXPECT_EQ(c.batch.train_batch_size, 4);
  EXPECT_EQ(c.batch.accumulation_steps, 1);
  EXPECT_EQ(c.gradient_clipping, 1.0);
  EXPECT_EQ(c.precision(), Precision::kF32);
  EXPECT_THAT(report_lines(c), Contains("optimizer.params.lr: 0.001 (auto)  applied"));
  EXPECT_THAT(report_lines(c), Contains("train_batch_size: 4 (auto)  applied"));
}

TEST(ConfigParse, OldNames) {
  const Config c = parse(R"({"train_batch_size": 1, "bfloat16": {"enabled": true},
    "zero_optimization": {"stage": 2, "cpu_offload": true, "cpu_offload_use_pin_memory": false}})");
  EXPECT_EQ(c.precision(), Precision::kBF16);
  EXPECT_EQ(c.zero.offload_optimizer.device, "cpu");
  EXPECT_FALSE(c.zero.offload_optimizer.pin_memory);
  EXPECT_THAT(error_of(with_batch(R"("bf16": {"enabled": true}, "bfloat16": {"enabled": true})")),
              HasSubstr("two names of one key"));
  EXPECT_THAT(error_of(with_batch(R"("zero_optimization": {"cpu_offload": true,
                                      "offload_optimizer": {"device": "cpu"}})")),
              HasSubstr("two names of one key"));
}

TEST(ConfigParse, AdamModes) {
  const auto optimizer = [](std::string_view type, std::string_view mode) {
    return parse(with_batch(fmt::format(
        R"("optimizer": {{"type": "{}", "params": {{"adam_w_mode": {}}}}})", type, mode)));
  };
  EXPECT_FALSE(optimizer("Adam", "false").optimizer.adam_w_mode);
  EXPECT_TRUE(optimizer("adam", "true").optimizer.adam_w_mode);
  const Config adamw = optimizer("AdamW", "false");
  EXPECT_TRUE(adamw.optimizer.adam_w_mode) << "as DeepSpeed";
  EXPECT_THAT(report_lines(adamw), Contains(StartsWith("optimizer.params.adam_w_mode: true  not "
                                                       "applicable: type AdamW")));
}

TEST(ConfigParse, ReportSaysWhatBecameOfEachKey) {
  const std::vector<std::string> lines = report_lines(parse(kSuperOffload));
  EXPECT_EQ(lines.size(), 13U) << "every key of the file, once";
  EXPECT_THAT(lines, Contains("zero_optimization.stage: 3  applied"));
  EXPECT_THAT(lines, Contains("train_batch_size: 4  applied"));
  EXPECT_THAT(
      lines,
      Contains(StartsWith("zero_optimization.reduce_bucket_size: 400000000  not applicable: ")));
}

TEST(ConfigParse, ReportNamesKeysThatOtherKeysLeaveWithoutEffect) {
  const std::vector<std::string> off = report_lines(parse(with_batch(
      R"("fp16": {"enabled": false, "hysteresis": 2},
         "zero_optimization": {"offload_optimizer": {"device": "none", "super_offload": false}})")));
  EXPECT_THAT(off, Contains("fp16.enabled: false  applied"));
  EXPECT_THAT(off, Contains("fp16.hysteresis: 2  not applicable: fp16.enabled is false"));
  EXPECT_THAT(off,
              Contains(StartsWith("zero_optimization.offload_optimizer.device: \"none\"  not")));
  EXPECT_THAT(
      off, Contains(StartsWith("zero_optimization.offload_optimizer.super_offload: false  not")));
  EXPECT_THAT(report_lines(parse(kCifar)), Contains("fp16.hysteresis: 2  applied"));
  EXPECT_THAT(report_lines(parse(kSuperOffload)),
              Contains("zero_optimization.offload_optimizer.super_offload: true  applied"));
}

TEST(ConfigParse, ResolvedJsonReadsBackTheSame) {
  for (const std::string_view text : {kCifar, kSuperOffload}) {
    const std::string once = resolved_json(parse(text));
    simdjson::dom::parser parser;
    simdjson::dom::element document;
    ASSERT_EQ(parser.parse(once).get(document), simdjson::SUCCESS) << once;
    EXPECT_EQ(resolved_json(parse(once)), once);
  }
  const std::string resolved = resolved_json(parse(kSuperOffload));
  EXPECT_THAT(resolved, AllOf(HasSubstr("\"train_micro_batch_size_per_gpu\": 4"),
                              HasSubstr("\"sub_group_size\": 400000000"),
                              HasSubstr("\"gradient_clipping\": 1,")));
}

TEST(ConfigParse, Overrides) {
  ParseOptions options;
  options.overrides = {{"zero_optimization.stage", "3", "--stage"},
                       {"bf16.enabled", "true", "--dtype"},
                       {"optimizer.params.lr", "1e-5", "--lr"},
                       {"train_micro_batch_size_per_gpu", "2", "--batch_size"}};
  const Config c = parse_config(R"({"train_batch_size": "auto", "gradient_accumulation_steps": 3,
                                    "bf16": {"enabled": "auto"}})",
                                "ds.json", options);
  EXPECT_EQ(c.zero.stage, 3);
  EXPECT_TRUE(c.bf16.enabled);
  EXPECT_EQ(c.optimizer.lr, 1e-5);
  EXPECT_TRUE(c.optimizer.given);
  EXPECT_EQ(c.batch.train_batch_size, 6);
  EXPECT_EQ(parse_config(with_batch(R"("zero_optimization": {"stage": 3.0})"), "ds.json",
                         {.overrides = {{"zero_optimization.stage", "3", "--stage"}}})
                .zero.stage,
            3)
      << "the same value twice is no contradiction";
  options.overrides = {{"zero_optimization.stage", "3", "--stage"}};
  EXPECT_THAT(error_of(with_batch("\n\"zero_optimization\": {\n\"stage\": 2}"), options),
              HasSubstr("ds.json:3: zero_optimization.stage is 2 but --stage says 3"));
  options.overrides = {{"zero_optimization.stage", "4", "--stage"}};
  EXPECT_THAT(error_of(with_batch("\"bf16\": {}"), options),
              HasSubstr("--stage: zero_optimization.stage is 4"));
}

struct BadInput {
  const char* name;
  std::string text;
  std::vector<std::string> expected;
};
void PrintTo(const BadInput& one, std::ostream* out) { *out << one.name; }

class ConfigRejects : public testing::TestWithParam<BadInput> {};

TEST_P(ConfigRejects, WithOneClearLine) {
  const std::string message = error_of(GetParam().text);
  EXPECT_THAT(message, StartsWith("[config] ds.json"));
  for (const std::string& part : GetParam().expected) {
    EXPECT_THAT(message, HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigRejects,
    testing::Values(
        BadInput{"UnknownTop",
                 "{\n\"train_batch_sise\": 4}",
                 {"ds.json:2", "\"train_batch_sise\"", "did you mean \"train_batch_size\"?"}},
        BadInput{"UnknownNested",
                 with_batch(
                     "\n\"zero_optimization\": {\n\"offload_optimizer\": {\n\"devise\": \"cpu\"}}"),
                 {"ds.json:4", "\"zero_optimization.offload_optimizer.devise\"",
                  "did you mean \"device\"?"}},
        BadInput{
            "WrongBlock",
            with_batch("\"offload_optimizer\": {\"device\": \"cpu\"}"),
            {"\"offload_optimizer\"", "did you mean \"zero_optimization.offload_optimizer\"?"}},
        BadInput{"WrongBlockLeaf",
                 with_batch("\"super_offload\": true"),
                 {"did you mean \"zero_optimization.offload_optimizer.super_offload\"?"}},
        BadInput{"UnknownOptimizerParameter",
                 with_batch("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"beta\": 1}}"),
                 {"\"optimizer.params.beta\"", "did you mean \"betas\"?"}},
        BadInput{"UnknownSchedulerParameter",
                 with_batch(
                     "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_steps\": 1}}"),
                 {"\"scheduler.params.warmup_steps\"", "\"warmup_num_steps\""}},
        BadInput{"ParameterOfAnotherScheduler",
                 with_batch(
                     "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"cycle_min_lr\": 1}}"),
                 {"unknown key \"scheduler.params.cycle_min_lr\""}},
        BadInput{"Doubled",
                 "{\"train_batch_size\": 4,\n\"bf16\": {\"enabled\": true,\n\"enabled\": true}}",
                 {"ds.json:3", "\"bf16.enabled\" is given twice (first in line 2)"}},
        BadInput{"FloatForInt",
                 "{\"train_batch_size\": 4.5}",
                 {"train_batch_size is 4.5", "write an integer"}},
        BadInput{"StringAtTop",
                 "{\"train_batch_size\": \"4\"}",
                 {"train_batch_size is \"4\"", "without quotes"}},
        BadInput{"BoolForNumber",
                 with_batch("\"gradient_clipping\": true"),
                 {"gradient_clipping is true", "write a number"}},
        BadInput{"NumberForBool",
                 with_batch("\"wall_clock_breakdown\": 1"),
                 {"wall_clock_breakdown is 1", "true or false"}},
        BadInput{"ScalarForBlock",
                 with_batch("\"zero_optimization\": 3"),
                 {"zero_optimization is a number", "write an object"}},
        BadInput{"NumberForString",
                 with_batch("\"zero_optimization\": {\"offload_optimizer\": {\"device\": 3}}"),
                 {"write a string"}},
        BadInput{"BetasTooFew",
                 with_batch("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9]}}"),
                 {"optimizer.params.betas is [0.9]", "two numbers"}},
        BadInput{
            "BetaOutOfRange",
            with_batch("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9, 1.0]}}"),
            {"below 1"}},
        BadInput{"StageOutOfRange",
                 with_batch("\"zero_optimization\": {\"stage\": 4}"),
                 {"zero_optimization.stage is 4", "at least 0 and at most 3"}},
        BadInput{"RatioOutOfRange",
                 with_batch("\"zero_optimization\": {\"offload_optimizer\": {\"ratio\": 1.5}}"),
                 {"ratio is 1.5", "at most 1"}},
        BadInput{"CoresOutOfRange",
                 with_batch(
                     "\"zero_optimization\": {\"offload_optimizer\": {\"cpuadam_cores_perc\": 0}}"),
                 {"above 0 and at most 1"}},
        BadInput{"NegativeClipping", with_batch("\"gradient_clipping\": -1"), {"at least 0"}},
        BadInput{"NegativeLr",
                 with_batch("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": -1}}"),
                 {"optimizer.params.lr is -1"}},
        BadInput{"BatchZero", "{\"train_batch_size\": 0}", {"train_batch_size is 0", "at least 1"}},
        BadInput{"IntegerTooBig",
                 with_batch("\"zero_optimization\": {\"sub_group_size\": 1e30}"),
                 {"write an integer"}},
        BadInput{
            "UnknownDevice",
            with_batch("\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"gpu\"}}"),
            {"device is \"gpu\"", "none, cpu, nvme", "did you mean \"cpu\"?"}},
        BadInput{"Nvme",
                 with_batch("\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\"}}"),
                 {"offload_param.device is \"nvme\" at stage 0", "write stage 3"}},
        BadInput{"UnknownOptimizer",
                 with_batch("\"optimizer\": {\"type\": \"Adan\"}"),
                 {"unknown optimizer.type \"Adan\"", "did you mean \"Adam\"?"}},
        BadInput{"OptimizerNotHere",
                 with_batch("\"optimizer\": {\"type\": \"OneBitAdam\"}"),
                 {"\"OneBitAdam\" is refused",
                  "use one of AdamW, Adam, SGD, Lion, Adagrad, Lamb, Muon"}},
        BadInput{"OptimizerWithoutType",
                 with_batch("\"optimizer\": {\"params\": {}}"),
                 {"optimizer.type is missing"}},
        BadInput{"UnknownScheduler",
                 with_batch("\"scheduler\": {\"type\": \"WarmUpLR \"}"),
                 {"unknown scheduler.type", "did you mean \"WarmupLR\"?"}},
        BadInput{"SchedulerWithoutTotal",
                 with_batch("\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {}}"),
                 {"scheduler.params.total_num_steps is missing", "WarmupDecayLR needs it"}},
        BadInput{
            "WarmupStepsNegative",
            with_batch(
                "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": -1}}"),
            {"warmup_num_steps is -1"}},
        BadInput{"WarmupType",
                 with_batch("\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": "
                            "\"cosine\"}}"),
                 {"warmup_type is \"cosine\"", "\"log\" or \"linear\""}},
        BadInput{
            "MaxGradNorm",
            with_batch("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"max_grad_norm\": -1}}"),
            {"max_grad_norm is -1", "at least 0"}},
        BadInput{
            "RefusedBlock", with_batch("\"pipeline\": {\"stages\": 2}"), {"pipeline is refused"}},
        BadInput{"TwoPrecisions",
                 with_batch("\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}"),
                 {"both true"}},
        BadInput{"MissingComma",
                 "{\"train_batch_size\": 4\n \"bf16\": {}}",
                 {"ds.json:2:2", "',' or '}' is expected"}},
        BadInput{"MissingColon", "{\"train_batch_size\" 4}", {"':' is expected"}},
        BadInput{"MissingQuote", "{\"train_batch_size: 4}", {"no closing quote"}},
        BadInput{
            "PythonTrue", with_batch("\"bf16\": {\"enabled\": True}"), {"\"True\" is no value"}},
        BadInput{"CutOff", "{\"train_batch_size\": 4, \"bf16\": {", {"ds.json:1"}},
        BadInput{"Empty", "", {"a value is expected"}},
        BadInput{"NotAnObject", "[1, 2]", {"the document is a list"}},
        BadInput{"TwoDocuments", "{\"train_batch_size\": 4} {}", {"the document ends before this"}},
        BadInput{"BadNumber", "{\"train_batch_size\": 4x}", {"not valid JSON"}},
        BadInput{"HugeNumber", "{\"gradient_clipping\": 1e999}", {"not valid JSON"}},
        BadInput{"TooDeep", std::string(100, '['), {"nested deeper"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ConfigParse, RefusedBlocksThatAreOffAreAccepted) {
  const Config c = parse(with_batch(R"("amp": {"enabled": false, "opt_level": "O1"}, "pipeline": {},
                                       "elasticity": {"enabled": false}, "sparse_gradients": false)"));
  EXPECT_THAT(report_lines(c),
              Contains("sparse_gradients: false  not applicable: off, as always here"));
}

TEST(ConfigFile, ReadsAndNamesWhatItCannotRead) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "config_file_test";
  std::filesystem::create_directories(dir);
  const std::string good = (dir / "good.json").string();
  std::ofstream(good) << kSuperOffload;
  EXPECT_EQ(load_config(good, 2).batch.micro_batch_size, 2);
  const auto message = [](const std::string& path) {
    return error_text([&] { (void)load_config(path); });
  };
  EXPECT_THAT(message((dir / "absent.json").string()),
              AllOf(HasSubstr("absent.json"), HasSubstr("No such file or directory")));
  EXPECT_THAT(message(dir.string()), HasSubstr("Is a directory"));
  std::ofstream(dir / "long.json") << std::string(2 << 20, ' ');
  EXPECT_THAT(message((dir / "long.json").string()), HasSubstr("longer than 1 MiB"));
  std::filesystem::remove_all(dir);
}

TEST(ConfigParse, ManyKeysAreScannedInLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 60000; ++i) {
    text += fmt::format("\"member_{}\": 1,\n", i);
  }
  EXPECT_THAT(error_of(text + "}"), HasSubstr("hundreds of its names are none of DeepSpeed's"));
}

}  // namespace
}  // namespace tandem
