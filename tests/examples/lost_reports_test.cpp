// Nothing that fails beside training costs the trained model, and saving harms nothing that was
// there: closed pipes, removed folders, disks without room, signals, runs in one folder, weights
// and gradients that are no numbers.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include <sys/mount.h>

#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LostReports : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    (void)random_model(kOneLayer);
  }

  [[nodiscard]] std::string command(const std::string& output, int steps,
                                    const std::string& more = "") const {
    return fmt::format(
        "'{}' --model_name '{}' --dataset_name '{}/instructions.json' --output_dir '{}' --steps {} "
        "--batch_size 1 --max_length 16 --loss_on all --lr 1e-3 --progress lines {}",
        kTrainer, path("model"), kDemo, path(output), steps, more);
  }
  [[nodiscard]] Finished run(const std::string& output, int steps,
                             const std::string& more = "") const {
    return shell(command(output, steps, more));
  }

  /// In the background; what it prints goes to `output`.log.
  [[nodiscard]] pid_t start(const std::string& command, const std::string& output) const {
    const std::string line =
        fmt::format("exec {} >'{}' 2>&1 </dev/null", command, path(output + ".log"));
    const pid_t process = ::fork();
    if (process == 0) {
      ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
      ::_exit(127);
    }
    return process;
  }
  [[nodiscard]] std::string log_of(const std::string& output) const {
    return content_of(path(output + ".log"));
  }
  void wait_for(const std::string& output, const std::string& text) const {
    for (int i = 0; i < 6000 && log_of(output).find(text) == std::string::npos; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_THAT(log_of(output), HasSubstr(text));
  }
  static int end_of(pid_t process) {
    int status = 0;
    ::waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  [[nodiscard]] std::string weights(const std::string& folder) const {
    return content_of(folder_ / folder / "model.safetensors");
  }
  /// Writes over the last weight of the source model.
  void spoil_source() const {
    std::fstream file(folder_ / "model/model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-4, std::ios::end);
    file.write("\x00\x00\xc0\x7f", 4);
  }
  [[nodiscard]] std::string config(const std::string& fp16) const {
    return "--deepspeed_config '" +
           write("ds.json", fmt::format(R"({{"train_micro_batch_size_per_gpu": 1,
    "fp16": {{"enabled": true, {}}}, "zero_optimization": {{"stage": 0}},
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.001}}}}}})",
                                        fp16)) +
           "'";
  }
};

TEST_F(LostReports, AReaderThatGoesDoesNotEndTheRun) {
  const Finished piped =
      shell("( " + command("run", 30) + "; echo $? >'" + path("code") + "' ) | head -n 2");
  EXPECT_EQ(content_of(path("code")), "0\n") << piped.err;
  EXPECT_FALSE(weights("run/model").empty());
  EXPECT_EQ(column("run", "step").size(), 30U);
}

TEST_F(LostReports, ClosedStreamsAreNoFilesOfTheRun) {
  const Finished closed = shell(command("run", 2) + " <&- >&- 2>&-");
  EXPECT_EQ(closed.code, 0);
  EXPECT_EQ(column("run", "step"), (std::vector<std::string>{"1", "2"}));
}

TEST_F(LostReports, ARemovedFolderIsSaidOnceAndTheModelSaved) {
  const pid_t process = start(command("run", 3000), "run");
  wait_for("run", "Step    3");
  fs::remove_all(path("run"));
  EXPECT_EQ(end_of(process), 6) << log_of("run");
  const std::string log = log_of("run");
  const std::size_t at = log.find("warning: [metrics]");
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find("warning: ", at + 1), std::string::npos) << log;
  EXPECT_THAT(log, HasSubstr("; lost: events, metrics.jsonl"));
  EXPECT_FALSE(weights("run/model").empty());
}

TEST_F(LostReports, ADiskWithoutRoomForTheModelIsNoticedBeforeTheFirstStep) {
  fs::create_directories(path("disk"));
  if (::mount("tmpfs", path("disk").c_str(), "tmpfs", 0, "size=48k") != 0) {
    GTEST_SKIP() << "mounting a small file system needs more rights";
  }
  const Finished refused = run("disk/run", 2);
  const bool is_empty = fs::is_empty(path("disk"));
  ::umount(path("disk").c_str());
  EXPECT_EQ(refused.code, 3) << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr("needed for what the run saves"),
                                 HasSubstr(path("disk/run")), HasSubstr("0.0 MiB free")));
  EXPECT_TRUE(is_empty);
}

TEST_F(LostReports, CheckpointsThatStayNeedTheirRoomToo) {
  fs::create_directories(path("disk"));
  if (::mount("tmpfs", path("disk").c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a small file system needs more rights";
  }
  const Finished one = run("disk/run", 2, "--no-tensorboard");
  const Finished many = run("disk/run", 2, "--save_every 1 --keep 9");
  ::umount(path("disk").c_str());
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(many.code, 3) << many.err;
}

/// Behind a link in the place of checkpoints/.
TEST_F(LostReports, TheRoomForCheckpointsIsThatOfTheDiskWhereTheyLie) {
  fs::create_directories(path("disk"));
  if (::mount("tmpfs", path("disk").c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "mounting a small file system needs more rights";
  }
  fs::create_directories(path("run"));
  fs::create_directory_symlink(path("disk"), path("run/checkpoints"));
  const Finished small = run("run", 2, "--save_every 1");
  ::umount(path("disk").c_str());
  EXPECT_EQ(small.code, 3) << small.err;
  EXPECT_THAT(small.err, HasSubstr(fmt::format("disk of {}", path("run/checkpoints"))));
  EXPECT_FALSE(fs::exists(path("run/metrics.jsonl")));

  ASSERT_EQ(::mount("tmpfs", path("disk").c_str(), "tmpfs", 0, "size=1m"), 0);
  fs::create_directories(path("large"));
  fs::create_directories(path("disk/run"));
  fs::create_directory_symlink(path("large"), path("disk/run/checkpoints"));
  const Finished large = run("disk/run", 2, "--save_every 1 --keep 9 --no-tensorboard");
  ::umount(path("disk").c_str());
  EXPECT_EQ(large.code, 0) << "they take none of the output folder's room: " << large.err;
}

/// Metrics alone are twice the disk.
TEST_F(LostReports, TheRunsOwnReportsDoNotTakeTheModelsRoom) {
  fs::create_directories(path("disk"));
  if (::mount("tmpfs", path("disk").c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a small file system needs more rights";
  }
  const Finished done = run("disk/run", 3000, "--no-tensorboard --log_interval 1000");
  const std::string saved = weights("disk/run/model");
  ::umount(path("disk").c_str());
  EXPECT_EQ(done.code, 6) << done.err;
  EXPECT_THAT(done.err, AllOf(HasSubstr("metrics.jsonl"), HasSubstr("No space left"),
                              HasSubstr("its exit code will be 6")));
  EXPECT_FALSE(saved.empty()) << done.err;
}

TEST_F(LostReports, LimitsOfFilesAreMetBeforeTheFirstStep) {
  const Finished large = shell("ulimit -f 8; " + command("run", 2));
  EXPECT_EQ(large.code, 3) << large.err;
  EXPECT_THAT(large.err, HasSubstr("`ulimit -f`"));
  fs::create_directories(path("disk"));
  if (::mount("tmpfs", path("disk").c_str(), "tmpfs", 0, "size=8m,nr_inodes=12") != 0) {
    GTEST_SKIP() << "mounting a small file system needs more rights";
  }
  const Finished many = run("disk/run", 2);
  ::umount(path("disk").c_str());
  EXPECT_EQ(many.code, 3) << many.err;
  EXPECT_THAT(many.err, HasSubstr("more files (inodes)"));
}

TEST_F(LostReports, AFolderIsOneRunsAtATime) {
  const pid_t process = start(command("run", 100'000), "run");
  wait_for("run", "Step    3");
  const Finished second = run("run", 2);
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(second.err, AllOf(HasSubstr("in use by finetune_zero3"),
                                HasSubstr(fmt::format("process {}", process))));
  ::kill(process, SIGHUP);
  EXPECT_EQ(end_of(process), 128 + SIGHUP) << log_of("run");
  EXPECT_FALSE(weights("run/model").empty()) << "a hang-up ends a run as SIGTERM does";
  const std::vector<std::string> steps = column("run", "step");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    ASSERT_EQ(steps[i], std::to_string(i + 1));
  }
  EXPECT_EQ(run("run", 2).code, 0) << "the lock went with its run";
  EXPECT_FALSE(fs::exists(path("run/run.lock")));
}

TEST_F(LostReports, ASignalBeforeTheFirstStepIsSaid) {
  // The run waits for a second rank.
  const pid_t process =
      start("env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29871 " +
                command("run", 3),
            "run");
  const auto takes_signals = [&] {
    const std::string status = content_of(fmt::format("/proc/{}/status", process));
    const std::size_t at = status.find("SigCgt:");
    return at != std::string::npos &&
           (std::strtoull(status.c_str() + at + 7, nullptr, 16) >> (SIGTERM - 1) & 1U) != 0;
  };
  for (int i = 0; i < 3000 && !takes_signals(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(process, SIGTERM);
  EXPECT_EQ(end_of(process), 128 + SIGTERM);
  EXPECT_EQ(log_of("run"),
            "error: [signal] SIGTERM came before the first step; nothing was trained or saved\n");
}

constexpr const char* kAnswer =
    "signal   the run ends after this step and saves its model and a checkpoint; ";

TEST_F(LostReports, ASignalIsAnsweredAndTwoAtOnceAreOneRequest) {
  for (const int signal : {SIGINT, SIGTERM, SIGXCPU}) {
    const std::string output = fmt::format("run{}", signal);
    const pid_t process = start(
        "env TANDEM_FAULT=0:sleep0.5:step:5 " + command(output, 100'000, "--save_every 100000"),
        output);
    wait_for(output, "[fault] sleep0.5");
    ::kill(process, signal);
    wait_for(output, kAnswer);  // while the step still stands
    EXPECT_THAT(log_of(output), ::testing::Not(HasSubstr("checkpoint of step")));
    ::kill(process, signal);
    EXPECT_EQ(end_of(process), 128 + (signal == SIGXCPU ? SIGTERM : signal)) << log_of(output);
    EXPECT_THAT(log_of(output), HasSubstr("the same command with --resume auto goes on"));
    EXPECT_FALSE(weights(output + "/model").empty());
  }
}

TEST_F(LostReports, ASignalThatComesALaterSecondTimeEndsTheRunAtOnce) {
  const pid_t process =
      start("env TANDEM_FAULT=0:sleep1000:step:5 " + command("run", 100'000, "--save_every 100000"),
            "run");
  wait_for("run", "[fault] sleep1000");
  ::kill(process, SIGINT);
  wait_for("run", kAnswer);
  std::this_thread::sleep_for(std::chrono::milliseconds(1'100));
  ::kill(process, SIGXCPU);  // a batch system's warning comes again and again, and demands nothing
  ::kill(process, SIGTERM);
  EXPECT_EQ(end_of(process), -SIGTERM);
  EXPECT_THAT(log_of("run"),
              HasSubstr("a second signal came; the run ends at once, as last saved"));
}

TEST_F(LostReports, NamesOfFoldersAreNoCommandsToATerminal) {
  const std::string name = "a\x1b[31m\nzz";
  const auto expect_plain = [](const Finished& done) {
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_EQ(done.out.find('\x1b'), std::string::npos) << done.out;
    EXPECT_EQ(done.out.find("\nzz"), std::string::npos) << done.out;
    EXPECT_THAT(done.out, HasSubstr("a\\x1b[31m\\nzz"));
  };
  expect_plain(run(name, 2, "--save_every 1"));
  expect_plain(run(name, 4, "--save_every 1 --resume auto"));
  expect_plain(shell(fmt::format("'{}/tandem' report '{}'", test::bin_dir(), path(name))));
  for (const char* what : {"show", "verify"}) {
    expect_plain(
        shell(fmt::format("'{}/tandem' checkpoint {} '{}'", test::bin_dir(), what, path(name))));
  }
}

// No restart of it: all that it was started for is there.
TEST_F(LostReports, ARunThatLostAReportIsNotTrainedAgain) {
  // Rank 1 cannot write its part of the trace.
  fs::create_directories(path("run/.trace.json.gz.tmp-0000000000000001/in the way"));
  const Finished done = shell(fmt::format("'{}/tandem' launch -n 2 --max_restarts 2 -- {} --trace",
                                          test::bin_dir(), command("run", 4)));
  EXPECT_EQ(done.code, 6) << done.err;
  EXPECT_THAT(done.err, AllOf(HasSubstr("of 2 trained and saved, and lost a report"),
                              ::testing::Not(HasSubstr("restart"))));
  EXPECT_EQ(column("run", "step").size(), 4U);
  EXPECT_FALSE(weights("run/model").empty());
}

TEST_F(LostReports, WeightsThatAreNoNumbersAreNamedWhenTheyAreRead) {
  spoil_source();
  const Finished refused = run("run", 2);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("model/model.safetensors"), HasSubstr("tensor \"model."),
                                 HasSubstr("is NaN or infinite at element")));
  EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
  EXPECT_FALSE(fs::exists(path("run/model")));
}

TEST_F(LostReports, ARunThatLearntNothingSaysSoAndHarmsNothing) {
  ASSERT_EQ(run("run", 2).code, 0);
  const std::string older = weights("run/model");
  const Finished some = run("run", 3, config(R"("loss_scale": 1e30)"));
  EXPECT_EQ(some.code, 5);
  EXPECT_THAT(some.err, HasSubstr("all 3 steps were skipped"));
  const Finished many = run("run", 40, config(R"("loss_scale": 1e30)"));
  EXPECT_EQ(many.code, 5);
  EXPECT_THAT(many.err, HasSubstr("not finite for 20 steps in a row"));
  EXPECT_EQ(weights("run/model"), older);
  const Finished fresh = run("fresh", 40, config(R"("loss_scale": 1e30)"));
  EXPECT_EQ(fresh.code, 5);
  EXPECT_FALSE(weights("fresh/model").empty()) << "the last good weights are saved";
}

TEST_F(LostReports, AFallingLossScaleIsNoBadState) {
  const Finished done = run("run", 60, config(R"("initial_scale_power": 40, "hysteresis": 6)"));
  EXPECT_EQ(done.code, 0) << done.err;
}

TEST_F(LostReports, WhatIsNoPartOfAModelStaysInItsFolder) {
  ASSERT_EQ(run("run", 2).code, 0);
  write("run/model/README.md", "notes");
  write("run/model/.model.safetensors.tmp-0123456789abcdef", "of a killed save");
  write("run/.summary.json.tmp-0123456789abcdef", "of a killed run");
  write("run/model.tmp-0123456789abcdef/config.json", "of a killed save");
  ASSERT_EQ(run("run", 2).code, 0);
  EXPECT_EQ(content_of(path("run/model/README.md")), "notes");
  for (const auto& entry : fs::recursive_directory_iterator(path("run"))) {
    EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
  }
}

TEST_F(LostReports, AKilledConversionLeavesNothingToTheNextOne) {
  ASSERT_EQ(run("run", 2, "--save_every 2").code, 0);
  for (const char* to : {"hf", "tandem", "universal"}) {
    write("converted.tmp-0123456789abcdef/config.json", "of a killed conversion");
    const Finished done = shell(fmt::format("'{}/tandem' convert '{}' '{}' --to {}",
                                            test::bin_dir(), path("run"), path("converted"), to));
    EXPECT_EQ(fs::exists(path("converted.tmp-0123456789abcdef")), done.code == 2 && to[0] == 't')
        << done.err;
    fs::remove_all(path("converted"));
  }
}

}  // namespace
}  // namespace tandem
