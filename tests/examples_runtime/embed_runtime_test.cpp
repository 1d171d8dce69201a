// The example program embed_runtime, run as a user runs it: its table against sums made here, its
// errors, its deadline.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct Finished {
  int code = -1;
  std::string out;
  std::string err;
};

class EmbedRuntimeTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / fmt::format("embed {}", ::getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  static std::string content_of(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
  }

  /// `before` goes in front of the program's name ("timeout -s INT 1").
  [[nodiscard]] Finished run(const std::string& file, const std::string& flags,
                             const std::string& before = "") const {
    const std::string line =
        fmt::format("{} '{}/embed_runtime' '{}' {} >'{}' 2>'{}' </dev/null", before,
                    test::bin_dir(), file, flags, path(".out"), path(".err"));
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of(path(".out")),
            content_of(path(".err"))};
  }

  std::filesystem::path folder_;
};

/// The table that the program should print, from the file itself and by other means.
std::string expected_table(const std::string& file) {
  struct Row {
    std::uint64_t count = 0, errors = 0, bytes = 0, sum_us = 0, max_us = 0;
  };
  std::map<std::string, Row> rows;
  std::ifstream log(file);
  char route[64];
  unsigned long long time = 0, status = 0, bytes = 0, us = 0;
  for (std::string line; std::getline(log, line);) {
    if (std::sscanf(line.c_str(), "%llu,%63[^,],%llu,%llu,%llu", &time, route, &status, &bytes,
                    &us) == 5) {
      Row& row = rows[route];
      ++row.count;
      row.errors += status >= 500 ? 1 : 0;
      row.bytes += bytes;
      row.sum_us += us;
      row.max_us = std::max<std::uint64_t>(row.max_us, us);
    }
  }
  std::string text;
  for (const auto& [name, r] : rows) {
    char line[200];
    std::snprintf(line, sizeof line, "%-10s %10llu %8llu %9.3f %9.3f %9.1f\n", name.c_str(),
                  static_cast<unsigned long long>(r.count),
                  static_cast<unsigned long long>(r.errors),
                  static_cast<double>(r.sum_us) / static_cast<double>(r.count) / 1000,
                  static_cast<double>(r.max_us) / 1000, static_cast<double>(r.bytes) / 1e6);
    text += line;
  }
  return text;
}

TEST_F(EmbedRuntimeTest, CountsWhatItGenerated) {
  const Finished first = run(path("log.csv"), "--generate 200000");
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string table = expected_table(path("log.csv"));
  EXPECT_EQ(std::ranges::count(table, '\n'), 6);
  EXPECT_THAT(first.out, HasSubstr(table));
  EXPECT_THAT(first.out, HasSubstr("200000 lines (0 bad)"));
  // However the work is split, the sums are the same.
  for (const char* threads : {"1", "3"}) {
    const Finished again = run(path("log.csv"), fmt::format("--threads {}", threads));
    EXPECT_EQ(again.code, 0);
    EXPECT_THAT(again.out, HasSubstr(table)) << threads << " threads";
  }
}

TEST_F(EmbedRuntimeTest, LinesMayEndAnywhere) {
  // Longer than a block, with lines of many lengths and no newline at the end.
  std::string text;
  for (int i = 0; text.size() < 600'000; ++i) {
    text +=
        fmt::format("{},/{},{},{},{}\n", i, std::string(1 + static_cast<std::size_t>(i) % 7, 'x'),
                    200 + i % 400, i, i * 3);
  }
  text.pop_back();
  const Finished done = run(write("odd.csv", text), "");
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr(expected_table(path("odd.csv"))));
  EXPECT_EQ(run(write("empty.csv", ""), "").code, 0);
}

TEST_F(EmbedRuntimeTest, NamesTheFirstBadLine) {
  std::string text;
  for (int i = 1; i <= 40'000; ++i) {
    text += i == 23'456 ? "oops\n" : i == 30'000 ? "1,/a,-200,3,4\n" : "1,/a,200,3,4\n";
  }
  const std::string file = write("bad.csv", text);
  const Finished strict = run(file, "");
  EXPECT_EQ(strict.code, 2);
  EXPECT_EQ(strict.err,
            "error: [input] " + file +
                ":23456: not `time_ms,route,status,bytes,latency_us`: \"oops\"; mend the line "
                "or pass --skip_bad\n");
  EXPECT_EQ(strict.out, "");
  const Finished lenient = run(file, "--skip_bad");
  EXPECT_EQ(lenient.code, 0);
  EXPECT_THAT(lenient.out, HasSubstr("40000 lines (2 bad)"));
  EXPECT_THAT(lenient.out, HasSubstr("39998"));
}

TEST_F(EmbedRuntimeTest, WrongInputIsOneLine) {
  const Finished missing = run(path("nowhere.csv"), "");
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, StartsWith("error: [input] " + path("nowhere.csv") + " is no file; "));
  const Finished flag = run(path("x"), "--deadlin 2s");
  EXPECT_EQ(flag.code, 2);
  EXPECT_EQ(flag.err, "error: [flags] unknown argument --deadlin; did you mean \"--deadline\"?\n");
  EXPECT_EQ(run(path("x"), "--deadline 2fortnights").code, 2);
  const Finished line = run(write("long.csv", std::string(600'000, 'x')), "");
  EXPECT_EQ(line.code, 2);
  EXPECT_THAT(line.err, HasSubstr("is longer than 262144 bytes"));
  EXPECT_EQ(run(path("x"), "--help").code, 0);
}

TEST_F(EmbedRuntimeTest, ADeadlineGivesAPartOfTheResult) {
  ASSERT_EQ(run(path("log.csv"), "--generate 200000").code, 0);
  const Finished part = run(path("log.csv"), "--deadline 0.001ms");
  EXPECT_EQ(part.code, 1);
  EXPECT_THAT(part.err, StartsWith("error: [deadline] stopped after "));
  EXPECT_THAT(part.err, HasSubstr("the table covers only these; raise --deadline\n"));
  EXPECT_THAT(part.out, HasSubstr("deepest mailboxes"));
  EXPECT_EQ(run(path("log.csv"), "--deadline 600s").code, 0);
}

TEST_F(EmbedRuntimeTest, ASignalEndsItInOrder) {
  // How long it takes to start and to read is the machine's business: try later when it was not
  // listening yet, and with a longer file when it was done already.
  ASSERT_EQ(run(path("log.csv"), "--generate 500000").code, 0);
  Finished stopped;
  double seconds = 0.1;
  for (int attempt = 0; attempt < 12; ++attempt) {
    stopped = run(path("log.csv"), "", fmt::format("timeout --preserve-status -s INT {}", seconds));
    if (stopped.code == 0) {
      const std::string all = content_of(path("log.csv"));
      std::ofstream(path("log.csv"), std::ios::app | std::ios::binary) << all;
    } else if (stopped.err.empty()) {
      seconds *= 2;
    } else {
      break;
    }
  }
  EXPECT_EQ(stopped.code, 130);
  EXPECT_THAT(stopped.err, StartsWith("error: [signal] stopped after "));
  EXPECT_THAT(stopped.out, HasSubstr("deepest mailboxes"));
}

}  // namespace
}  // namespace tandem
