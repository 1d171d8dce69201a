// Each row of docs/coming_from_deepspeed.md, against the parser, the trainer's --help and the
// header.
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/config/config.hpp"
#include "engine/config/key_table.hpp"
#include "engine/config/key_value.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// The rows of a section's table, as cells without their spaces.
std::vector<std::vector<std::string>> rows_of(const std::string& section) {
  std::istringstream page(content(test::source_path("docs/coming_from_deepspeed.md")));
  std::vector<std::vector<std::string>> rows;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) {
      inside = line == "## " + section;
    } else if (inside && line.starts_with("| ")) {
      std::vector<std::string> cells;
      std::istringstream row(line.substr(1));
      for (std::string cell; std::getline(row, cell, '|');) {
        const std::size_t begin = cell.find_first_not_of(' ');
        cells.push_back(begin == std::string::npos
                            ? ""
                            : cell.substr(begin, cell.find_last_not_of(' ') - begin + 1));
      }
      rows.push_back(std::move(cells));
    }
  }
  EXPECT_GT(rows.size(), 4U) << section;
  rows.erase(rows.begin());  // the heads
  return rows;
}

/// Returns the texts in backquotes.
std::vector<std::string> names_in(const std::string& cell) {
  std::vector<std::string> names;
  for (std::size_t begin = cell.find('`'); begin != std::string::npos;
       begin = cell.find('`', begin)) {
    const std::size_t end = cell.find('`', begin + 1);
    names.push_back(cell.substr(begin + 1, end - begin - 1));
    begin = end + 1;
  }
  return names;
}

TEST(ComingFromDeepSpeed, EachKeyBecomesWhatItsRowSays) {
  constexpr int kRanks = 2;  // which can share rows
  for (const std::vector<std::string>& row : rows_of("Keys")) {
    SCOPED_TRACE(row[0]);
    const std::string member = names_in(row[0]).at(0);
    const std::string batch =
        member.starts_with("\"train_") ? "" : "\"train_micro_batch_size_per_gpu\": 1, ";
    const std::string text = fmt::format("{{{}{}}}", batch, member);
    if (row[1] == "refused") {
      EXPECT_THAT(error_text([&] { (void)parse_config(text, "ds.json", kRanks); }),
                  HasSubstr(" is refused: "));
      continue;
    }
    const Config config = parse_config(text, "ds.json", kRanks);
    ASSERT_FALSE(config.keys.empty());
    const std::string key = member.substr(1, member.find('"', 1) - 1);
    KeyStatus last = KeyStatus::kRefused;
    for (const KeyReport& entry : config.keys) {
      if (entry.path == key ||
          (entry.path.starts_with(key + ".") && !entry.path.ends_with(".type"))) {
        last = entry.status;
      }
    }
    EXPECT_EQ(last, row[1] == "applied" ? KeyStatus::kApplied : KeyStatus::kNotApplicable);
  }
}

/// Returns the output of `./tandem train --help`; empty if the trainer is not built.
std::string trainer_help() {
  std::string help;
  FILE* program = popen(("'" + test::program_path("tandem' train --help 2>&1")).c_str(), "r");
  for (int c = std::fgetc(program); c != EOF; c = std::fgetc(program)) {
    help.push_back(static_cast<char>(c));
  }
  pclose(program);
  return help.find("--dataset_name") == std::string::npos ? "" : help;
}

/// Finds whole flags only: "--save" is not "--save_dtype".
bool has_flag(const std::string& help, const std::string& name) {
  const std::string flag = name.substr(0, name.find(' '));  // maybe with a value
  for (std::size_t at = help.find(flag); at != std::string::npos; at = help.find(flag, at + 1)) {
    const char behind = at + flag.size() < help.size() ? help[at + flag.size()] : ' ';
    if (behind != '_' && behind != '-' && std::isalnum(static_cast<unsigned char>(behind)) == 0) {
      return true;
    }
  }
  return false;
}

/// The trainer has each flag in the last column of the tables of keys and of flags.
TEST(ComingFromDeepSpeed, EachFlagIsTheTrainers) {
  const std::string help = trainer_help();
  if (help.empty()) {
    GTEST_SKIP() << "the trainer is not built";
  }
  int flags = 0;
  for (const char* section : {"Keys", "Flags"}) {
    for (const std::vector<std::string>& row : rows_of(section)) {
      for (const std::string& name : names_in(row.size() > 2 ? row[2] : row.at(1))) {
        if (name.starts_with("--")) {
          EXPECT_TRUE(has_flag(help, name)) << name;
          ++flags;
        }
      }
    }
  }
  EXPECT_GT(flags, 30);
}

TEST(ComingFromDeepSpeed, EachCallIsTheEngines) {
  const std::string header = content(test::source_path("engine/engine.hpp"));
  for (const std::vector<std::string>& row : rows_of("Calls")) {
    for (const std::string& name : names_in(row.at(1))) {
      EXPECT_THAT(header, HasSubstr(" " + name + "("));
    }
  }
}

/// The replacements that the other tables name exist: flags, commands of ./tandem, names in
/// headers.
TEST(ComingFromDeepSpeed, WhatStandsInsteadIsThere) {
  const std::string help = trainer_help();
  const std::string commands = content(test::source_path("tandem"));
  std::string headers;
  for (const char* header :
       {"engine/engine.hpp", "engine/types/model.hpp", "engine/distributed/process_group.hpp"}) {
    headers += content(test::source_path(header));
  }
  for (const char* section : {"Calls that are not needed", "Files and programs"}) {
    for (const std::vector<std::string>& row : rows_of(section)) {
      for (const std::string& name : names_in(row.at(1))) {
        SCOPED_TRACE(name);
        if (name.starts_with("--")) {
          EXPECT_TRUE(help.empty() || has_flag(help, name));
        } else if (name.starts_with("./tandem ")) {
          const std::size_t end = name.find(' ', 9);
          EXPECT_THAT(commands, HasSubstr("\n  " + name.substr(9, end - 9) + " "));
        } else if (const std::size_t colon = name.find("::"); colon != std::string::npos) {
          EXPECT_THAT(headers, HasSubstr(name.substr(0, colon)));
          EXPECT_THAT(headers, HasSubstr(name.substr(colon + 2, name.find('(') - colon - 2)));
        } else if (name.ends_with(")") || name == "Engine" || name == "Model" ||
                   name == "ParameterUse" || name.starts_with("for_each_")) {
          EXPECT_THAT(headers, HasSubstr(name.substr(0, name.find('('))));
        }
      }
    }
  }
}

/// docs/config_keys.md; TANDEM_UPDATE_DOCS=1 writes it anew.
TEST(ComingFromDeepSpeed, ThePageOfKeysIsTheTable) {
  const std::string path = test::source_path("docs/config_keys.md");
  std::string page =
      "# Every key of a DeepSpeed config\n\n"
      "Made from the table that reads configs (`engine/config/key_table.hpp`); a test keeps the "
      "two "
      "equal.\n[coming_from_deepspeed.md](coming_from_deepspeed.md) says what the main ones "
      "become. "
      "Parameters of\nthe optimizer and the schedule are those of AdamW and WarmupLR. A key that "
      "is "
      "refused is so at\nany value but its default.\n\n| key | default | becomes "
      "|\n|---|---|---|\n";
  Config config;
  choose_optimizer(config, "AdamW", "");
  choose_schedule(config, "WarmupLR", "");
  for (const KeyRow& row : key_table(config)) {
    const char* becomes = row.status == KeyStatus::kApplied         ? "applied"
                          : row.status == KeyStatus::kNotApplicable ? "left aside: "
                                                                    : "refused: ";
    page += fmt::format("| `{}` | {} | {}{} |\n", row.path,
                        row.required ? "needed" : fmt::format("`{}`", json_of(row)), becomes,
                        row.reason);
  }
  if (const char* update = std::getenv("TANDEM_UPDATE_DOCS"); update != nullptr) {
    std::ofstream(path) << page;
  }
  EXPECT_EQ(content(path), page) << "TANDEM_UPDATE_DOCS=1 writes it anew";
}

}  // namespace
}  // namespace tandem
