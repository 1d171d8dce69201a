// The trainers stop and go on: by a signal, by a time, by kill -9, on other ranks. The run that
// went on has the digits of the one that never stopped.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "actors/storage/manifest.hpp"
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/throws_error.hpp"
#include "trainer/run_checkpoints.hpp"

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
  std::ofstream(slices / "manifest.json") << Manifest{
      .step = 2,
      .files = {},
      .slices = ManifestSlices{.save = std::string(32, id),
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
    return shell(fmt::format("'{}/tandem' launch -n {} -- '{}' {}", test::bin_dir(), ranks,
                             kTrainer, flags(output, steps, more)));
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
  [[nodiscard]] std::string newest_checkpoint(const std::string& output) const {
    std::string newest;
    for (const auto& entry : fs::directory_iterator(path(output + "/checkpoints"))) {
      newest = std::max(newest, entry.path().filename().string());
    }
    return newest;
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

TEST_F(TrainerResume, AnotherBatchGoesOnByTheRecordsSeen) {
  const std::string same =
      "--no-tensorboard --loss_mean tokens --lr_scheduler constant --warmup 0 ";
  const std::string four = same + "--batch_size 4 --save_every 3";
  const auto demo = [&](const std::string& output, int steps, const std::string& more) {
    return fmt::format(
        "--output_dir '{}' --max_length 48 --steps {} --progress lines --no-samples {}",
        path(output), steps, more);
  };
  ASSERT_EQ(train(demo("straight", 6, four)).code, 0);
  ASSERT_EQ(train(demo("moved", 3, four)).code, 0);
  const std::string two = same + "--batch_size 2 --resume auto --resume_ignore batch";
  const Finished ranks = shell(fmt::format("'{}/tandem' launch -n 2 -- '{}' {}", test::bin_dir(),
                                           kTrainer, demo("moved", 6, two)));
  ASSERT_EQ(ranks.code, 0) << ranks.err;
  EXPECT_THAT(ranks.out, HasSubstr("the micro-batch size: 4 in the checkpoint, 2 now (ignored)"));
  EXPECT_EQ(column("moved", "tokens"), column("straight", "tokens")) << "the same records";
  const auto straight = column("straight", "loss");
  const auto moved = column("moved", "loss");
  ASSERT_EQ(moved.size(), 6U);
  for (std::size_t i = 0; i < moved.size(); ++i) {
    EXPECT_NEAR(std::stod(moved[i]), std::stod(straight[i]), 1e-4 * std::stod(straight[i])) << i;
  }
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
    EXPECT_FALSE(std::filesystem::exists(folder_ / "second")) << more;
  };
  refused(resume + " --seed 7", {"seed", "42", "7", "--resume_ignore seed"});
  refused(resume + " --gradient_accumulation_steps 2",
          {"micro-batches of a step", "--resume_ignore batch"});
  refused(fmt::format("{} --dataset_percentage 50 --dataset_name '{}'", resume,
                      test::source_path("examples/demo/instructions.json")),
          {"the fingerprint of ", "instructions.json is ",
           "--resume_ignore data (of the engine: LoadArgs::ignored)"});
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

/// Whatever of the newest one is damaged; and where none is whole, nothing begins over them.
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
  const Finished refused = run("run", 2, "--resume auto --save_every 2");
  EXPECT_EQ(refused.code, 2) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("holds no whole checkpoint"));
  EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
  EXPECT_EQ(column("run", "loss"), losses);
}

/// The same command again is a slip more often than a wish.
TEST_F(TrainerResume, ARunThatHasNotEndedIsNotBegunOver) {
  ASSERT_EQ(run("run", 100'000, "--save_every 10 --stop_after 1s").code, 0);
  const std::vector<std::string> losses = column("run", "loss");
  const std::string newest = newest_checkpoint("run");
  const std::string model = content_of(path("run/model/model.safetensors"));
  const Finished refused = run("run", 4, "--save_every 2");
  EXPECT_EQ(refused.code, 2) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("--resume auto goes on, --overwrite_output_dir begins anew"));
  EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
  EXPECT_EQ(column("run", "loss"), losses);
  EXPECT_EQ(newest_checkpoint("run"), newest);
  EXPECT_FALSE(fs::exists(path("run/earlier-1")));

  const char* killed = "checkpoints/step-00000099.tmp-0123456789abcdef";
  fs::create_directory(folder_ / "run" / killed);
  const Finished anew = run("run", 4, "--save_every 2 --overwrite_output_dir");
  EXPECT_EQ(anew.code, 0) << anew.err;
  EXPECT_FALSE(fs::exists(folder_ / "run" / killed)) << "the next save removes it";
  EXPECT_FALSE(fs::exists(folder_ / "run/earlier-1" / killed));
  EXPECT_EQ(column("run", "step").size(), 4U);
  EXPECT_EQ(newest_checkpoint("run"), "step-00000004");
  EXPECT_EQ(newest_checkpoint("run/earlier-1"), newest);
  EXPECT_EQ(column("run/earlier-1", "loss"), losses);
  EXPECT_EQ(content_of(path("run/earlier-1/model/model.safetensors")), model);
  EXPECT_NE(content_of(path("run/model/model.safetensors")), model);

  const Finished again = run("run", 2, "--save_every 2");
  EXPECT_EQ(again.code, 0) << "over a run that has ended: " << again.err;
  EXPECT_EQ(newest_checkpoint("run/earlier-2"), "step-00000004");
  EXPECT_EQ(newest_checkpoint("run"), "step-00000002");
}

/// A launcher that starts a failed run again starts the same command.
TEST_F(TrainerResume, ARestartGoesOnFromWhatTheRunHasSaved) {
  ASSERT_EQ(run("whole", 8, "--save_every 2").code, 0);
  ASSERT_EQ(run("run", 100'000, "--save_every 2 --stop_after 1s").code, 0);
  fs::remove_all(path("run/checkpoints"));
  fs::create_directory(path("run/checkpoints"));
  fs::rename(path("whole/checkpoints/step-00000006"), path("run/checkpoints/step-00000006"));
  ::setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  const Finished on = run("run", 8, "--save_every 2");
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_THAT(on.out, HasSubstr("resume   after step 6"));
  EXPECT_EQ(content_of(path("run/model/model.safetensors")),
            content_of(path("whole/model/model.safetensors")));

  // The checkpoints of a run that has ended are none of the one that begins over it.
  const Finished over = run("run", 8, "--save_every 2");
  EXPECT_EQ(over.code, 0) << over.err;
  EXPECT_THAT(over.out, Not(HasSubstr("resume")));
  ::unsetenv("TORCHELASTIC_RESTART_COUNT");
}

TEST_F(TrainerResume, ASaveThatFailsIsSaidOnStandardError) {
  ASSERT_EQ(run("way", 4, "--save_every 2 --keep 9").code, 0);
  fs::remove(path("way/checkpoints/step-00000004/manifest.json"));
  const std::string flags = "--save_every 2 --keep 9 --resume auto";
  const Finished last = run("way", 4, flags);
  EXPECT_EQ(last.code, 1) << last.out;
  EXPECT_THAT(last.err, HasSubstr("warning: [checkpoint] "));
  EXPECT_THAT(last.err, HasSubstr("step 4 is not saved, and the run goes on"));
  EXPECT_THAT(last.err, HasSubstr("\nerror: [checkpoint] the model is saved, and the last "
                                  "checkpoint is not: [checkpoint] "));
  const Finished later = run("way", 6, flags);
  EXPECT_EQ(later.code, 6) << later.out;
  EXPECT_THAT(later.err, HasSubstr("step 4 is not saved, and the run goes on"));
  EXPECT_TRUE(fs::exists(path("way/checkpoints/step-00000006/manifest.json")));
}

TEST_F(TrainerResume, OneFolderOfCheckpointsIsOneRunsAlsoByLinks) {
  for (const char* output : {"one", "other"}) {
    fs::create_directories(path(output));
    fs::create_directories(path("shared"));
    fs::create_directory_symlink(path("shared"), path(std::string(output) + "/checkpoints"));
  }
  const pid_t process = start("one", 100'000, "--save_every 5");
  ASSERT_TRUE(wait_for("one", "checkpoint of step"));
  const Finished second = run("other", 4, "--save_every 2");
  EXPECT_EQ(second.code, 2) << second.out;
  EXPECT_THAT(second.err, HasSubstr(fmt::format("in use by finetune_zero3, process {}", process)));
  ::kill(process, SIGTERM);
  EXPECT_EQ(end_of(process), 128 + SIGTERM) << log_of("one");
  const Finished over = run("other", 4, "--save_every 2");
  EXPECT_EQ(over.code, 2) << "the other run's checkpoints";
  EXPECT_THAT(over.err, HasSubstr("holds checkpoints of a run that has not ended"));
}

/// Makes NaN of a weight in the memory of a process, wherever it lies; how many places.
int spoil_memory(pid_t process, const std::string& key) {
  std::fstream memory(fmt::format("/proc/{}/mem", process),
                      std::ios::in | std::ios::out | std::ios::binary);
  std::ifstream maps(fmt::format("/proc/{}/maps", process));
  constexpr std::uint32_t kNan = 0x7FC0'0000;
  constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  int places = 0;
  for (std::string line; std::getline(maps, line);) {
    std::size_t begin = 0;
    std::size_t end = 0;
    char rights[5] = "";
    if (std::sscanf(line.c_str(), "%zx-%zx %4s", &begin, &end, rights) != 3 || rights[1] != 'w' ||
        end - begin > kMostBytes) {
      continue;
    }
    std::string bytes(end - begin, '\0');
    memory.clear();
    memory.seekg(static_cast<std::streamoff>(begin));
    if (!memory.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
      continue;
    }
    for (std::size_t at = bytes.find(key); at != std::string::npos; at = bytes.find(key, at + 1)) {
      memory.seekp(static_cast<std::streamoff>(begin + at));
      memory.write(reinterpret_cast<const char*>(&kNan), sizeof kNan);
      memory.flush();
      places += memory ? 1 : 0;
    }
  }
  return places;
}

/// A bit of the memory flips: saves go on, and the good checkpoint stays.
TEST_F(TrainerResume, AWeightThatBecomesNaNCostsNoGoodCheckpoint) {
  const std::string still = "--lr 1e-12 --save_every 10 --keep 1 ";  // weights keep their bits
  ASSERT_EQ(run("first", 1, "--lr 1e-12").code, 0);
  const std::string weights = content_of(path("first/model/model.safetensors"));
  const std::string key = weights.substr(weights.size() - 1024, 512);
  const pid_t process = start("run", 1'000'000, still);
  ASSERT_TRUE(wait_for("run", "checkpoint of step"));
  ::kill(process, SIGSTOP);
  const int places = spoil_memory(process, key);
  ::kill(process, SIGCONT);
  if (places == 0) {
    ::kill(process, SIGKILL);
    (void)end_of(process);
    GTEST_SKIP() << "another process's memory is not to be written here";
  }
  EXPECT_EQ(end_of(process), 5) << log_of("run");
  EXPECT_THAT(log_of("run"), HasSubstr("older checkpoints stay: "));
  const Finished went_on = run("run", 100'000, still + "--resume auto --stop_after 0.2s");
  EXPECT_EQ(went_on.code, 0) << went_on.err;
  EXPECT_THAT(went_on.out, HasSubstr("resume   after step "));
  EXPECT_THAT(went_on.out, HasSubstr("not finite"));
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
        test::bin_dir(), path(output), more);
  };
  const auto on_two = [&](const std::string& command) {
    return shell(fmt::format("'{}/tandem' launch -n 2 -- {}", test::bin_dir(), command));
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
