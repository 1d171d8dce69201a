// The power goes at every moment of a save of four ranks, and every part of what was not synced by
// then survives: the older checkpoint or the new one is whole, in each of those disks.
#include <cstdio>
#include <functional>
#include <set>
#include <vector>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "runtime/scope.hpp"
#include "runtime/sim/sim_files.hpp"
#include "runtime/util/build.hpp"
#include "tests/actors/storage/checkpoint_fixture.hpp"

namespace tandem {
namespace {

constexpr std::uint32_t kRanks = 4;
constexpr std::size_t kEntriesInFull =
    6;  // up to this number of changes of folders, all subsets; else the bounded ones
constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

struct Found {
  std::vector<FoundCheckpoint> whole;
  std::vector<std::string> broken;
  std::vector<std::string> faults;  // in the whole ones
};

Task<> inspect(FileIo* io, Found* found) {
  found->whole = co_await find_checkpoints(io, "run", &found->broken);
  for (const FoundCheckpoint& checkpoint : found->whole) {
    for (std::string& fault : co_await faults_of(io, checkpoint.path)) {
      found->faults.push_back(std::move(fault));
    }
  }
}

/// Starts a program after the power cut and returns the checkpoints and faults that it finds.
Found recover(SimDisk disk) {
  SimWorld world({.seed = 1});
  Found found;
  FileIo io(world.loop(0), std::make_unique<SimFiles>(world, 0, disk, SimFiles::Faults{}));
  Scope scope(world.loop(0));
  scope.spawn("recovery", &inspect, &io, &found);
  EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kDone);
  EXPECT_TRUE(scope.failures().empty());
  return found;
}

/// The folder entries and files that a power cut at one moment could lose or keep.
struct Pieces {
  std::set<std::pair<std::string, std::uint64_t>> entries;
  std::set<std::string> files;  // with sectors that are not synced
};

Pieces pieces_of(const SimDisk& disk) {
  Pieces pieces;
  for (const bool survives : {false, true}) {  // files under names of before and after
    static_cast<void>(disk.after_power_cut([&](const SimDisk::Piece& piece) {
      if (piece.is_entry) {
        pieces.entries.emplace(piece.path, piece.number);
      } else {
        pieces.files.insert(std::filesystem::path(piece.path).filename());
      }
      return survives;
    }));
  }
  return pieces;
}

using Sectors = std::function<bool(const std::string& name, std::uint64_t sector)>;

/// Returns choices of surviving sectors: none, all, every other one, either half, all but those of
/// one file, only those of one.
std::vector<Sectors> sector_choices(const Pieces& pieces) {
  std::vector<Sectors> choices = {[](const auto&, auto) { return false; }};
  if (pieces.files.empty()) {
    return choices;
  }
  choices.emplace_back([](const auto&, auto) { return true; });
  for (const std::uint64_t rest : {0U, 1U}) {
    choices.emplace_back([rest](const auto&, auto sector) { return sector % 2 == rest; });
  }
  choices.emplace_back([](const auto&, auto sector) { return sector == 0; });
  choices.emplace_back([](const auto&, auto sector) { return sector != 0; });
  for (const std::string& file : pieces.files) {
    choices.emplace_back([file](const auto& name, auto) { return name == file; });
    choices.emplace_back([file](const auto& name, auto) { return name != file; });
  }
  return choices;
}

/// Returns sets of folder changes that survive, by number: all subsets of a few changes; for many,
/// every first part of them, every last part, and all but one.
std::vector<std::set<std::size_t>> entry_choices(std::size_t count) {
  std::set<std::set<std::size_t>> choices;
  const auto add = [&](const std::function<bool(std::size_t)>& keeps) {
    std::set<std::size_t> kept;
    for (std::size_t i = 0; i < count; ++i) {
      if (keeps(i)) {
        kept.insert(i);
      }
    }
    choices.insert(kept);
  };
  if (count <= kEntriesInFull) {
    for (std::size_t subset = 0; subset < std::size_t{1} << count; ++subset) {
      add([&](std::size_t i) { return (subset >> i & 1) != 0; });
    }
  } else {
    for (std::size_t k = 0; k <= count; ++k) {
      add([&](std::size_t i) { return i < k; });
      add([&](std::size_t i) { return i >= k; });
      add([&](std::size_t i) { return i != k; });
    }
  }
  return {choices.begin(), choices.end()};
}

struct PowerCuts {
  std::uint64_t moments = 0;
  std::uint64_t states = 0;
  std::uint64_t older = 0;  // states in which the older one is the newest
  std::uint64_t newer = 0;

  /// Tries every disk that could be found if the power went now; a sanitizer sees the same code at
  /// each fourth moment.
  void now(const SimDisk& disk, bool committed) {
    ++moments;
    if (kSanitized && moments % 4 != 0) {
      return;
    }
    const Pieces pieces = pieces_of(disk);
    const std::vector<std::pair<std::string, std::uint64_t>> entries(pieces.entries.begin(),
                                                                     pieces.entries.end());
    for (const Sectors& sectors : sector_choices(pieces)) {
      for (const std::set<std::size_t>& kept : entry_choices(entries.size())) {
        check(disk.after_power_cut([&](const SimDisk::Piece& piece) {
          if (!piece.is_entry) {
            return sectors(std::filesystem::path(piece.path).filename(), piece.number);
          }
          const auto at = std::ranges::find(entries, std::pair(piece.path, piece.number));
          return at != entries.end() &&
                 kept.contains(static_cast<std::size_t>(at - entries.begin()));
        }),
              committed);
      }
    }
  }

  void check(const SimDisk& disk, bool committed) {
    ++states;
    const Found found = recover(disk);
    ASSERT_FALSE(found.whole.empty()) << "moment " << moments;
    ASSERT_TRUE(found.faults.empty())
        << "moment " << moments << ": a torn one is taken for whole: " << found.faults[0];
    ASSERT_TRUE(std::ranges::count(found.whole, 10, &FoundCheckpoint::step) == 1)
        << "moment " << moments << ": the older one is gone";
    ASSERT_TRUE(found.broken.empty()) << "moment " << moments << ": " << found.broken[0];
    (found.whole.front().step == 20 ? newer : older) += 1;
    ASSERT_TRUE(!committed || found.whole.front().step == 20) << "what was committed is lost";
  }
};

/// The state that the ranks of one save share: each step waits for all of them.
struct Save {
  FileIo* io;
  const CheckpointPlan* plan;
  std::vector<std::unique_ptr<CheckpointSave>> ranks;
  std::vector<ManifestFile> entries = {};
  bool committed = false;
};

Task<> each_rank(Save* save, Task<> (*step)(Save*, std::uint32_t)) {
  Scope scope(EventLoop::current());
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    scope.spawn("rank", step, save, rank);
  }
  co_await scope.join();
}

Task<> hash_part(Save* save, std::uint32_t rank) {
  for (ManifestFile& file : co_await save->ranks[rank]->hash()) {
    save->entries.push_back(std::move(file));
  }
}

Task<> save_at_once(Save* save) {
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    save->ranks.push_back(std::make_unique<CheckpointSave>(save->io, *save->plan, rank, kRanks));
  }
  co_await save->ranks[0]->create();
  co_await each_rank(
      save, [](Save* all, std::uint32_t rank) -> Task<> { co_await all->ranks[rank]->open(); });
  co_await each_rank(save, [](Save* all, std::uint32_t rank) -> Task<> {
    co_await write_slices(all->ranks[rank].get(), all->plan, rank, kRanks, 700);
  });
  co_await each_rank(
      save, [](Save* all, std::uint32_t rank) -> Task<> { co_await all->ranks[rank]->sync(); });
  co_await each_rank(save, &hash_part);
  co_await save->ranks[0]->commit(std::move(save->entries), small_texts(save->plan->step));
  save->committed = true;
}

void run_on(SimWorld& world, Scope& scope) {
  EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kDone);
  EXPECT_TRUE(scope.failures().empty());
}

/// Saves step 20 beside the durable steps 5 and 10, and removes step 5; after each change of the
/// disk `moment` is called.
void rehearse(std::uint64_t seed, std::int64_t scale,
              const std::function<void(const SimDisk&, bool committed)>& moment,
              bool replace = false) {
  SimWorld world({.seed = seed});
  SimDisk disk;
  disk.put_folder("run");
  FileIo io(world.loop(0),
            std::make_unique<SimFiles>(world, 0, disk, SimFiles::Faults{.short_transfer = 0.2}));
  Scope scope(world.loop(0));
  const CheckpointPlan plan = small_plan("run", 20, scale);
  for (const std::int64_t step :
       replace ? std::vector<std::int64_t>{5, 10, 20} : std::vector<std::int64_t>{5, 10}) {
    scope.spawn("older", &save_checkpoint, &io, small_plan("run", step), 1U, std::size_t{100});
    run_on(world, scope);
  }
  Save save{.io = &io, .plan = &plan, .ranks = {}};
  disk.on_change([&] {
    if (!::testing::Test::HasFatalFailure()) {
      moment(disk, save.committed);
    }
  });
  scope.spawn("save", &save_at_once, &save);
  run_on(world, scope);
  EXPECT_TRUE(save.committed);
  moment(disk, true);
  scope.spawn("removal", &remove_older, &io, std::string("run"), 2, INT64_MAX);
  run_on(world, scope);
}

TEST(PowerCut, EveryStateOfTheDiskHasAWholeCheckpoint) {
  PowerCuts cuts;
  for (std::uint64_t seed = 0; seed < (kSanitized ? 1 : 2); ++seed) {
    rehearse(seed, 10, [&](const SimDisk& disk, bool committed) { cuts.now(disk, committed); });
  }
  std::printf(
      "power cuts: %llu states of the disk at %llu moments; the older checkpoint is the newest in "
      "%llu, the new one in "
      "%llu\n",
      static_cast<unsigned long long>(cuts.states), static_cast<unsigned long long>(cuts.moments),
      static_cast<unsigned long long>(cuts.older), static_cast<unsigned long long>(cuts.newer));
  EXPECT_GT(cuts.states, kSanitized ? 1000U : 10'000U);
  EXPECT_GT(cuts.newer, 0U);
}

TEST(PowerCut, AFolderThatIsReplacedIsTheOldOneOrTheNewOne) {
  PowerCuts cuts;
  rehearse(9, 10, [&](const SimDisk& disk, bool) { cuts.now(disk, true); }, true);
  EXPECT_EQ(cuts.older, 0U);
}

}  // namespace
}  // namespace tandem
