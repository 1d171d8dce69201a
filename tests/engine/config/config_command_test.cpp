// `tandem` itself, as a user starts it: output, messages and exit codes.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/util/error.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct CommandOutcome {
  int code;
  std::string out;
  std::string err;
};

class TandemProgram : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fs::exists(kProgram)) << "build the target tandem_cli first: " << kProgram;
    dir_ = fs::path(testing::TempDir()) / fmt::format("tandem program {}", ::getpid());
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  [[nodiscard]] std::string file(const std::string& name, std::string_view text) const {
    std::ofstream(dir_ / name) << text;
    return "'" + (dir_ / name).string() + "'";
  }

  [[nodiscard]] CommandOutcome run(const std::string& arguments) const {
    const fs::path out = dir_ / "out";
    const fs::path err = dir_ / "err";
    const std::string command = fmt::format("'{}' {} >'{}' 2>'{}' </dev/null", kProgram, arguments,
                                            out.string(), err.string());
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(out), content(err)};
  }

  static std::string content(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  static inline const std::string kProgram = test::program_path("tandem");
  fs::path dir_;
};

TEST_F(TandemProgram, ConfigPrintsResolvedValuesAndKeys) {
  const std::string path = file("ds.json", R"({"train_batch_size": 8, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 4e8}, // a comment
  })");
  const CommandOutcome done = run("config " + path + " --world_size 2");
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("\"train_micro_batch_size_per_gpu\": 4,"));
  EXPECT_THAT(done.out, HasSubstr("\nbf16.enabled: true  applied\n"));
  EXPECT_THAT(done.out,
              HasSubstr("\nzero_optimization.reduce_bucket_size: 400000000  not applicable: "));
}

TEST_F(TandemProgram, ConfigFillsAutoFromTheTrainersFlags) {
  const std::string path = file("hf.json", R"({"train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
      "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
      "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}})");
  std::string more = " --batch_size 4 --gradient_accumulation_steps 2 --lr 3e-4 --dtype bf16";
  more += " --max_grad_norm 0.5 --warmup 0.1 --steps 200 --model_name '";
  const CommandOutcome done = run("config " + path + more + test::source_path("examples/demo'"));
  EXPECT_EQ(done.code, 0) << done.err;
  for (const char* line :
       {"train_micro_batch_size_per_gpu: auto: 4, from --batch_size  applied",
        "gradient_accumulation_steps: auto: 2, from --gradient_accumulation_steps  applied",
        "gradient_clipping: auto: 0.5, from --gradient_clipping  applied",
        "optimizer.params.lr: auto: 3e-04, from --lr  applied",
        "optimizer.params.weight_decay: auto: 0.01, from --weight_decay  applied",
        "scheduler.params.warmup_max_lr: auto: 3e-04, from --lr  applied",
        "scheduler.params.warmup_num_steps: auto: 20, from --warmup and --steps  applied",
        "scheduler.params.total_num_steps: auto: 200, from --steps  applied",
        "bf16.enabled: auto: true, from --dtype  applied", "from hidden_size "}) {
    EXPECT_THAT(done.out, HasSubstr(line));
  }
  // Without them, what the Trainer takes where nothing is said.
  const CommandOutcome bare = run("config " + path);
  EXPECT_EQ(bare.code, 0) << bare.err;
  EXPECT_THAT(bare.out, HasSubstr("train_micro_batch_size_per_gpu: auto: 8, from the default"));
  EXPECT_THAT(bare.out, HasSubstr("optimizer.params.lr: auto: 5e-05, from the default"));
}

TEST_F(TandemProgram, ConfigRejectsBadFilesWithOneLineAndCode2) {
  const auto rejects = [&](const std::string& arguments, const std::string& part) {
    const CommandOutcome done = run("config " + arguments);
    EXPECT_EQ(done.code, 2) << done.out;
    EXPECT_EQ(done.out, "");
    EXPECT_THAT(done.err, AllOf(StartsWith("error: ["), HasSubstr(part)));
    EXPECT_EQ(std::ranges::count(done.err, '\n'), 1) << done.err;
  };
  rejects(file("a.json", "{\"train_batch_size\": 4, \"zero_optimisation\": {}}"),
          "did you mean \"zero_optimization\"?");
  rejects(file("b.json", "{\"train_batch_size\": 5, \"train_micro_batch_size_per_gpu\": 2}"),
          "multiple of 2");
  rejects(file("c.json", "{\"train_batch_size\": \"four\"}"), "write an integer");
  rejects(file("d.json", "{\"train_batch_size\": 4, \"gradient_clipping\": -1}"), "at least 0");
  rejects(file("e.json", "{\"train_batch_size\": 4"), "',' or '}' is expected");
  rejects("'" + (dir_ / "absent.json").string() + "'", "No such file or directory");
  rejects("'" + dir_.string() + "'", "Is a directory");
  rejects("", "FILE is required");
  rejects("x --wrold_size 2", "did you mean \"--world_size\"?");
  rejects("x --world_size 0", "--world_size is 0");
}

TEST_F(TandemProgram, ScheduleIsOneJsonArrayAndNeedsNoBatch) {
  const std::string path = file("s.json", R"({"optimizer": {"type": "Adam", "params": {"lr": 0.1}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}}})");
  const CommandOutcome done = run("schedule " + path + " --steps 7");
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(done.out, "[0, 0, 0.025, 0.05, 0.07500000000000001, 0.1, 0.1]\n");
}

TEST_F(TandemProgram, ScheduleFillsAutoFromItsSteps) {
  const CommandOutcome done =
      run("schedule --steps 3 " + file("auto.json", R"({"scheduler": {"type":
    "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": 2}}})"));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(std::ranges::count(done.out, ','), 2) << done.out;
}

TEST_F(TandemProgram, ScheduleRejectsWhatIsNoSchedule) {
  const CommandOutcome none =
      run("schedule " + file("n.json", "{\"train_batch_size\": 1}") + " --steps 3");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("has no scheduler"));
  EXPECT_EQ(run("schedule " + file("m.json", "{}") + " --steps 0").code, 2);
  EXPECT_THAT(run("schedule x --setps 3").err, HasSubstr("did you mean \"--steps\"?"));
}

TEST_F(TandemProgram, DoctorSaysWhatIsThere) {
  const CommandOutcome done = run("doctor");
  EXPECT_EQ(done.code, 0) << done.err;
  for (const char* part :
       {"processor", "usable of", "numa node", "memlock", "io_uring", "LibTorch"}) {
    EXPECT_THAT(done.out, HasSubstr(part));
  }
}

TEST_F(TandemProgram, HelpVersionAndUnknownCommands) {
  EXPECT_THAT(run("--help").out, AllOf(HasSubstr("config"), HasSubstr("doctor")));
  EXPECT_EQ(run("--help").code, 0);
  EXPECT_THAT(run("--version").out, StartsWith("tandem "));
  EXPECT_THAT(run("config --help").out, HasSubstr("--world_size"));
  EXPECT_THAT(run("config --version").out, StartsWith("tandem config "));
  const CommandOutcome unknown = run("schedul");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean \"schedule\"?"));
  EXPECT_EQ(run("").code, 2);
  EXPECT_EQ(run("--verison").code, 2);
}

}  // namespace
}  // namespace tandem
