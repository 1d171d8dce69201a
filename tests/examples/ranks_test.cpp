// The trainers on several ranks, as launchers start them: the same digits however the work is
// shared, and an end in time with the guilty rank named when one of them fails.
#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include <signal.h>

#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class Ranks : public TrainerTest {
 protected:
  void TearDown() override {
    for (const pid_t process : running_) {
      ::kill(process, SIGKILL);
      ::waitpid(process, nullptr, 0);
    }
    TrainerTest::TearDown();
  }

  /// Flags of a short demo run.
  [[nodiscard]] std::string flags(const std::string& output, const std::string& more) const {
    return fmt::format(
        "--output_dir '{}' --batch_size 2 --progress off --no-tensorboard --no-samples {}",
        path(output), more);
  }
  [[nodiscard]] Finished launch(int ranks, const std::string& command) const {
    return shell(fmt::format("'{}/tandem' launch -n {} -- {}", test::bin_dir(), ranks, command));
  }
  [[nodiscard]] Finished finetune_on(int ranks, const std::string& output,
                                     const std::string& more) const {
    return launch(ranks, fmt::format("'{}' {}", kTrainer, flags(output, more)));
  }
  [[nodiscard]] std::vector<std::string> digits(const std::string& output) const {
    std::vector<std::string> all = column(output, "loss");
    const std::vector<std::string> norms = column(output, "grad_norm");
    all.insert(all.end(), norms.begin(), norms.end());
    return all;
  }

  /// One rank of two, started by hand with the variables of torchrun; stdout and stderr go to files
  /// by `name`.
  pid_t start(const std::string& name, int rank, const std::string& variables,
              const std::string& more) {
    const std::string command = fmt::format(
        "exec env RANK={} LOCAL_RANK={} WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
        "MASTER_PORT={} {} '{}' {} >'{}' 2>'{}' </dev/null",
        rank, rank, port_, variables, kTrainer, flags("run", more), path(name + ".out"),
        path(name + ".err"));
    const pid_t process = ::fork();
    if (process == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    running_.push_back(process);
    return process;
  }
  /// The exit code of a started process, 128 + signal, or -1 when it still runs after the time.
  int end_of(pid_t process, std::chrono::seconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < deadline) {
      int status = 0;
      if (::waitpid(process, &status, WNOHANG) == process) {
        std::erase(running_, process);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return -1;
  }
  [[nodiscard]] std::string errors_of(const std::string& name) const {
    return content_of(folder_ / (name + ".err"));
  }
  /// Until the run has written `steps` lines of metrics.
  void wait_for_steps(std::size_t steps) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (column("run", "step").size() < steps && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_GE(column("run", "step").size(), steps) << errors_of("0") << errors_of("1");
  }

  std::vector<pid_t> running_;
  int port_ = 20000 + ::getpid() % 12000;  // below those that the system hands out
};

// ---- the same digits ----------------------------------------------------------------------------

TEST_F(Ranks, ShareAStepWithoutChangingOneDigit) {
  for (const int stage : {2, 3}) {
    const auto run = [&](int ranks) {
      const std::string output = fmt::format("stage{}ranks{}", stage, ranks);
      const Finished done = finetune_on(
          ranks, output,
          fmt::format("--steps 4 --stage {} --gradient_accumulation_steps {}", stage, 4 / ranks));
      EXPECT_EQ(done.code, 0) << done.err;
      EXPECT_EQ(column(output, "loss").size(), 4U);
      return std::pair(digits(output), content_of(folder_ / output / "model/model.safetensors"));
    };
    const auto alone = run(1);
    EXPECT_EQ(std::set(alone.first.begin(), alone.first.end()).size(), 8U) << "it moves";
    for (const int ranks : {2, 4}) {
      EXPECT_TRUE(run(ranks) == alone) << "stage " << stage << ", " << ranks << " ranks";
    }
  }
}

TEST_F(Ranks, ReplicasShareAStepWithoutChangingOneDigit) {
  for (const int stage : {0, 1}) {
    std::vector<std::vector<std::string>> runs;
    for (const int ranks : {1, 4}) {
      const std::string output = fmt::format("stage{}ranks{}", stage, ranks);
      const Finished done = finetune_on(
          ranks, output,
          fmt::format("--steps 3 --stage {} --gradient_accumulation_steps {}", stage, 4 / ranks));
      ASSERT_EQ(done.code, 0) << done.err;
      runs.push_back(digits(output));
    }
    EXPECT_EQ(runs[0], runs[1]) << "stage " << stage;
  }
}

TEST_F(Ranks, StagesAndSchedulesOfTwoRanksDoNotChangeOneDigit) {
  std::vector<std::string> expected;
  const std::pair<int, const char*> settings[] = {{0, "off"},  {0, "offload"}, {1, "comm"},
                                                  {2, "off"},  {2, "offload"}, {3, "off"},
                                                  {3, "comm"}, {3, "offload"}};
  for (const auto& [stage, overlap] : settings) {
    const std::string output = fmt::format("{}{}", overlap, stage);
    const Finished done =
        launch(2, fmt::format("'{}/cifar10' --dtype fp32 --stage {} --overlap {} --steps 6 "
                              "--gradient_clipping 0.1 --gradient_accumulation_steps 2 "
                              "--no-tensorboard --output_dir '{}'",
                              test::bin_dir(), stage, overlap, path(output)));
    ASSERT_EQ(done.code, 0) << done.err;
    if (expected.empty()) {
      expected = digits(output);
      ASSERT_EQ(expected.size(), 12U);
    }
    EXPECT_EQ(digits(output), expected) << "stage " << stage << ", overlap " << overlap;
  }
}

// ---- launchers ----------------------------------------------------------------------------------

TEST_F(Ranks, EveryLauncherStartsTheSameRun) {
  const std::string steps = "--steps 2";
  ASSERT_EQ(finetune_on(2, "launch", steps).code, 0);
  const std::vector<std::string> expected = digits("launch");
  ASSERT_EQ(expected.size(), 4U);

  // Two tasks of a job, as Slurm and Open MPI describe themselves to them.
  const auto by_hand = [&](const std::string& output, const auto& variables_of) {
    const std::string both = fmt::format(
        "env {} '{}' {} & first=$!; env {} '{}' {}; second=$?; wait $first && exit $second",
        variables_of(0), kTrainer, flags(output, steps), variables_of(1), kTrainer,
        flags(output, steps));
    const Finished done = shell(both);
    EXPECT_EQ(done.code, 0) << output << ": " << done.err;
    EXPECT_EQ(digits(output), expected) << output;
  };
  by_hand("slurm", [&](int rank) {
    return fmt::format(
        "SLURM_PROCID={} SLURM_NTASKS=2 SLURM_LOCALID={} SLURM_JOB_ID={} SLURM_STEP_ID=0 "
        "SLURM_JOB_NODELIST=localhost SLURM_TASKS_PER_NODE=2",
        rank, rank, ::getpid());
  });
  by_hand("openmpi", [&](int rank) {
    return fmt::format(
        "OMPI_COMM_WORLD_RANK={} OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK={} "
        "OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_PORT={}",
        rank, rank, port_);
  });
  if (!std::filesystem::exists(kPython)) {
    GTEST_SKIP() << "torchrun was not tried: no .venv";
  }
  const Finished torchrun =
      shell(fmt::format("'{}' -m torch.distributed.run --no-python --nproc-per-node 2 "
                        "--master-port {} '{}' {}",
                        kPython, port_ + 1, kTrainer, flags("torchrun", steps)));
  EXPECT_EQ(torchrun.code, 0) << torchrun.err;
  EXPECT_EQ(digits("torchrun"), expected);
}

// ---- faults -------------------------------------------------------------------------------------

constexpr std::chrono::seconds kInTime(60);

TEST_F(Ranks, AKilledRankIsNamedByTheOther) {
  for (const int victim : {0, 1}) {
    std::filesystem::remove_all(folder_ / "run");
    pid_t ranks[2] = {start("0", 0, "", "--steps 100000"), start("1", 1, "", "--steps 100000")};
    wait_for_steps(3);
    const auto killed = std::chrono::steady_clock::now();
    ::kill(ranks[victim], SIGKILL);
    EXPECT_EQ(end_of(ranks[1 - victim], kInTime), 4);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - killed).count();
    RecordProperty(fmt::format("rank_{}_killed_s", victim), fmt::format("{:.3f}", seconds));
    std::printf("rank %d killed: the other ended after %.2f s\n", victim, seconds);
    EXPECT_THAT(errors_of(std::to_string(1 - victim)), HasSubstr(fmt::format("rank {}", victim)));
    EXPECT_EQ(end_of(ranks[victim], kInTime), 128 + SIGKILL);
    port_ += 2;
  }
}

TEST_F(Ranks, AStoppedRankIsNamedAfterTheDeadline) {
  const std::string soon = "TANDEM_COLLECTIVE_TIMEOUT_S=3";
  const pid_t stays = start("0", 0, soon, "--steps 100000");
  const pid_t stops = start("1", 1, soon, "--steps 100000");
  wait_for_steps(3);
  ::kill(stops, SIGSTOP);
  const auto stopped = std::chrono::steady_clock::now();
  EXPECT_EQ(end_of(stays, kInTime), 4);
  std::printf("rank 1 stopped: the other ended after %.2f s, deadline 3 s\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - stopped).count());
  EXPECT_THAT(errors_of("0"), HasSubstr("[watchdog] a task waits for "));  // before the deadline
  EXPECT_THAT(errors_of("0"), HasSubstr("rank 1"));
  ::kill(stops, SIGCONT);
  EXPECT_EQ(end_of(stops, kInTime), 4) << errors_of("1");
}

TEST_F(Ranks, ARunThatHangsShowsWhatItWaitsForOnSigquit) {
  const pid_t asked = start("0", 0, "", "--steps 100000");
  const pid_t stops = start("1", 1, "", "--steps 100000");
  wait_for_steps(2);
  ::kill(stops, SIGSTOP);
  ::kill(asked, SIGQUIT);
  const auto deadline = std::chrono::steady_clock::now() + kInTime;
  while (errors_of("0").find("actor optimizer: ") == std::string::npos &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::string shown = errors_of("0");
  EXPECT_THAT(shown, HasSubstr("loop \"rank 0\" at "));
  EXPECT_THAT(shown, HasSubstr("scope \"actors\": "));
  EXPECT_THAT(shown, HasSubstr("main ("));
  EXPECT_THAT(shown, HasSubstr("actor shard "));
  ::kill(stops, SIGCONT);
  ::kill(asked, SIGTERM);
  EXPECT_EQ(end_of(asked, kInTime), 128 + SIGTERM) << errors_of("0");
  EXPECT_EQ(end_of(stops, kInTime), 0) << errors_of("1");
  EXPECT_THAT(content_of(folder_ / "run/waits-rank0.txt"), HasSubstr("actor optimizer: "));
}

TEST_F(Ranks, DifferentConfigsAreNamedByBoth) {
  const pid_t first = start("0", 0, "", "--steps 2 --gradient_clipping 0.5");
  const pid_t second = start("1", 1, "", "--steps 2 --gradient_clipping 0.25");
  EXPECT_EQ(end_of(first, kInTime), 4);
  EXPECT_EQ(end_of(second, kInTime), 4);
  for (const char* name : {"0", "1"}) {
    const std::string errors = errors_of(name);
    EXPECT_THAT(errors, HasSubstr("config")) << name;
    EXPECT_EQ(std::ranges::count(errors, '\n'), 1) << errors;
  }
}

TEST_F(Ranks, ARankThatFailsAloneEndsTheOthers) {
  // Only the first rank writes, so only it meets the folder that is a file.
  write("run", "not a folder");
  const Finished done = finetune_on(2, "run", "--steps 2");
  EXPECT_EQ(done.code, 2) << done.err;
  EXPECT_THAT(done.err, HasSubstr("[0] error: ["));
}

TEST_F(Ranks, AnInterruptedRunEndsAfterTheSameStepOnAllRanks) {
  const pid_t ranks[2] = {start("0", 0, "", "--steps 100000"), start("1", 1, "", "--steps 100000")};
  wait_for_steps(2);
  ::kill(ranks[1], SIGTERM);  // one of them is enough
  EXPECT_EQ(end_of(ranks[1], kInTime), 128 + SIGTERM);
  EXPECT_EQ(end_of(ranks[0], kInTime), 0) << errors_of("0");
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/model/model.safetensors"));
}

}  // namespace
}  // namespace tandem
