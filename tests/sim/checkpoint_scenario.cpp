// Ranks save checkpoints on one disk with faults, the power goes at any moment, and the program
// starts again on what survived: what was committed is found, and nothing torn is taken for whole.
#include <deque>
#include <memory>
#include <vector>

#include "runtime/sim/sim_files.hpp"
#include "tests/sim/harness.hpp"
#include "tests/support/small_checkpoint.hpp"

namespace tandem::sim_test {
namespace {

constexpr const char* kParent = "run";

/// From one start of the program to the power cut that ends it.
class Life {
 public:
  Life(Run& run, SimDisk& disk, SimFiles::Faults faults) : run_(run), disk_(disk) {
    for (std::uint32_t rank = 0; rank < run.world.ranks(); ++rank) {
      auto files = std::make_unique<SimFiles>(run.world, rank, disk, faults);
      files_.push_back(files.get());
      ios_.push_back(std::make_unique<FileIo>(run.world.loop(rank), std::move(files)));
    }
  }

  /// Makes factory(io, args...) on each of the first `ranks`; false if one failed, or the power
  /// went.
  template <class Factory, class... Args>
  bool each(std::uint32_t ranks, Factory factory, Args... args) {
    if (dead_) {
      return false;
    }
    std::vector<std::unique_ptr<Scope>> scopes;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      scopes.push_back(std::make_unique<Scope>(run_.world.loop(rank), Name("rank")));
      scopes.back()->spawn("step", factory, this, rank, args...);
    }
    run_.until("the ranks end", [&] {
      look_at_power();
      return std::ranges::all_of(scopes, [](const auto& scope) { return scope->running() == 0; });
    });
    return !dead_ &&
           std::ranges::all_of(scopes, [](const auto& scope) { return scope->failures().empty(); });
  }

  /// The power goes then; what runs on does so on a disk that is dropped.
  void cut_at(Duration moment) { cut_at_ = moment; }
  void look_at_power() {
    if (!dead_ && run_.world.elapsed() >= cut_at_) {
      dead_ = true;
      Random random = run_.random.fork("power cut");
      const double share = random.uniform();
      found_ = disk_.after_power_cut([&](const SimDisk::Piece&) { return random.chance(share); });
    }
  }
  [[nodiscard]] SimDisk take_found() {
    cut_at_ = Duration(0);
    look_at_power();
    return std::move(found_);
  }
  [[nodiscard]] bool dead() const noexcept { return dead_; }
  [[nodiscard]] FileIo* io(std::uint32_t rank) noexcept { return ios_[rank].get(); }

  /// Saves step `step`; true once commit() has returned while there was power.
  bool save(std::int64_t step) {
    const std::uint32_t world = run_.world.ranks();
    plan_ = small_plan(kParent, step, 1 + static_cast<std::int64_t>(run_.random.below(12)));
    entries_.clear();
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      saves_.push_back(std::make_unique<CheckpointSave>(io(rank), plan_, rank, world));
    }
    const auto step_of_save = [](Life* life, std::uint32_t rank, Part part) -> Task<> {
      co_await life->part(rank, part);
    };
    const bool saved =
        each(1, step_of_save, Part::kCreate) && each(world, step_of_save, Part::kWrite) &&
        each(world, step_of_save, Part::kHash) && each(1, step_of_save, Part::kCommit);
    if (!saved && !dead_) {
      run_.require(each(1, step_of_save, Part::kDiscard) || dead_, "a discard failed");
    }
    old_saves_.push_back(std::move(saves_));
    saves_.clear();
    return saved;
  }

  /// Nothing is left open, nothing under way.
  void require_closed() {
    old_saves_.clear();
    for (const SimFiles* files : files_) {
      run_.require(files->open_files() == 0, "{} files are left open", files->open_files());
    }
  }

 private:
  enum class Part { kCreate, kWrite, kHash, kCommit, kDiscard };

  Task<> part(std::uint32_t rank, Part part) {
    CheckpointSave& save = *saves_[rank];
    const auto world = static_cast<std::uint32_t>(saves_.size());
    switch (part) {
      case Part::kCreate:
        co_await save.create();
        break;
      case Part::kWrite:
        co_await save.open();
        co_await write_slices(&save, &plan_, rank, world, 600);
        co_await save.sync();
        break;
      case Part::kHash:
        for (ManifestFile& file : co_await save.hash()) {
          entries_.push_back(std::move(file));
        }
        break;
      case Part::kCommit:
        co_await save.commit(std::move(entries_), small_texts(plan_.step));
        break;
      case Part::kDiscard:
        co_await save.discard();
        break;
    }
  }

  Run& run_;
  SimDisk& disk_;
  std::vector<SimFiles*> files_;
  std::vector<std::unique_ptr<FileIo>> ios_;
  std::vector<std::unique_ptr<CheckpointSave>> saves_;
  std::vector<std::vector<std::unique_ptr<CheckpointSave>>> old_saves_;
  CheckpointPlan plan_;
  std::vector<ManifestFile> entries_;
  Duration cut_at_ = Duration::max();
  bool dead_ = false;
  SimDisk found_;
};

struct Scene {
  explicit Scene(std::uint64_t seed)
      : run("checkpoint", seed,
            1 + static_cast<std::uint32_t>(Random(seed).fork("ranks").below(4))) {
    disks.emplace_back();
    disks.back().put_folder(kParent);
  }

  /// Starts again: every checkpoint found is whole to the last bit, and the committed one is found.
  void start_again() {
    lives.push_back(std::make_unique<Life>(run, disks.back(), SimFiles::Faults{}));
    whole.clear();
    faults.clear();
    const bool found = lives.back()->each(
        1,
        [](Life* life, std::uint32_t rank, Scene* scene) -> Task<> {
          scene->whole = co_await find_checkpoints(life->io(rank), kParent, &scene->faults);
          for (const FoundCheckpoint& one : scene->whole) {
            for (std::string& fault : co_await faults_of(life->io(rank), one.path)) {
              scene->faults.push_back(std::move(fault));
            }
          }
        },
        this);
    run.require(found, "the checkpoints cannot be looked for");
    run.require(faults.empty(), "torn: {}", faults.empty() ? "" : faults[0]);
    run.require(committed < 0 || (!whole.empty() && whole[0].step >= committed),
                "step {} was committed and is not found", committed);
  }

  void live() {
    lives.push_back(std::make_unique<Life>(
        run, disks.back(),
        SimFiles::Faults{.short_transfer = run.random.uniform() * 0.3,
                         .interrupted = run.random.uniform() * 0.1,
                         .busy = run.random.uniform() * 0.1,
                         .io_error = run.random.chance(0.3) ? run.random.uniform() * 0.01 : 0}));
    Life& life = *lives.back();
    life.cut_at(run.world.elapsed() + std::chrono::microseconds(run.random.below(60'000)));
    for (int saves = 0; saves < 4 && !life.dead(); ++saves) {
      if (life.save(next_step)) {
        committed = next_step;
        static_cast<void>(life.each(1, [](Life* one, std::uint32_t rank) -> Task<> {
          co_await remove_older(one->io(rank), kParent, 2, INT64_MAX);
        }));
      }
      next_step += 10;
    }
    disks.push_back(life.take_found());
    life.require_closed();
  }

  Run run;
  std::deque<SimDisk> disks;
  std::deque<std::unique_ptr<Life>> lives;
  std::int64_t committed = -1;
  std::int64_t next_step = 10;
  std::vector<FoundCheckpoint> whole;
  std::vector<std::string> faults;
};

}  // namespace

std::uint64_t rehearse_checkpoint(std::uint64_t seed) {
  Scene scene(seed);
  const std::uint64_t lives = 1 + scene.run.random.below(3);
  for (std::uint64_t i = 0; i < lives; ++i) {
    scene.live();
    scene.start_again();
  }
  scene.run.require_quiet();
  return scene.run.world.log().hash();
}

}  // namespace tandem::sim_test
