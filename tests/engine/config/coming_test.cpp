// Each row of docs/coming_from_deepspeed.md, against the parser, the trainer's --help and the
// header.
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/config/config.hpp"
#include "runtime/util/error.hpp"
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
  std::istringstream page(content(TANDEM_SOURCE_DIR "/docs/coming_from_deepspeed.md"));
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
  EXPECT_GT(rows.size(), 5U) << section;
  rows.erase(rows.begin());  // the heads
  return rows;
}

/// What stands in backquotes.
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
  for (const std::vector<std::string>& row : rows_of("Keys")) {
    SCOPED_TRACE(row[0]);
    const std::string member = names_in(row[0]).at(0);
    const std::string batch =
        member.starts_with("\"train_") ? "" : "\"train_micro_batch_size_per_gpu\": 1, ";
    const std::string text = fmt::format("{{{}{}}}", batch, member);
    if (row[1] == "refused") {
      EXPECT_THAT(error_text([&] { (void)parse_config(text, "ds.json", 1); }),
                  HasSubstr(" is refused: "));
      continue;
    }
    const Config config = parse_config(text, "ds.json", 1);
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

TEST(ComingFromDeepSpeed, EachFlagIsTheTrainers) {
  std::string help;
  FILE* program = popen("'" TANDEM_BIN_DIR "/tandem' train --help 2>&1", "r");
  ASSERT_NE(program, nullptr);
  for (int c = std::fgetc(program); c != EOF; c = std::fgetc(program)) {
    help.push_back(static_cast<char>(c));
  }
  pclose(program);
  if (help.find("--dataset_name") == std::string::npos) {
    GTEST_SKIP() << "the trainer is not built";
  }
  for (const std::vector<std::string>& row : rows_of("Flags")) {
    for (const std::string& flag : names_in(row.at(1))) {
      EXPECT_THAT(help, HasSubstr(flag));
    }
  }
}

TEST(ComingFromDeepSpeed, EachCallIsTheEngines) {
  const std::string header = content(TANDEM_SOURCE_DIR "/engine/engine.hpp");
  for (const std::vector<std::string>& row : rows_of("Calls")) {
    for (const std::string& name : names_in(row.at(1))) {
      EXPECT_THAT(header, HasSubstr(" " + name + "("));
    }
  }
}

}  // namespace
}  // namespace tandem
