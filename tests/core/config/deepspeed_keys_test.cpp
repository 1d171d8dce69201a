// Every key that DeepSpeed reads stands in a list of the table: a row, an old name, or a key that
// is left aside. deepspeed_keys.txt is made from DeepSpeed's sources by tools/deepspeed_keys.py.
// And what becomes of names that neither knows.
#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/config/key_table.hpp"
#include "engine/config/unknown_keys.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The rows for any type of optimizer and schedule.
std::vector<KeyRow> rows_of(Config& config) {
  choose_optimizer(config, "AdamW", "");
  choose_schedule(config, "WarmupLR", "");
  return key_table(config);
}

bool is_listed(const std::string& path, const std::vector<KeyRow>& rows) {
  const auto begins = [&](std::string_view known) {
    // The path lies in a block that is one row, or is a block whose members are rows.
    return path == known || path.starts_with(std::string(known) + ".") ||
           known.starts_with(path + ".");
  };
  if (path == "optimizer.type" || path == "scheduler.type") {
    return true;
  }
  std::string part = path;
  while (left_key(part) == nullptr && part.find('.') != std::string::npos) {
    part.resize(part.rfind('.'));
  }
  return left_key(part) != nullptr || std::ranges::any_of(rows, begins, &KeyRow::path) ||
         std::ranges::any_of(key_aliases(), begins, &KeyAlias::old_path);
}

std::vector<std::string> unlisted(const std::vector<std::string>& keys) {
  Config config;
  const std::vector<KeyRow> rows = rows_of(config);
  std::vector<std::string> found;
  std::ranges::copy_if(keys, std::back_inserter(found),
                       [&](const std::string& key) { return !is_listed(key, rows); });
  return found;
}

std::vector<std::string> deepspeed_keys() {
  std::ifstream file(test::source_path("tests/core/config/deepspeed_keys.txt"));
  std::vector<std::string> keys;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with('#')) {
      keys.push_back(line);
    }
  }
  return keys;
}

TEST(DeepSpeedKeys, AreAllListed) {
  std::vector<std::string> keys = deepspeed_keys();
  ASSERT_GT(keys.size(), 200U);
  EXPECT_THAT(unlisted(keys), IsEmpty());
  keys.insert(keys.end(), {"batch_normaliser", "zero_optimization.stage4_size"});
  EXPECT_EQ(unlisted(keys),
            (std::vector<std::string>{"batch_normaliser", "zero_optimization.stage4_size"}));
}

Config parse(const std::string& members) {
  return parse_config(fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, {}}})", members),
                      "ds.json", 1);
}

TEST(UnknownKeys, ThatAreNearToNothingArePassedOverWhereDeepSpeedDoes) {
  for (const char* members :
       {R"("min_lr": 1e-5)", R"("validation_epochs": 3)", R"("log": {"dir": "x"})",
        R"("monitor_config": {"enabled": true, "tag": "x", "csv_monitor": {"enabled": true}})",
        R"("dataset": "alpaca")", R"("eval_interval": 100)", R"("cuda_visible_devices": null)",
        R"("my_team": ["a"])", R"("aio": {"block_size": 1048576, "my_note": 1})",
        R"("optimizer": {"type": "AdamW", "owner": "me"})",
        R"("activation_checkpointing": {"window": 3})"}) {
    SCOPED_TRACE(members);
    const Config config = parse(members);
    EXPECT_THAT(report_lines(config), Contains(HasSubstr("  not applicable: ")));
    EXPECT_EQ(parse_config(resolved_json(config), "again", 1).zero.stage, 0);
  }
  const Config config =
      parse(R"("min_lr": 1e-5, "zero_optimization": {"stage": 3}, "patience": 3)");
  EXPECT_EQ(config.zero.stage, 3);
  EXPECT_EQ(unknown_keys_note(config),
            "ds.json: \"min_lr\", \"patience\": unknown to DeepSpeed and here; passed over, as "
            "DeepSpeed does");
  EXPECT_THAT(report_lines(config),
              Contains("min_lr: 1e-05  not applicable: unknown to DeepSpeed and here; passed over, "
                       "as DeepSpeed does"));
  EXPECT_EQ(unknown_keys_note(parse(R"("seed": 3)")), "") << "known, and left aside";
}

TEST(UnknownKeys, AFileWithoutAnyOfDeepSpeedsIsAnother) {
  EXPECT_THAT(error_text([] {
                (void)parse_config(R"({"_name_or_path": "x", "model_type": "llama"})",
                                   "config.json", {.batch_required = false});
              }),
              HasSubstr("config.json: all of its names are none of DeepSpeed's"));
}

TEST(UnknownKeys, SlipsAndKeysInTheWrongPlaceAreErrors) {
  const auto said = [](const std::string& members) {
    return error_text([&] { (void)parse(members); });
  };
  for (const auto& [members, hint] :
       {std::pair{R"("gradient_acumulation_steps": 2)", "gradient_accumulation_steps"},
        {R"("zero_optimisation": {"stage": 3})", "zero_optimization"},
        {R"("zero": {"stage": 3})", "zero_optimization"},
        {R"("optimiser": {"type": "AdamW"})", "optimizer"},
        {R"("batch_size": 4)", "train_batch_size"},
        {R"("bf_16": {"enabled": true})", "bf16"},
        {R"("stage": 3)", "zero_optimization.stage"},
        {R"("offload_param": {"device": "cpu"})", "zero_optimization.offload_param"},
        {R"("warmup_num_steps": 3, "scheduler": {"type": "WarmupLR", "params": {}})",
         "scheduler.params.warmup_num_steps"},
        {R"("aio": {"block_sise": 1048576})", "block_size"},
        {R"("flops_profiler": {"enable": true})", "enabled"},
        // Blocks in which DeepSpeed, too, refuses what it does not know.
        {R"("zero_optimization": {"my_note": 1})", "\"zero_optimization.my_note\""},
        {R"("fp16": {"colour": 1})", "\"fp16.colour\""},
        {R"("tensorboard": {"colour": 1})", "\"tensorboard.colour\""}}) {
    SCOPED_TRACE(members);
    EXPECT_THAT(said(members), HasSubstr("unknown key"));
    EXPECT_THAT(said(members), HasSubstr(hint));
  }
}

}  // namespace
}  // namespace tandem
