// Every key of the DeepSpeed schema: its default, and what becomes of a value for it (applied, left
// aside with a reason, refused with a reason, or an error). A row of the key table without a case
// here is a failure.
#include <algorithm>
#include <map>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "engine/config/config.hpp"
#include "engine/config/key_table.hpp"
#include "engine/config/key_value.hpp"
#include "runtime/util/error.hpp"
#include "tests/core/config/key_cases.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

#define ZERO "zero_optimization."
#define OPT "optimizer.params."
#define SCH "scheduler.params."

using test::Group;
using test::groups;
using test::KeyCase;
using test::Members;
using ::testing::HasSubstr;

constexpr const char* kNone = "-";

std::string document(const Members& members) {
  std::map<std::string, Members> blocks;
  std::string text;
  const auto add = [&text](const std::string& key, const std::string& json) {
    text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", key, json);
  };
  for (const auto& [path, json] : members) {
    const std::size_t dot = path.find('.');
    if (dot == std::string::npos) {
      add(path, json);
    } else {
      blocks[path.substr(0, dot)].emplace_back(path.substr(dot + 1), json);
    }
  }
  for (const auto& [key, inner] : blocks) {
    add(key, document(inner));
  }
  return "{" + text + "}";
}

Config parse(Members members, std::int64_t world_size = 1) {
  if (std::ranges::none_of(members, [](const auto& m) { return m.first.starts_with("train_"); })) {
    members.emplace_back("train_batch_size", "8");
  }
  return parse_config(document(members), "ds.json", world_size);
}

std::string error_of(const Members& members, std::int64_t world_size = 1) {
  return error_text([&] { (void)parse(members, world_size); });
}

class ConfigKeys : public ::testing::TestWithParam<Group> {
 protected:
  /// The group's document with one key of it set.
  [[nodiscard]] static Members with(const char* path, const char* json) {
    Members members = GetParam().beside;
    std::erase_if(members, [path](const auto& m) { return m.first == path; });
    members.emplace_back(path, json);
    return members;
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, ConfigKeys, ::testing::ValuesIn(groups()),
                         [](const auto& info) { return std::string(info.param.name); });

/// 4e8 is 400000000; spaces do not count.
bool same_value(const std::string& a, const std::string& b) {
  simdjson::dom::parser parser_a;
  simdjson::dom::parser parser_b;
  const simdjson::dom::element x = parser_a.parse(a);
  const simdjson::dom::element y = parser_b.parse(b);
  return x.is_number() && y.is_number() ? double(x) == double(y)
                                        : simdjson::minify(x) == simdjson::minify(y);
}

KeyReport report_of(const Config& config, std::string_view path) {
  const auto found = std::ranges::find(config.keys, path, &KeyReport::path);
  EXPECT_NE(found, config.keys.end()) << path;
  return found == config.keys.end() ? KeyReport() : *found;
}

TEST_P(ConfigKeys, EachValueBecomesWhatTheTableSays) {
  for (const KeyCase& c : GetParam().cases) {
    SCOPED_TRACE(c.path);
    const Members members = with(c.path, c.value);
    if (c.becomes == test::kRefused) {
      const std::string message = error_of(members);
      EXPECT_THAT(message, HasSubstr(fmt::format("{} is refused: ", c.path)));
      EXPECT_THAT(message, HasSubstr(c.part));
      continue;
    }
    const KeyReport report = report_of(parse(members), c.path);
    EXPECT_EQ(report.origin, KeyOrigin::kFile);
    EXPECT_EQ(report.status,
              c.becomes == test::kApplied ? KeyStatus::kApplied : KeyStatus::kNotApplicable);
    EXPECT_THAT(report.reason, HasSubstr(c.part));
    EXPECT_EQ(report.reason.empty(), c.becomes == test::kApplied);
    EXPECT_TRUE(same_value(report.value, c.value)) << report.value;
  }
}

TEST_P(ConfigKeys, RefusedKeysAreFineAtTheirDefault) {
  for (const KeyCase& c : GetParam().cases) {
    if (c.becomes == test::kRefused && c.fallback != std::string_view(kNone)) {
      SCOPED_TRACE(c.path);
      const KeyReport report = report_of(parse(with(c.path, c.fallback)), c.path);
      EXPECT_EQ(report.status, KeyStatus::kNotApplicable);
      EXPECT_EQ(report.reason, "off, as always here");
    }
  }
}

TEST_P(ConfigKeys, DefaultsAreDeepSpeeds) {
  Members beside = GetParam().beside;
  std::erase_if(beside, [](const auto& m) { return !m.first.ends_with(".type"); });
  Config config;
  for (const auto& [path, type] : beside) {
    const std::string name = type.substr(1, type.size() - 2);
    path[0] == 'o' ? choose_optimizer(config, name, "") : choose_schedule(config, name, "");
  }
  const std::vector<KeyRow> rows = key_table(config);
  for (const KeyCase& c : GetParam().cases) {
    SCOPED_TRACE(c.path);
    const auto row = std::ranges::find(rows, c.path, &KeyRow::path);
    ASSERT_NE(row, rows.end()) << "a case without a row";
    if (c.fallback == std::string_view(kNone)) {
      continue;
    }
    EXPECT_TRUE(same_value(json_of(*row), c.fallback)) << json_of(*row);
  }
}

TEST_P(ConfigKeys, EveryRowHasACase) {
  Config config = parse(GetParam().beside);
  const bool adam = config.optimizer.kind == OptimizerKind::kAdam;
  std::set<std::string_view> known;
  for (const Group& group : groups()) {
    const std::string_view name = group.name;
    for (const KeyCase& c : group.cases) {
      const std::string_view path = c.path;
      const bool of_a_type = path.starts_with(OPT) || path.starts_with(SCH);
      if (!of_a_type || name == GetParam().name || (adam && name == "adam")) {
        known.insert(path);
      }
    }
  }
  for (const KeyRow& row : key_table(config)) {
    EXPECT_TRUE(known.contains(row.path)) << row.path;
  }
}

struct BadValue {
  const char* name;
  Members members;
  const char* part;
  std::int64_t world_size = 1;
};
void PrintTo(const BadValue& bad, std::ostream* out) { *out << bad.name; }

class ConfigBadValues : public ::testing::TestWithParam<BadValue> {};

TEST_P(ConfigBadValues, AreOneLineEach) {
  EXPECT_THAT(error_of(GetParam().members, GetParam().world_size), HasSubstr(GetParam().part));
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigBadValues,
    ::testing::Values(
        BadValue{"ReduceOp", {{"gradient_allreduce_op", "\"max\""}}, "mean, sum"},
        BadValue{"CommunicationType", {{"communication_data_type", "\"int8\""}}, "must be one of"},
        BadValue{"Fp16AndBf16", {{"fp16.enabled", "true"}, {"bf16.enabled", "true"}}, "both true"},
        BadValue{"LossScaleBool", {{"fp16.loss_scale", "true"}}, "write a number"},
        BadValue{"LossScaleNegative", {{"fp16.loss_scale", "-1"}}, "at least 0"},
        BadValue{"WindowZero", {{"fp16.loss_scale_window", "0"}}, "at least 1"},
        BadValue{"WindowHalf", {{"fp16.loss_scale_window", "1.5"}}, "write an integer"},
        BadValue{"MinScaleNegative", {{"fp16.min_loss_scale", "-1"}}, "at least 0"},
        BadValue{"HysteresisZero", {{"fp16.hysteresis", "0"}}, "at least 1"},
        BadValue{"StartsBelowTheMinimum",
                 {{"fp16.enabled", "true"},
                  {"fp16.initial_scale_power", "1"},
                  {"fp16.min_loss_scale", "4"}},
                 "starts at 2, below fp16.min_loss_scale 4"},
        BadValue{"OptimizerStatesAlone", {{"bf16.bf16_optimizer_states", "true"}}, "refused"},
        BadValue{"Stage", {{ZERO "stage", "4"}}, "at most 3"},
        BadValue{"BucketNegative", {{ZERO "reduce_bucket_size", "-1"}}, "at least 0"},
        BadValue{"BucketOdd", {{ZERO "allgather_bucket_size", "500000001"}}, "must be even"},
        BadValue{"LegacyStage1", {{ZERO "legacy_stage1", "true"}}, "refused"},
        BadValue{"Device", {{ZERO "offload_optimizer.device", "\"disk\""}}, "none, cpu, nvme"},
        BadValue{"WeightsOnNvmeBelowStage3",
                 {{ZERO "stage", "2"}, {ZERO "offload_param.device", "\"nvme\""}},
                 "at stage 2"},
        BadValue{"WeightsOnNvmeAlone",
                 {{ZERO "stage", "3"}, {ZERO "offload_param.device", "\"nvme\""}},
                 "write \"nvme\" for both"},
        BadValue{"TwoFilesOnNvme",
                 {{ZERO "stage", "3"},
                  {ZERO "offload_param.device", "\"nvme\""},
                  {ZERO "offload_param.nvme_path", "\"/a\""},
                  {ZERO "offload_optimizer.device", "\"nvme\""},
                  {ZERO "offload_optimizer.nvme_path", "\"/b\""}},
                 "a rank has one file"},
        BadValue{"JointUpdatesOfWeightsOnNvme",
                 {{"optimizer.type", "\"Lamb\""},
                  {ZERO "stage", "3"},
                  {ZERO "offload_param.device", "\"nvme\""},
                  {ZERO "offload_optimizer.device", "\"nvme\""}},
                 "whole gradients in memory"},
        BadValue{"RatioAboveOne", {{ZERO "offload_optimizer.ratio", "1.1"}}, "at most 1"},
        BadValue{"RatioWithoutStage3",
                 {{ZERO "stage", "2"},
                  {ZERO "offload_optimizer.device", "\"cpu\""},
                  {ZERO "offload_optimizer.ratio", "0.9"}},
                 "needs stage 3"},
        BadValue{"NoCores", {{ZERO "offload_optimizer.cpuadam_cores_perc", "0"}}, "above 0"},
        BadValue{"Prescale",
                 {{ZERO "stage", "2"}, {"prescale_gradients", "true"}},
                 "with stage 2 and reduce_scatter"},
        BadValue{"Predivide",
                 {{ZERO "stage", "3"}, {"gradient_predivide_factor", "2"}},
                 "with stage 3 and reduce_scatter"},
        BadValue{"ParamType", {{"data_types.param_dtype", "\"bf16\""}}, "make it \"fp32\""},
        BadValue{
            "AccumulationType", {{"data_types.grad_accum_dtype", "\"fp8\""}}, "fp32, fp16, bf16"},
        BadValue{"Ranks", {{"data_parallel_size", "3"}}, "the world size 2", 2},
        BadValue{"RanksOfGroups",
                 {{"data_parallel_size", "4"}, {"sequence_parallel_size", "2"}},
                 "sequence_parallel_size 2 makes it 2",
                 4},
        BadValue{"Groups",
                 {{"sequence_parallel_size", "3"}},
                 "sequence_parallel_size is 3, and 2 ranks cannot be cut into groups of that size",
                 2},
        BadValue{"BatchOfGroups",
                 {{"sequence_parallel_size", "2"},
                  {"train_batch_size", "3"},
                  {"train_micro_batch_size_per_gpu", "1"}},
                 "groups of 2 ranks 2",
                 4},
        BadValue{"TagValidation", {{"checkpoint.tag_validation", "\"Maybe\""}}, "must be one of"},
        BadValue{"NesterovAlone",
                 {{"optimizer.type", "\"SGD\""}, {OPT "nesterov", "true"}},
                 "needs a momentum above 0 and dampening 0"},
        BadValue{"NesterovDampened",
                 {{"optimizer.type", "\"SGD\""},
                  {OPT "nesterov", "true"},
                  {OPT "momentum", "0.9"},
                  {OPT "dampening", "0.1"}},
                 "momentum 0.9 and dampening 0.1"},
        BadValue{"ParameterOfAdamForSgd",
                 {{"optimizer.type", "\"SGD\""}, {OPT "betas", "[0.9, 0.99]"}},
                 "unknown key \"optimizer.params.betas\""},
        BadValue{"NearMomentum",
                 {{"optimizer.type", "\"SGD\""}, {OPT "momentun", "0.9"}},
                 "did you mean \"momentum\"?"},
        BadValue{"NearCoefficient",
                 {{"optimizer.type", "\"Lamb\""}, {OPT "max_coef", "3"}},
                 "did you mean \"max_coeff\"?"},
        BadValue{"CoefficientsTheWrongWay",
                 {{"optimizer.type", "\"Lamb\""}, {OPT "min_coeff", "11"}},
                 "min_coeff is 11 and max_coeff 10"},
        BadValue{"CoefficientNegative",
                 {{"optimizer.type", "\"Lamb\""}, {OPT "max_coeff", "-1"}},
                 "at least 0"},
        BadValue{"MomentumOfLamb",
                 {{"optimizer.type", "\"Lamb\""}, {OPT "momentum", "0.9"}},
                 "unknown key \"optimizer.params.momentum\""},
        BadValue{"MuonMomentumOne",
                 {{"optimizer.type", "\"Muon\""}, {OPT "momentum", "1"}},
                 "a momentum below 1"},
        BadValue{"MuonRateZero",
                 {{"optimizer.type", "\"Muon\""}, {OPT "muon_lr", "0"}},
                 "a rate above 0"},
        BadValue{"MuonMethod",
                 {{"optimizer.type", "\"Muon\""}, {OPT "ns_method", "\"gramm\""}},
                 "did you mean \"gram\"?"},
        BadValue{"MuonPartlyOnADevice",
                 {{"optimizer.type", "\"Muon\""},
                  {ZERO "stage", "3"},
                  {ZERO "offload_optimizer.device", "\"cpu\""},
                  {ZERO "offload_optimizer.ratio", "0.5"}},
                 "Muon updates on the host alone"},
        BadValue{"CpuOffloadTwice",
                 {{ZERO "cpu_offload", "true"}, {ZERO "offload_optimizer.pin_memory", "true"}},
                 "\"zero_optimization.offload_optimizer\" are two names of one key"},
        BadValue{"CpuOffloadParamTwice",
                 {{ZERO "cpu_offload_param", "true"}, {ZERO "offload_param.device", "\"cpu\""}},
                 "two names of one key"},
        BadValue{"GatherTwice",
                 {{ZERO "stage3_gather_fp16_weights_on_model_save", "true"},
                  {ZERO "stage3_gather_16bit_weights_on_model_save", "true"}},
                 "two names of one key"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ConfigTypes, OptimizersInAnyCase) {
  for (const auto& [type, kind] : {std::pair{"adam", OptimizerKind::kAdam},
                                   {"AdamW", OptimizerKind::kAdam},
                                   {"ADAMW", OptimizerKind::kAdam},
                                   {"SGD", OptimizerKind::kSgd},
                                   {"sgd", OptimizerKind::kSgd},
                                   {"Lion", OptimizerKind::kLion},
                                   {"lion", OptimizerKind::kLion},
                                   {"adagrad", OptimizerKind::kAdagrad},
                                   {"Adagrad", OptimizerKind::kAdagrad},
                                   {"Lamb", OptimizerKind::kLamb},
                                   {"LAMB", OptimizerKind::kLamb},
                                   {"Muon", OptimizerKind::kMuon},
                                   {"muon", OptimizerKind::kMuon}}) {
    const Config config = parse({{"optimizer.type", fmt::format("\"{}\"", type)}});
    EXPECT_EQ(config.optimizer.kind, kind) << type;
    EXPECT_EQ(config.optimizer.type, type);
    EXPECT_NE(resolved_json(config).find(fmt::format("\"type\": \"{}\"", type)), std::string::npos);
    EXPECT_EQ(resolved_json(parse_config(resolved_json(config), "again", 1)),
              resolved_json(config));
  }
}

TEST(ConfigTypes, OptimizersThatAreNotHere) {
  for (const char* type : {"OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam", "MuAdamW", "MuSGD",
                           "RMSprop", "NAdam"}) {
    EXPECT_THAT(error_of({{"optimizer.type", fmt::format("\"{}\"", type)}}),
                HasSubstr(fmt::format("optimizer.type \"{}\" is refused: ", type)));
  }
  EXPECT_THAT(error_of({{"optimizer.type", "\"Lyon\""}}), HasSubstr("did you mean \"Lion\"?"));
}

TEST(ConfigTypes, Schedulers) {
  EXPECT_THAT(error_of({{"scheduler.type", "\"CosineAnnealingLR\""}}),
              HasSubstr("is refused: PyTorch's schedulers"));
  EXPECT_THAT(error_of({{"scheduler.type", "\"WarmupCosinLR\""}}),
              HasSubstr("did you mean \"WarmupCosineLR\"?"));
  const Members cycle = {{"scheduler.type", "\"OneCycle\""},
                         {SCH "cycle_min_lr", "0"},
                         {SCH "cycle_max_lr", "1"},
                         {SCH "cycle_momentum", "true"},
                         {"optimizer.type", "\"SGD\""}};
  EXPECT_THAT(report_of(parse(cycle), SCH "cycle_momentum").reason, HasSubstr("has none"));
}

TEST(ConfigTypes, KeysThatOthersLeaveWithoutEffect) {
  const Config fixed =
      parse({{"fp16.enabled", "true"}, {"fp16.loss_scale", "64"}, {"fp16.hysteresis", "1"}});
  EXPECT_EQ(report_of(fixed, "fp16.loss_scale").status, KeyStatus::kApplied);
  EXPECT_EQ(report_of(fixed, "fp16.hysteresis").reason, "fp16.loss_scale is a fixed scale");
  const Config stage2 =
      parse({{ZERO "stage", "2"}, {ZERO "stage3_param_persistence_threshold", "10"}});
  EXPECT_THAT(report_of(stage2, ZERO "stage3_param_persistence_threshold").reason,
              HasSubstr("below stage 3"));
}

}  // namespace
}  // namespace tandem
