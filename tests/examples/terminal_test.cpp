// The terminal's view of a run: progress, help that fits, completion, a doctor for scripts, a run's
// end.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include <unistd.h>

#include "runtime/util/error.hpp"
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"
#include "trainer/metrics/console.hpp"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Terminal : public TrainerTest {
 protected:
  [[nodiscard]] Finished tandem(const std::string& arguments) const {
    return shell(fmt::format("'{}/tandem' {}", test::bin_dir(), arguments));
  }
};

TEST_F(Terminal, HelpHasGroupsAndFits) {
  const std::string help = train("--help").out;
  for (const char* group : {"Model, data and length of the run:", "Evaluation:", "Engine:",
                            "Checkpoints and output:"}) {
    EXPECT_THAT(help, HasSubstr(group));
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100U) << line;  // 80, but for the longest names
    if (line.starts_with("                              ") &&
        line.find(' ', 30) != std::string::npos) {  // several words
      EXPECT_LE(line.size(), 80U) << line;
    }
  }
}

TEST_F(Terminal, CompletionKnowsCommandsAndFlags) {
  for (const char* shell_name : {"bash", "zsh"}) {
    const Finished made = tandem(fmt::format("completion {} --and 'setup test'", shell_name));
    EXPECT_EQ(made.code, 0) << made.err;
    EXPECT_THAT(made.out, AllOf(HasSubstr("cifar10-tutorial"), HasSubstr(" plan "),
                                HasSubstr(" setup "), Not(HasSubstr("@"))));
  }
  EXPECT_EQ(tandem("completion fish").code, 2);
  ASSERT_EQ(tandem("completion bash >'" + path("c.sh") + "'").code, 0);
  const std::string ask = write("ask.sh", fmt::format(R"(source '{0}'
COMP_WORDS=('{1}/tandem' pl); COMP_CWORD=1; _tandem; echo "${{COMPREPLY[@]}}"
COMP_WORDS=('{1}/tandem' plan --host_mem); COMP_CWORD=2; _tandem; echo "${{COMPREPLY[@]}}"
COMP_WORDS=('{1}/tandem' train --lora_ra); COMP_CWORD=2; _tandem; echo "${{COMPREPLY[@]}}"
COMP_WORDS=('{1}/tandem' train --eval_dat); COMP_CWORD=2; _tandem; echo "${{COMPREPLY[@]}}"
)",
                                                      path("c.sh"), test::bin_dir()));
  EXPECT_EQ(shell("bash '" + ask + "'").out, "plan\n--host_memory_gb\n\n--eval_dataset\n");
}

TEST_F(Terminal, TheDoctorSpeaksJson) {
  const Finished said = tandem("doctor --json");
  EXPECT_EQ(said.code, 0) << said.err;
  simdjson::dom::parser parser;
  const simdjson::dom::element json = parser.parse(said.out);
  EXPECT_EQ(std::string_view(json["facts"].at(0)["name"]), "tandem");
  EXPECT_GT(simdjson::dom::array(json["facts"]).size(), 8U);
  (void)simdjson::dom::array(json["slow"]);
}

TEST_F(Terminal, OnePairOfProgramsIsOneCommand) {
  const Finished done = tandem(
      fmt::format("train --output_dir '{}' --batch_size 4 --no-samples --steps 2", path("out")));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("Summary of 2 steps"));
}

TEST_F(Terminal, AnInterruptedRunSaysWhere) {
  ASSERT_EQ(demo("out", "--steps 900 --stop_after 1s").code, 0);
  const std::string summary = content_of(path("out/summary.json"));
  EXPECT_THAT(summary, ::testing::ContainsRegex("\"ended\": \"interrupted at [0-9]+ of 900\""));
  EXPECT_THAT(content_of(path(".out")), HasSubstr("  ended       interrupted at "));
}

TEST_F(Terminal, AnEarlierRunsFilesMoveAside) {
  ASSERT_EQ(demo("out", "--steps 2").code, 0);
  const std::string before = content_of(path("out/metrics.jsonl"));
  const Finished again = demo("out", "--steps 3");
  ASSERT_EQ(again.code, 0);
  EXPECT_THAT(again.out, HasSubstr("earlier  what an earlier run left in"));
  EXPECT_EQ(content_of(path("out/earlier-1/metrics.jsonl")), before);
  EXPECT_TRUE(std::filesystem::exists(path("out/earlier-1/summary.json")));
  const auto events = [&](const std::string& folder) {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path(folder))) {
      count += entry.path().filename().string().starts_with("events.") ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(events("out"), 1);
  EXPECT_EQ(events("out/earlier-1"), 1);
  EXPECT_EQ(column("out", "step").size(), 3U);
}

// ./tandem train gives its program a token file in the data's place.
TEST_F(Terminal, TheSummaryHasFlagsAsTheyWereTyped) {
  ASSERT_EQ(demo("out", "--steps 1 --seed 7 --typed=--seed=seven --typed=--columns=a=b").code, 0);
  EXPECT_THAT(content_of(path("out/summary.json")),
              AllOf(HasSubstr(R"("--seed": "seven")"), HasSubstr(R"("--columns": "a=b")"),
                    HasSubstr(R"("--steps": "1")"), Not(HasSubstr("--typed"))));
}

TEST_F(Terminal, ADeepSpeedFileNeedsNoBatch) {
  write("ds.json", R"({"zero_optimization": {"stage": 2}})");
  const Finished shown = tandem(fmt::format("config '{}'", path("ds.json")));
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("note     no batch size is given, so it is 0 above"),
                               HasSubstr("note     no learning rate is given, so it is 0 above")));
}

TEST_F(Terminal, TheCurveOfTopFitsTheTerminal) {
  std::string metrics;
  for (int step = 1; step <= 90; ++step) {
    metrics += fmt::format("{{\"step\": {}, \"loss\": {}}}\n", step, 1.0 / step);
  }
  write("run/metrics.jsonl", metrics);
  const auto bars = [&](const char* columns) {
    const Finished shown = shell(fmt::format("TANDEM_COLUMNS={} '{}/tandem' top '{}' --once | cat",
                                             columns, test::bin_dir(), path("run")));
    std::istringstream lines(shown.out);
    std::string line;
    while (std::getline(lines, line) && line.find(" to ") == std::string::npos) {
    }
    return std::ranges::count(line, '\xE2');  // the first byte of each bar
  };
  EXPECT_EQ(bars("50"), 18);
  EXPECT_EQ(bars("200"), 60);
  const Finished narrow = shell(fmt::format("TANDEM_COLUMNS=50 '{}/tandem' top '{}' --once | cat",
                                            test::bin_dir(), path("run")));
  std::istringstream lines(narrow.out);
  for (std::string line; std::getline(lines, line);) {
    const auto goes_on = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; };
    EXPECT_LE(line.size() - static_cast<std::size_t>(std::ranges::count_if(line, goes_on)), 50U)
        << line;
  }
}

TEST_F(Terminal, TheLogLevelActs) {
  const Finished quiet = demo("out", "--steps 2 --log_level WARNING");
  EXPECT_EQ(quiet.code, 0);
  EXPECT_EQ(quiet.out, "");
  EXPECT_THAT(demo("other", "--steps 2 --log_level DEBUG").out,
              AllOf(HasSubstr("Step    1"), HasSubstr("Step    2")));
}

TEST(Progress, BarShowsShareAndRemainingTime) {
  EXPECT_EQ(progress_bar({.step = 5, .total_steps = 20, .steps_here = 5, .elapsed_s = 10}, 60),
            "[#####.................]  5/20  25%  elapsed 0:10  left 0:30");
  EXPECT_EQ(progress_bar({.step = 15, .total_steps = 20, .steps_here = 5, .elapsed_s = 10}, 20),
            "15/20  75%  elapsed ")
      << "cut to the terminal";
  EXPECT_THAT(progress_bar({.step = 15, .total_steps = 20, .steps_here = 5, .elapsed_s = 10}, 99),
              HasSubstr("left 0:10"))
      << "a resumed run counts its own steps";
  EXPECT_EQ(progress_bar({.step = 5, .elapsed_s = 61}, 60), "step 5  elapsed 1:01");
  EXPECT_EQ(duration_text(3723.4), "1:02:03");
  EXPECT_EQ(duration_text(std::nan("")), "?");
}

TEST(Progress, ModesByName) {
  EXPECT_EQ(progress_mode_of("auto"), ProgressMode::kAuto);
  EXPECT_EQ(progress_mode_of("bar"), ProgressMode::kBar);
  EXPECT_EQ(progress_mode_of("lines"), ProgressMode::kLines);
  EXPECT_EQ(progress_mode_of("off"), ProgressMode::kOff);
  EXPECT_THROW(static_cast<void>(progress_mode_of("line")), Error);
}

TEST(Progress, LinesFitTheTerminalOfALauncher) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  std::FILE* const file = ::fdopen(ends[1], "w");
  ::setenv("TANDEM_COLUMNS", "56", 1);
  Console(ProgressMode::kLines, 300, 1, file, file).step({.step = 7, .loss = 1});
  ::setenv("TANDEM_COLUMNS", "no number", 1);
  Console(ProgressMode::kLines, 300, 1, file, file).step({.step = 8, .loss = 1});
  ::unsetenv("TANDEM_COLUMNS");
  std::fclose(file);
  std::string text(10'000, '\0');
  text.resize(static_cast<std::size_t>(::read(ends[0], text.data(), text.size())));
  ::close(ends[0]);
  const std::size_t first = text.find('\n');
  EXPECT_LE(first, 56U) << text;
  EXPECT_THAT(text.substr(0, first), AllOf(HasSubstr("Step    7"), HasSubstr("| of 300, left ")));
  EXPECT_GT(text.size() - first, 80U) << "no terminal is known: nothing is cut";
}

TEST(Progress, LinesSayWhatRemainsWhereThereIsNoBar) {
  std::FILE* const file = std::tmpfile();
  {
    Console console(ProgressMode::kLines, 3, 1, file, file);
    for (std::int64_t step = 1; step <= 3; ++step) {
      console.step({.step = step, .loss = 1});
    }
  }
  std::rewind(file);
  std::string text(10'000, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  EXPECT_THAT(text, HasSubstr("| of 3, left 0:00\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("\x1b")));
  const std::string last = text.substr(text.find("Step    3"));
  EXPECT_THAT(last, testing::Not(HasSubstr("left")));
}

}  // namespace
}  // namespace tandem
