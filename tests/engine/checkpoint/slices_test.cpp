// Checkpoints of ranks whose hosts have disks of their own: invented hosts, each with a folder. A
// resumed run is the uninterrupted one, bit for bit, on the same hosts and on others, and whenever
// the save was cut off.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/storage/manifest.hpp"
#include "engine/checkpoint/disks.hpp"
#include "engine/checkpoint/gather_slices.hpp"
#include "engine/checkpoint/held_checkpoint.hpp"
#include "engine/engine.hpp"
#include "tests/actors/storage/earlier_slices.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/resumed.hpp"

namespace tandem::toy {
namespace {

namespace fs = std::filesystem;

using test::TempDir;
using ::testing::HasSubstr;

/// Hosts with `per_host` ranks and a folder each.
struct Cluster {
  int hosts = 2;
  int per_host = 1;
  fs::path folder;

  [[nodiscard]] int world() const { return hosts * per_host; }
  [[nodiscard]] fs::path disk(int host) const { return folder / fmt::format("disk-{}", host); }
  [[nodiscard]] std::string disk_of(int rank) const { return disk(rank / per_host).string(); }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    names.reserve(static_cast<std::size_t>(world()));
    for (int rank = 0; rank < world(); ++rank) {
      names.push_back(fmt::format("host-{}", rank / per_host));
    }
    return names;
  }

  /// Runs body(engine, the folder of its host) on every rank and returns the result of rank 0.
  template <class Body>
  auto run(Setting setting, Body body) const {
    setting.accumulation = 4 / world();
    return on_ranks(
               world(),
               [&](const std::shared_ptr<Communicator>& ranks) {
                 Engine engine(arguments(setting, ranks));
                 fs::create_directories(disk_of(ranks->rank()));
                 return body(engine, setting, disk_of(ranks->rank()));
               },
               names())
        .front();
  }
};

TrainingRun uninterrupted(Setting setting, std::int64_t steps) {
  setting.accumulation = 4;
  Engine engine(arguments(setting));
  return go_on(engine, setting, steps);
}

/// Saves after `step` and, while training goes on, after `step` + 2.
void save_twice(const Cluster& cluster, const Setting& of, std::int64_t step, int keep = 0) {
  cluster.run(of, [&](Engine& engine, const Setting& setting, const std::string& disk) {
    (void)go_on(engine, setting, step);
    EXPECT_EQ(engine.save_checkpoint(disk).error, "");
    (void)go_on(engine, setting, step + 2);
    EXPECT_TRUE(engine.begin_checkpoint({.folder = disk, .keep = keep}));
    (void)go_on(engine, setting, step + 4);
    if (const auto outcome = engine.finish_checkpoint()) {  // else a step has said it
      EXPECT_EQ(outcome->error, "");
    }
    return 0;
  });
}

/// The step from which it went on, and the rest of the run.
std::pair<std::int64_t, TrainingRun> resume(const Cluster& cluster, const Setting& of,
                                            std::int64_t last) {
  return cluster.run(of, [&](Engine& engine, const Setting& setting, const std::string& disk) {
    const std::int64_t step = engine.load_checkpoint(disk).step;
    return std::pair(step, go_on(engine, setting, last));
  });
}

TEST(Slices, AResumedRunIsTheUninterruptedOne) {
  for (const int per_host : {1, 2}) {
    for (int stage = 0; stage < 4; ++stage) {
      const TempDir folder;
      const Cluster cluster{.per_host = per_host, .folder = folder.path()};
      const Setting setting{.stage = stage, .type = stage % 2 == 0 ? "fp32" : "bf16"};
      save_twice(cluster, setting, 3);
      for (const char* name : {"manifest.json", "state.json", "client_state.json"}) {
        EXPECT_TRUE(fs::exists(cluster.disk(1) / "step-00000005" / name)) << name;
      }
      const auto [step, run] = resume(cluster, setting, 9);
      EXPECT_EQ(step, 5);
      EXPECT_EQ(run, rest_of(uninterrupted(setting, 9), 5))
          << per_host << " ranks, stage " << stage;
    }
  }
}

// Slices go to where they are needed now, whichever way a parameter is divided.
TEST(Slices, OtherRanksOnOtherHostsGoOn) {
  for (int stage = 0; stage < 4; ++stage) {
    const TempDir folder;
    const Setting setting{.stage = stage};
    save_twice({.per_host = 2, .folder = folder.path()}, setting, 2);
    // Four hosts: two of them have no slices. Then two hosts, with what the four have saved.
    const Cluster four{.hosts = 4, .folder = folder.path()};
    const TrainingRun straight = uninterrupted({.stage = stage}, 10);
    four.run(setting, [&](Engine& engine, const Setting& own, const std::string& disk) {
      EXPECT_EQ(engine.load_checkpoint(disk).step, 4);
      (void)go_on(engine, own, 6);
      EXPECT_EQ(engine.save_checkpoint(disk).error, "");
      return 0;
    });
    // Two of the four disks are visible now, which is enough where every disk has everything.
    const Cluster two{.folder = folder.path()};
    if (stage == 0) {
      EXPECT_EQ(resume(two, setting, 10).second, rest_of(straight, 6));
    }
    const auto [step, run] = resume(four, {.stage = 3 - stage}, 10);
    EXPECT_EQ(step, 6);
    EXPECT_EQ(run, rest_of(straight, 6));
  }
}

TEST(Slices, AMissingOneIsNamedWithItsHostAndAnOlderStepIsTaken) {
  const TempDir folder;
  const Cluster cluster{.per_host = 2, .folder = folder.path()};
  const Setting setting;
  save_twice(cluster, setting, 3);
  fs::remove_all(cluster.disk(1) / "step-00000005");
  const auto notes = cluster.run(setting, [](Engine& engine, const Setting&, const auto& disk) {
    return engine.load_checkpoint(disk).notes;
  });
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(notes.front(), fmt::format("{}: the slices of host host-1 are missing",
                                       (cluster.disk(0) / "step-00000005").string()));
  // A changed byte on one host, too; then nothing is left.
  const fs::path damaged = cluster.disk(1) / "step-00000003/master-00001-of-00001.safetensors";
  std::fstream(damaged, std::ios::in | std::ios::out).seekp(-1, std::ios::end).put(1);
  const std::string error =
      error_text([&] { (void)resume(cluster, setting, 6); }, ExitCode::kUserInput);
  EXPECT_THAT(error, HasSubstr("the slices of host host-1 are missing"));
  const std::string one = error_text(
      [&] {
        cluster.run(setting, [](Engine& engine, const Setting&, const std::string& disk) {
          return engine.load_checkpoint(disk, "step-00000003").step;
        });
      },
      ExitCode::kUserInput);
  EXPECT_THAT(one, HasSubstr("is damaged: on host host-1: " + damaged.string() + ": tensor \""));
}

// All disks are sealed before one takes its name: whatever has been renamed by then, all have it.
TEST(Slices, ASaveThatWasCutOffIsWholeOnAllHostsOrNone) {
  const Setting setting;
  const TrainingRun straight = uninterrupted(setting, 8);
  for (const int named : {0, 1, 2}) {
    const TempDir folder;
    const Cluster cluster{.folder = folder.path()};
    save_twice(cluster, setting, 3);
    for (int host = named; host < 2; ++host) {
      fs::rename(cluster.disk(host) / "step-00000005",
                 cluster.disk(host) / "step-00000005.tmp-0123abcd");
    }
    const auto [step, run] = resume(cluster, setting, 8);
    EXPECT_EQ(step, 5);
    EXPECT_EQ(run, rest_of(straight, 5));
    for (int host = 0; host < 2; ++host) {
      EXPECT_TRUE(fs::exists(cluster.disk(host) / "step-00000005/manifest.json"));
    }
  }
  // One disk was sealed, the other one not.
  const TempDir folder;
  const Cluster cluster{.folder = folder.path()};
  save_twice(cluster, setting, 3);
  for (int host = 0; host < 2; ++host) {
    fs::rename(cluster.disk(host) / "step-00000005",
               cluster.disk(host) / "step-00000005.tmp-0123abcd");
  }
  fs::remove(cluster.disk(1) / "step-00000005.tmp-0123abcd/manifest.json");
  const auto [step, run] = resume(cluster, setting, 8);
  EXPECT_EQ(step, 3);
  EXPECT_EQ(run, rest_of(straight, 3));
}

// Where the step was saved already, its folders are exchanged, each disk's at a moment of its own.
TEST(Slices, OfTwoSavesOfAStepTheLaterOneIsLoaded) {
  const TempDir folder;
  const Cluster cluster{.folder = folder.path()};
  cluster.run({}, [](Engine& engine, const Setting& setting, const std::string& disk) {
    (void)go_on(engine, setting, 2);
    for (const char* which : {"first", "second"}) {
      CheckpointArgs args{.folder = disk};
      args.client_state = fmt::format("\"{}\"", which);
      EXPECT_TRUE(engine.begin_checkpoint(std::move(args)));
      EXPECT_EQ(engine.finish_checkpoint()->error, "");
      fs::rename(disk + "/step-00000002", disk + "/" + which);
    }
    return 0;
  });
  for (int host = 0; host < 2; ++host) {  // exchanged on the first host alone
    fs::rename(cluster.disk(host) / (host == 0 ? "second" : "first"),
               cluster.disk(host) / "step-00000002");
    fs::rename(cluster.disk(host) / (host == 0 ? "first" : "second"),
               cluster.disk(host) / "step-00000002.tmp-0123abcd");
  }
  const auto load = [](Engine& engine, const Setting&, const std::string& disk) {
    return engine.load_checkpoint(disk).client_state;
  };
  EXPECT_EQ(cluster.run({}, load), "\"second\"");
}

TEST(Slices, ATagThatNotAllDisksHaveNamedIsLoaded) {
  const TempDir folder;
  const Cluster cluster{.folder = folder.path()};
  cluster.run({}, [](Engine& engine, const Setting& setting, const std::string& disk) {
    (void)go_on(engine, setting, 2);
    EXPECT_EQ(engine.save_checkpoint(disk, "best").error, "");
    return 0;
  });
  fs::rename(cluster.disk(1) / "best", cluster.disk(1) / "best.tmp-0123abcd");
  cluster.run({}, [](Engine& engine, const Setting&, const std::string& disk) {
    EXPECT_EQ(engine.load_checkpoint(disk, "best").step, 2);
    return 0;
  });
  EXPECT_TRUE(fs::exists(cluster.disk(1) / "best/manifest.json"));
}

TEST(Slices, GatheredTheyAreACheckpointLikeAnyOther) {
  const TempDir folder;
  const Cluster cluster{.per_host = 2, .folder = folder.path()};
  const Setting setting{.stage = 2};
  save_twice(cluster, setting, 3);
  const std::vector<std::string> disks = {cluster.disk(1).string(), cluster.disk(0).string()};
  const fs::path gathered = folder.path() / "gathered";
  EXPECT_EQ(gather_slices(disks, gathered.string()).step, 5);
  const Cluster one{.hosts = 1, .folder = folder.path()};
  const auto load = [&](Engine& engine, const Setting& own, const std::string&) {
    EXPECT_EQ(engine.load_checkpoint(gathered.string()).step, 5);
    EXPECT_EQ(engine.save_checkpoint((folder.path() / "again").string()).error, "");
    return go_on(engine, own, 8);
  };
  EXPECT_EQ(one.run(setting, load), rest_of(uninterrupted(setting, 8), 5));
  for (const char* file : {"master-00001-of-00001.safetensors",
                           "exp_avg-00001-of-00001.safetensors", "model.safetensors.index.json"}) {
    EXPECT_EQ(test::get(gathered / file), test::get(folder.path() / "again/step-00000005" / file));
  }
  const std::string error =
      error_text([&] { (void)gather_slices({disks[0]}, (folder.path() / "half").string()); },
                 ExitCode::kUserInput);
  EXPECT_THAT(error, HasSubstr("of step 5 the slices of host host-0 are missing"));
  EXPECT_FALSE(fs::exists(folder.path() / "half"));
}

TEST(Slices, OlderOnesGoOnEachDisk) {
  const TempDir folder;
  const Cluster cluster{.folder = folder.path()};
  save_twice(cluster, {}, 3, /*keep=*/1);
  for (int host = 0; host < 2; ++host) {
    EXPECT_FALSE(fs::exists(cluster.disk(host) / "step-00000003"));
    EXPECT_TRUE(fs::exists(cluster.disk(host) / "step-00000005/manifest.json"));
  }
}

TEST(Slices, OfAnEarlierVersionAreResumedVerifiedGatheredAndRemoved) {
  const TempDir folder;
  const Cluster cluster{.per_host = 2, .folder = folder.path()};
  const Setting setting{.stage = 2};
  save_twice(cluster, setting, 3);
  for (int host = 0; host < 2; ++host) {
    for (const char* name : {"step-00000003", "step-00000005"}) {
      test::make_earlier(cluster.disk(host) / name);
    }
  }
  // One host had not named its folder yet when the run was killed.
  fs::rename(cluster.disk(1) / "step-00000005", cluster.disk(1) / "step-00000005.tmp-0123abcd");
  const std::vector<std::string> disks = {cluster.disk(1).string(), cluster.disk(0).string()};
  EXPECT_EQ(gather_slices(disks, (folder.path() / "gathered").string()).step, 5);
  const auto [step, run] = resume(cluster, setting, 8);
  EXPECT_EQ(step, 5);
  EXPECT_EQ(run, rest_of(uninterrupted(setting, 8), 5));
  // A changed byte is found, and the step before is taken.
  const fs::path damaged = cluster.disk(1) / "step-00000005/master-00001-of-00001.safetensors";
  std::fstream(damaged, std::ios::in | std::ios::out).seekp(-1, std::ios::end).put(1);
  EXPECT_EQ(resume(cluster, setting, 4).first, 3);
  // The next save is of the present form, and the older ones go.
  cluster.run(setting, [](Engine& engine, const Setting& own, const std::string& disk) {
    EXPECT_EQ(engine.load_checkpoint(disk).step, 3);
    (void)go_on(engine, own, 4);
    EXPECT_TRUE(engine.begin_checkpoint({.folder = disk, .keep = 2}));
    EXPECT_EQ(engine.finish_checkpoint()->error, "");
    return 0;
  });
  for (int host = 0; host < 2; ++host) {
    EXPECT_TRUE(fs::exists(cluster.disk(host) / "step-00000003/slices.json"));
    EXPECT_TRUE(fs::exists(cluster.disk(host) / "step-00000004/manifest.json"));
    EXPECT_FALSE(fs::exists(cluster.disk(host) / "step-00000005"));
  }
}

// Checkpoints that an abandoned run saved after the loaded step are older than every checkpoint of
// the run that continues from it.
TEST(Checkpoint, TheOneJustSavedStaysWhateverLaterStepsAreThere) {
  const TempDir folder;
  const Cluster one{.hosts = 1, .folder = folder.path()};
  one.run({}, [](Engine& engine, const Setting& setting, const std::string& disk) {
    for (const std::int64_t step : {2, 6, 8}) {
      (void)go_on(engine, setting, step);
      EXPECT_EQ(engine.save_checkpoint(disk).error, "");
    }
    return 0;
  });
  one.run({}, [](Engine& engine, const Setting& setting, const std::string& disk) {
    (void)engine.load_checkpoint(disk, "step-00000002");
    (void)go_on(engine, setting, 3);
    EXPECT_TRUE(engine.begin_checkpoint({.folder = disk, .keep = 2}));
    EXPECT_EQ(engine.finish_checkpoint()->error, "");
    EXPECT_EQ(engine.load_checkpoint(disk).step, 3);
    return 0;
  });
  EXPECT_TRUE(fs::exists(one.disk(0) / "step-00000002"));
  EXPECT_FALSE(fs::exists(one.disk(0) / "step-00000006"));
  EXPECT_FALSE(fs::exists(one.disk(0) / "step-00000008"));
}

TEST(Slices, ASaveThatFailsOnOneHostIsNone) {
  const TempDir folder;
  const Cluster cluster{.folder = folder.path()};
  save_twice(cluster, {}, 3);
  std::ofstream(folder.path() / "file") << "where a folder should be";
  cluster.run({}, [&](Engine& engine, const Setting&, const std::string& disk) {
    (void)engine.load_checkpoint(disk);
    const std::string parent =
        disk.ends_with("1") ? (folder.path() / "file/in").string() : disk + "/more";
    const CheckpointOutcome outcome = engine.save_checkpoint(parent);
    EXPECT_THAT(outcome.error, HasSubstr("file/in"));
    EXPECT_THAT(outcome.error, HasSubstr("on host host-1"));
    return 0;
  });
  EXPECT_TRUE(fs::is_empty(cluster.disk(0) / "more"));
}

TEST(Slices, HostsThatSeeOneFolderHaveOneDisk) {
  const TempDir folder;
  const auto disks_of = [&](const std::vector<std::string>& paths,
                            const std::vector<std::string>& hosts) {
    return on_ranks(
        static_cast<int>(paths.size()),
        [&](const std::shared_ptr<Communicator>& ranks) {
          return find_disks(*ranks, folder.path() / paths[static_cast<std::size_t>(ranks->rank())]);
        },
        hosts);
  };
  for (const char* name : {"a", "b"}) {
    fs::create_directory(folder.path() / name);
  }
  const std::vector<std::string> hosts = {"x", "x", "y", "z"};
  for (const Disks& disks : disks_of({"a", "a", "a", "a/not/there/yet"}, hosts)) {
    EXPECT_EQ(disks, Disks::shared(4));
  }
  for (const Disks& disks : disks_of({"a", "a", "b", "b"}, hosts)) {
    EXPECT_EQ(disks, (Disks{.of_rank = {0, 0, 1, 1}, .hosts = {"x", "y"}}));
    EXPECT_EQ(disks.ranks_of(1), (std::vector<std::uint32_t>{2, 3}));
  }
  EXPECT_TRUE(fs::is_empty(folder.path() / "a"));
  EXPECT_EQ(disks_of({"a", "b"}, {}).front(), Disks::shared(2)) << "one host is not asked";
}

TEST(Slices, RunsAreCutOutOfEachOther) {
  const auto left = [](ElementRun run, const std::vector<ElementRun>& held) {
    std::string text;
    for (const ElementRun& one : left_of(run, held)) {
      text += fmt::format("{}-{} ", one.begin, one.end);
    }
    return text;
  };
  EXPECT_EQ(left({2, 9}, {}), "2-9 ");
  EXPECT_EQ(left({2, 9}, {{0, 2}, {9, 12}}), "2-9 ");
  EXPECT_EQ(left({2, 9}, {{0, 3}, {4, 5}, {5, 6}, {8, 20}}), "3-4 6-8 ");
  EXPECT_EQ(left({2, 9}, {{0, 20}}), "");
  EXPECT_EQ(left({0, 0}, {}), "");
}

}  // namespace
}  // namespace tandem::toy
