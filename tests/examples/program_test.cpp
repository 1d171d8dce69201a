// The frame that every program has around its work: exit codes, the line on stderr, torchrun's
// error file, unknown flags.
#include "trainer/program/program.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>
#include <stdexcept>

#include <CLI/CLI.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>
#include <unistd.h>

#include "engine/types/version.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

/// Parses `arguments` with `app`; the exit code it asks for, or -1 to go on.
int parse(CLI::App& app, std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  return parse_command_line(app, static_cast<int>(arguments.size()), arguments.data()).value_or(-1);
}

std::string parse_error(CLI::App& app, std::vector<const char*> arguments) {
  return error_text([&] { parse(app, std::move(arguments)); });
}

TEST(GuardedMain, MapsErrorsToExitCodesAndOneLine) {
  EXPECT_EQ(guarded_main([] { return 7; }), 7);
  testing::internal::CaptureStderr();
  EXPECT_EQ(guarded_main([]() -> int { throw user_error("flags", "--lr {} is negative", -1); }), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "error: [flags] --lr -1 is negative\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(guarded_main([]() -> int { throw failure(ExitCode::kPeer, "x", "y"); }), 4);
  EXPECT_EQ(guarded_main([]() -> int { throw std::runtime_error("odd"); }), 1);
  EXPECT_EQ(guarded_main([]() -> int { throw std::bad_alloc(); }), 1);
  EXPECT_EQ(guarded_main([]() -> int { throw 3; }), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("out of host memory"));
}

TEST(GuardedMain, NothingThatAnErrorQuotesMakesASecondLineOrSteersTheTerminal) {
  testing::internal::CaptureStderr();
  guarded_main([]() -> int {
    throw user_error("data", "{}", "a\nerror: forged\t\x1b[31m\x7f\xc2\x9b\xff g\xc3\xbcn");
  });
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "error: [data] a\\nerror: forged\\t\\x1b[31m\\x7f\\xc2\\x9b\\xff g\xc3\xbcn\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(guarded_main([]() -> int {
              throw std::runtime_error("size mismatch\nException raised from x\nframe #0");
            }),
            1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "error: size mismatch\n");
}

TEST(GuardedMain, AnErrorOfThePathIsTheUsers) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(guarded_main([]() -> int {
              std::filesystem::create_directory("/proc/no/such");
              return 0;
            }),
            2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "error: [file] /proc/no/such: No such file or directory; check the path\n");
}

TEST(GuardedMain, AClosedPipeAndASizeLimitAreErrorsOfTheirCalls) {
  EXPECT_EQ(guarded_main([] {
              int ends[2];
              if (::pipe(ends) != 0) {
                return 1;
              }
              ::close(ends[0]);
              const bool failed = ::write(ends[1], "x", 1) < 0 && errno == EPIPE;
              ::close(ends[1]);
              return failed && ::raise(SIGXFSZ) == 0 ? 7 : 1;
            }),
            7);
}

TEST(GuardedMain, WritesTorchrunsErrorFile) {
  const std::string path = testing::TempDir() + fmt::format("error_file_{}.json", ::getpid());
  ::setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
  testing::internal::CaptureStderr();
  guarded_main([]() -> int { throw user_error("data", "line {} of \"x\"", 3); });
  testing::internal::GetCapturedStderr();
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  simdjson::dom::parser parser;
  const simdjson::dom::element file = parser.load(path);
  EXPECT_EQ(std::string_view(file["message"]["message"]), "[data] line 3 of \"x\"");
  EXPECT_GT(std::stoll(std::string(std::string_view(file["message"]["extraInfo"]["timestamp"]))),
            0);
  std::filesystem::remove(path);
}

TEST(CommandLine, NamesTheNearestFlagBeforeAnythingElse) {
  CLI::App app("test", "program");
  std::string model;
  double rate = 0;
  app.add_option("--model_name", model)->required();
  app.add_option("--lr,-l", rate);
  EXPECT_THAT(parse_error(app, {"--modle_name", "x"}),
              HasSubstr("unknown flag --modle_name; did you mean \"--model_name\"?"))
      << "not: --model_name is required";
  EXPECT_THAT(parse_error(app, {"--model-name=x"}), HasSubstr("did you mean \"--model_name\"?"));
  EXPECT_THAT(parse_error(app, {"--model_name", "x", "--wandb_project", "y"}),
              HasSubstr("unknown flag --wandb_project; --help lists the flags"));
  EXPECT_THAT(parse_error(app, {"--model_name", "x", "y"}), HasSubstr("unexpected argument \"y\""));
  EXPECT_THAT(parse_error(app, {}), HasSubstr("--model_name is required"));
  EXPECT_THAT(parse_error(app, {"--model_name", "x", "--lr", "fast"}), HasSubstr("fast"));
  EXPECT_EQ(parse(app, {"--model_name", "x", "--lr", "0.5"}), -1);
  EXPECT_EQ(rate, 0.5);
}

TEST(CommandLine, SaysWhatAFlagTakes) {
  double rate = 0;
  std::int64_t count = 0;
  std::string rates;
  const auto said = [&](std::vector<const char*> arguments) {
    CLI::App app("test", "program");  // one keeps what it was given
    app.add_option("--lr,--learning_rate", rate);
    app.add_option("--lr_scheduler", rates);
    app.add_option("--steps", count);
    return parse_error(app, std::move(arguments));
  };
  EXPECT_THAT(said({"--lr", "1e-4x"}), HasSubstr("[flags] --lr is \"1e-4x\"; it takes a number"));
  EXPECT_THAT(said({"--learning_rate", "0,1"}), HasSubstr("\"0,1\"; it takes a number"));
  EXPECT_THAT(said({"--steps", "1.5"}), HasSubstr("--steps is \"1.5\"; it takes a whole number"));
  EXPECT_THAT(said({"--lr", "1", "--lr", "2"}),
              HasSubstr("--lr is given 2 times, as 1 and 2; give it once"));
  EXPECT_THAT(said({"--steps"}), HasSubstr("--steps has no value behind it"));
  EXPECT_THAT(said({"--lr_scheduler"}), HasSubstr("--lr_scheduler has no value behind it"));
}

TEST(CommandLine, LooksAtTheSubcommandsFlagsToo) {
  CLI::App app("test", "program");
  CLI::App* plan = app.add_subcommand("plan");
  bool verbose = false;
  plan->add_flag("--verbose", verbose);
  EXPECT_THAT(parse_error(app, {"plan", "--verbsoe"}), HasSubstr("did you mean \"--verbose\"?"));
  EXPECT_THAT(parse_error(app, {"plna"}),
              HasSubstr("unknown command \"plna\"; did you mean \"plan\"?"));
}

TEST(CommandLine, HelpAndVersionEndTheProgramWell) {
  CLI::App app("What it does", "program");
  testing::internal::CaptureStdout();
  EXPECT_EQ(parse(app, {"--help"}), 0);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("What it does"));
  testing::internal::CaptureStdout();
  EXPECT_EQ(parse(app, {"--version"}), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), fmt::format("program {}\n", version()));
}

}  // namespace
}  // namespace tandem
