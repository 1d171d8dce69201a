// The trainers stop and go on: by a signal, by a time, by kill -9, on other ranks. The run that
// went on has the digits of the one that never stopped.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "actors/checkpoint/slices.hpp"
#include "examples/support/run_checkpoints.hpp"
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::Not;

// ---- which folder --resume names, on hosts with disks of their own

/// Slices of that disk, of two, in `folder` under a temporary name.
void seal(const fs::path& folder, std::uint32_t disk, char id = 'a') {
  const fs::path slices = folder / "checkpoints/step-00000002.tmp-0123abcd";
  fs::create_directories(slices);
  const PlannedFile whole{"master-00001-of-00001.safetensors",
                          {{"embed.weight", TensorType::kF32, {7, 5}}}};
  std::ofstream(slices / "slices.json") << Slices{
      .step = 2,
      .plan = {.save = std::string(32, id),
               .disk = disk,
               .hosts = {"a", "b"},
               .whole = {whole}}}.json();
}

/// Whether --resume auto finds anything, where each rank has a folder of its own.
bool finds_a_checkpoint(const std::vector<fs::path>& folders) {
  const std::vector<int> found = on_ranks(2, [&](const std::shared_ptr<Communicator>& ranks) {
    RunFlags flags;
    flags.output_dir = folders[static_cast<std::size_t>(ranks->rank())];
    flags.resume = "auto";
    return resume_folder(flags, *ranks).empty() ? 0 : 1;
  });
  EXPECT_EQ(found[0], found[1]);
  return found[0] == 1;
}

TEST(ResumeFolder, HasASaveThatAllItsDisksHaveSealed) {
  const test::TempDir folder;
  const std::vector<fs::path> disks = {folder.path() / "a", folder.path() / "b"};
  EXPECT_FALSE(finds_a_checkpoint(disks));
  seal(disks[1], 1);
  EXPECT_FALSE(finds_a_checkpoint(disks)) << "one disk of two";
  seal(disks[0], 0, 'b');
  EXPECT_FALSE(finds_a_checkpoint(disks)) << "two saves, none of which is whole";
  seal(disks[0], 0);
  EXPECT_TRUE(finds_a_checkpoint(disks));
  fs::remove_all(disks[0]);
  const fs::path slices = disks[1] / "checkpoints/step-00000002";
  fs::rename(slices.string() + ".tmp-0123abcd", slices);
  EXPECT_TRUE(finds_a_checkpoint(disks)) << "one that has its name is missed, and named";
}

TEST(ResumeFolder, AForeignCheckpointHasToBeOnEveryHost) {
  const test::TempDir folder;
  fs::create_directories(folder.path() / "a");
  std::ofstream(folder.path() / "a/latest") << "global_step2";
  const auto ask = [&](bool one_host) {
    return on_ranks(2, [&](const std::shared_ptr<Communicator>& ranks) {
      const bool has_it = !one_host || ranks->rank() == 1;
      return is_foreign_everywhere(folder.path() / (has_it ? "a" : "b"), *ranks) ? 1 : 0;
    });
  };
  EXPECT_EQ(ask(false), (std::vector<int>{1, 1}));
  EXPECT_THAT(error_text([&] { (void)ask(true); }, ExitCode::kUserInput),
              HasSubstr("/b holds a checkpoint of DeepSpeed or torch for 1 of 2 ranks only; copy"));
}

class TrainerResume : public TrainerTest {
 protected:
  /// Flags of a demo run of `steps`, a few milliseconds each.
  [[nodiscard]] std::string flags(const std::string& output, int steps,
                                  const std::string& more) const {
    return fmt::format(
        "--output_dir '{}' --batch_size 2 --max_length 48 --steps {} --progress lines "
        "--log_interval 1 --no-samples {}",
        path(output), steps, more);
  }
  [[nodiscard]] Finished run(const std::string& output, int steps, const std::string& more) const {
    return train(flags(output, steps, more));
  }
  [[nodiscard]] Finished on_ranks(int ranks, const std::string& output, int steps,
                                  const std::string& more) const {
    return shell(fmt::format("'{}/tandem' launch -n {} -- '{}' {}", TANDEM_BIN_DIR, ranks, kTrainer,
                             flags(output, steps, more)));
  }

  /// Starts a run in the background; its output goes to a file.
  pid_t start(const std::string& output, int steps, const std::string& more) const {
    const std::string command = fmt::format("exec '{}' {} >'{}' 2>&1 </dev/null", kTrainer,
                                            flags(output, steps, more), path(output + ".log"));
    const pid_t process = ::fork();
    if (process == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    return process;
  }
  [[nodiscard]] std::string log_of(const std::string& output) const {
    return content_of(folder_ / (output + ".log"));
  }
  /// Whether `text` came into the log within a minute.
  [[nodiscard]] bool wait_for(const std::string& output, const std::string& text) const {
    for (int i = 0; i < 6000; ++i) {
      if (log_of(output).find(text) != std::string::npos) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  static int end_of(pid_t process) {
    int status = 0;
    ::waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  void expect_same_run(const std::string& one, const std::string& other) const {
    EXPECT_EQ(column(one, "step"), column(other, "step"));
    expect_same_digits(one, other);
  }
};

TEST_F(TrainerResume, ASignalEndsTheRunAndItGoesOn) {
  const Finished straight = run("straight", 60, "");
  ASSERT_EQ(straight.code, 0) << straight.err;
  const pid_t process = start("stopped", 60, "--save_every 10");
  EXPECT_TRUE(wait_for("stopped", "Step   12"));
  ::kill(process, SIGUSR1);  // saves and goes on
  EXPECT_TRUE(wait_for("stopped", "Step   16"));
  ::kill(process, SIGTERM);
  EXPECT_EQ(end_of(process), 128 + SIGTERM) << log_of("stopped");
  EXPECT_THAT(log_of("stopped"), HasSubstr("checkpoint of step 1"));
  EXPECT_THAT(log_of("stopped"), HasSubstr("--resume auto goes on"));
  const Finished went_on = run("stopped", 60, "--save_every 10 --resume auto");
  ASSERT_EQ(went_on.code, 0) << went_on.err;
  EXPECT_THAT(went_on.out, HasSubstr("resume   after step 1"));
  expect_same_run("straight", "stopped");
}

TEST_F(TrainerResume, ATimeEndsTheRunAndItGoesOn) {
  const Finished straight = run("straight", 40, "");
  ASSERT_EQ(straight.code, 0) << straight.err;
  const Finished stopped = run("stopped", 40, "--stop_after 0.2s");
  ASSERT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("the same command with --resume auto goes on"));
  ASSERT_LT(column("stopped", "step").size(), 40U);
  const Finished went_on = run("stopped", 40, "--resume auto");
  ASSERT_EQ(went_on.code, 0) << went_on.err;
  expect_same_run("straight", "stopped");
}

TEST_F(TrainerResume, OnAnotherNumberOfRanksItIsTheSameRun) {
  const Finished straight = run("straight", 12, "--gradient_accumulation_steps 2");
  ASSERT_EQ(straight.code, 0) << straight.err;
  ASSERT_EQ(
      run("moved", 12, "--gradient_accumulation_steps 2 --save_every 4 --stop_after 0.05s").code,
      0);
  const Finished on_two = on_ranks(2, "moved", 12, "--save_every 4 --resume auto --stage 2");
  ASSERT_EQ(on_two.code, 0) << on_two.out << on_two.err;
  EXPECT_THAT(on_two.out, HasSubstr("resume   after step"));
  expect_same_digits("straight", "moved");
}

TEST_F(TrainerResume, WhatIsNotThatRunIsRefused) {
  ASSERT_EQ(run("first", 3, "--save_every 3").code, 0);
  const std::string resume = fmt::format("--resume '{}'", path("first"));
  const auto refused = [&](const std::string& more, std::vector<std::string> parts) {
    const Finished finished = run("second", 6, more);
    EXPECT_EQ(finished.code, 2) << more << finished.err;
    for (const std::string& part : parts) {
      EXPECT_THAT(finished.err, HasSubstr(part)) << more;
    }
  };
  refused(resume + " --seed 7", {"seed", "42", "7", "--resume_ignore seed"});
  refused(resume + " --gradient_accumulation_steps 2",
          {"micro-batches of a step", "--resume_ignore batch"});
  refused(resume + " --dataset_percentage 50", {"fingerprint", "--resume_ignore data"});
  refused(fmt::format("--resume '{}'", path("nowhere")), {"no such folder"});
  refused("--save_every -1", {"--save_every"});
  refused("--stop_after soon", {"--stop_after", "3h50m"});
  refused(resume + " --resume_ignore everything", {"--resume_ignore"});
  const Finished ignored =
      run("second", 6, resume + " --dataset_percentage 50 --resume_ignore data");
  EXPECT_EQ(ignored.code, 0) << ignored.err;
  EXPECT_THAT(ignored.out, HasSubstr("(ignored)"));
  const Finished fresh = run("third", 2, "--resume auto");
  EXPECT_EQ(fresh.code, 0) << fresh.err;
  EXPECT_THAT(fresh.out, HasSubstr("a fresh start"));
}

/// Whatever of the newest one is damaged; and where none is whole, auto begins anew and says so.
TEST_F(TrainerResume, AutoStepsOverWhatIsDamaged) {
  const Finished straight = run("run", 6, "--save_every 2");
  ASSERT_EQ(straight.code, 0) << straight.err;
  const std::vector<std::string> losses = column("run", "loss");
  write("run/checkpoints/step-00000006/state.json", "{ torn");
  const Finished went_on = run("run", 6, "--save_every 2 --resume auto");
  ASSERT_EQ(went_on.code, 0) << went_on.err;
  EXPECT_THAT(went_on.out, HasSubstr("resume   after step 4"));
  EXPECT_EQ(column("run", "loss"), losses);
  for (const char* step : {"step-00000004", "step-00000006"}) {
    std::filesystem::remove(folder_ / "run/checkpoints" / step / "manifest.json");
  }
  const Finished fresh = run("run", 2, "--resume auto");
  ASSERT_EQ(fresh.code, 0) << fresh.err;
  EXPECT_THAT(fresh.out, HasSubstr("a fresh start"));
  EXPECT_THAT(fresh.out, HasSubstr("step-00000006"));
}

TEST_F(TrainerResume, TransformersReadsTheMasters) {
  if (!has_transformers()) {
    GTEST_SKIP() << "no transformers in .venv";
  }
  ASSERT_EQ(run("run", 3, "--save_every 3").code, 0);
  const Finished read = shell(
      fmt::format("'{}' -c \"from transformers import AutoModelForCausalLM as M; import torch; "
                  "a = M.from_pretrained('{}', dtype=torch.float32).state_dict(); "
                  "b = M.from_pretrained('{}', dtype=torch.float32).state_dict(); "
                  "assert all(torch.equal(a[k], b[k]) for k in a) and len(a) > 20\"",
                  kPython, path("run/checkpoints/step-00000003"), path("run/model")));
  EXPECT_EQ(read.code, 0) << read.err;
}

/// kill -9 at random points, again and again: no step that was reported as saved is lost, no torn
/// checkpoint is taken for whole, and the run that at last ends has the digits of one that was
/// never killed. TANDEM_TRAINER_KILLS is how often (the campaign: 200).
TEST_F(TrainerResume, KilledAtAnyPointItGoesOnFromTheLastSave) {
  const char* asked = std::getenv("TANDEM_TRAINER_KILLS");
  const int kills = asked != nullptr ? std::atoi(asked) : 6;
  const int steps = 10 * kills;
  const Finished straight = run("straight", steps, "");
  ASSERT_EQ(straight.code, 0) << straight.err;
  std::mt19937 random(20261122);
  long reported = 0;
  int lost = 0;
  for (int i = 0; i < kills; ++i) {
    const pid_t process = start("killed", steps, "--save_every 2 --resume auto");
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + random() % 900));
    ::kill(process, SIGKILL);
    (void)end_of(process);
    const std::string log = log_of("killed");
    if (const std::size_t at = log.find("resume   after step "); at != std::string::npos) {
      const long resumed = std::strtol(log.c_str() + at + 20, nullptr, 10);
      lost += resumed < reported ? 1 : 0;
      EXPECT_GE(resumed, reported);
    }
    EXPECT_THAT(log, Not(HasSubstr("damaged")));
    constexpr std::string_view kSaved = "checkpoint of step ";
    for (std::size_t at = log.find(kSaved); at != std::string::npos;
         at = log.find(kSaved, at + 1)) {
      reported = std::max(reported, std::strtol(log.c_str() + at + kSaved.size(), nullptr, 10));
    }
  }
  const Finished ended = run("killed", steps, "--save_every 2 --resume auto");
  ASSERT_EQ(ended.code, 0) << ended.err;
  expect_same_run("straight", "killed");
  fmt::print("{} kills: {} committed steps lost; the last save before the end was of step {}\n",
             kills, lost, reported);
}

/// Experts that were spread over two ranks go on on one.
TEST_F(TrainerResume, ExpertsOverRanksGoOnOnOne) {
  const auto cifar = [&](const std::string& output, const std::string& more) {
    return fmt::format(
        "'{}/cifar10' --dtype fp32 --stage 2 --moe --num-experts 2 --steps 6 --output_dir '{}' "
        "--progress off {}",
        TANDEM_BIN_DIR, path(output), more);
  };
  const auto on_two = [&](const std::string& command) {
    return shell(fmt::format("'{}/tandem' launch -n 2 -- {}", TANDEM_BIN_DIR, command));
  };
  const Finished straight = on_two(cifar("straight", "--ep-world-size 2"));
  ASSERT_EQ(straight.code, 0) << straight.err;
  const Finished half = on_two(cifar("moved", "--ep-world-size 2 --save_every 3"));
  ASSERT_EQ(half.code, 0) << half.err;
  std::filesystem::remove_all(folder_ / "moved/checkpoints/step-00000006");
  const Finished went_on = shell(cifar("moved", "--resume auto"));
  ASSERT_EQ(went_on.code, 0) << went_on.err;
  expect_same_digits("straight", "moved");
}

}  // namespace
}  // namespace tandem
