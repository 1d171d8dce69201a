// A save that goes wrong at each of its calls, and the disk that has no room for it.
#include <cerrno>
#include <functional>

#include "runtime/cpu_pool.hpp"
#include "runtime/io/faulty_files.hpp"
#include "runtime/sim/sim_files.hpp"
#include "runtime/when_all.hpp"
#include "tests/actors/storage/checkpoint_fixture.hpp"

namespace tandem {
namespace {

using Kind = FileRequest::Kind;
using Names = std::vector<std::string>;

class CheckpointFaults : public CheckpointTest {
 protected:
  /// Saves step 20 with faults by `rule`; what it ended with, or "".
  std::string save_with(FaultyFiles::Rule rule, std::uint32_t world = 2) {
    auto faulty = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, {}));
    FaultyFiles& faults = *faulty;
    faults.set_rule(std::move(rule));
    FileIo io(loop, std::move(faulty));
    error_number = 0;
    std::string text;
    try {
      loop.run(save_checkpoint, &io, small_plan(parent, 20), world, std::size_t{100});
    } catch (const FileError& error) {
      text = error.what();
      error_number = error.error_number();
    }
    calls = faults.calls();
    return text;
  }

  int error_number = 0;
  std::uint64_t calls = 0;
};

TEST_F(CheckpointFaults, AnErrorAtAnyCallIsSaidAndLeavesTheOlderOneAlone) {
  save(10);
  const auto older = content_of(parent);
  int cases = 0;
  for (const int number : {ENOSPC, EIO}) {
    for (const bool lasting : {false, true}) {  // from that call on, also while it is discarded
      for (std::uint64_t k = 1;; ++k) {
        const std::string error = save_with([&](const FileOp&, std::uint64_t call) {
          return FileFault{.error_number = call == k || (lasting && call > k) ? number : 0};
        });
        if (calls < k) {
          EXPECT_GT(k, 50U);
          EXPECT_EQ(error, "");
          break;
        }
        ++cases;
        EXPECT_EQ(error_number, number) << "call " << k;
        EXPECT_TRUE(error.starts_with("[file] cannot ") && error.find(parent) != std::string::npos)
            << error;
        // Only after the rename the new one may be there, whole.
        const auto whole = found();
        EXPECT_TRUE(broken.empty()) << "call " << k << ": " << broken[0];
        EXPECT_EQ(whole.back().step, 10) << "call " << k;
        EXPECT_TRUE(loop.run(faults_of, &files, whole.front().path).empty()) << "call " << k;
        loop.run(remove_older, &files, parent, 9, INT64_MAX);  // leftovers of a discard
        std::filesystem::remove_all(parent + "/step-00000020");
        EXPECT_EQ(content_of(parent), older) << "call " << k;
      }
      std::filesystem::remove_all(parent + "/step-00000020");
    }
  }
  std::printf("saves with an error at one of their calls: %d\n", cases);
}

TEST_F(CheckpointFaults, ShortTransfersAndInterruptionsChangeNothing) {
  save(20);
  const auto expected = content_of(parent);
  for (const FileFault fault : {FileFault{.error_number = EINTR}, FileFault{.bytes_max = 7}}) {
    for (std::uint64_t k = 1; calls >= k || k == 1; ++k) {
      std::filesystem::remove_all(parent + "/step-00000020");
      EXPECT_EQ(save_with([&](const FileOp& op, std::uint64_t call) {
                  const bool lost = op.request.kind == Kind::kClose && fault.error_number != 0;
                  return call == k && !lost ? fault : FileFault{};
                }),
                "");
      EXPECT_EQ(content_of(parent), expected) << "call " << k;
    }
    calls = 0;
  }
  std::filesystem::remove_all(parent + "/step-00000020");
  EXPECT_EQ(save_with([&](const FileOp&, std::uint64_t) { return FileFault{.bytes_max = 7}; }), "");
  EXPECT_EQ(content_of(parent), expected) << "every call";
}

TEST_F(CheckpointFaults, AFailedFsyncIsNotTriedAgain) {
  auto faulty = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, {}));
  std::uint64_t fsyncs = 0;
  faulty->set_rule([&](const FileOp& op, std::uint64_t) {
    const bool fsync = op.request.kind == Kind::kFsync;
    fsyncs += fsync ? 1 : 0;
    return FileFault{.error_number = fsync ? EIO : 0};
  });
  FileIo io(loop, std::move(faulty));
  const CheckpointPlan plan = small_plan(parent, 20);
  CheckpointSave save(&io, plan, 0, 1);
  const auto attempt = [](CheckpointSave* one) -> Task<> { co_await one->sync(); };
  loop.run(
      [](CheckpointSave* one, const CheckpointPlan* its) -> Task<> {
        co_await one->create();
        co_await one->open();
        co_await write_slices(one, its, 0, 1, 1000);
      },
      &save, &plan);
  EXPECT_THROW(loop.run(attempt, &save), FileError);
  std::string again;
  try {
    loop.run(attempt, &save);
  } catch (const Error& error) {
    again = error.what();
  }
  EXPECT_EQ(again, "[checkpoint] the save of " + plan.folder +
                       " has failed before; discard it and save again");
  EXPECT_EQ(fsyncs, 1U);
  loop.run([](CheckpointSave* one) -> Task<> { co_await one->discard(); }, &save);
  EXPECT_TRUE(content_of(parent).empty());
}

/// One simulated rank on a disk of `capacity` bytes.
struct SmallDisk {
  explicit SmallDisk(std::uint64_t capacity) : disk({.capacity_bytes = capacity}) {
    disk.put_folder("run");
  }
  std::string save() {
    Scope scope(world.loop(0));
    scope.spawn("save", &save_checkpoint, &io, small_plan("run", 20), 1U, std::size_t{100});
    EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kDone);
    try {
      if (!scope.failures().empty()) {
        std::rethrow_exception(scope.failures().front().error);
      }
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  SimWorld world{{.seed = 1}};
  SimDisk disk;
  FileIo io{world.loop(0), std::make_unique<SimFiles>(world, 0, disk, SimFiles::Faults{})};
};

TEST_F(CheckpointFaults, AFullDiskIsSaidBeforeTheFirstByte) {
  const std::uint64_t needed = small_plan("run", 20).total_bytes();
  SmallDisk full(needed - 1);
  int changes = 0;
  full.disk.on_change([&] { ++changes; });
  EXPECT_EQ(
      full.save(),
      fmt::format(
          "[checkpoint] run/step-00000020 needs {} bytes, {} are free on its disk; free some, keep "
          "fewer checkpoints, or save into another folder",
          needed, needed - 1));
  EXPECT_EQ(changes, 0);
  // Room for the tensors and none for the texts: found late, and cleaned up.
  SmallDisk nearly(needed + 10);
  EXPECT_TRUE(nearly.save().ends_with("No space left on device"));
  EXPECT_EQ(nearly.disk.used_bytes(), 0U);
  SmallDisk enough(needed + 10'000);
  EXPECT_EQ(enough.save(), "");
}

TEST_F(CheckpointFaults, APlanThatMakesNoCheckpointIsRefused) {
  const auto error_of = [&](const std::function<void(CheckpointPlan&)>& change) -> std::string {
    CheckpointPlan plan = small_plan(parent, 20);
    change(plan);
    try {
      loop.run(save_checkpoint, &files, plan, 1U, std::size_t{100});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string where = "[checkpoint] " + parent + "/step-00000020: $.files[1]";
  EXPECT_TRUE(error_of([](CheckpointPlan& plan) {
                plan.files[1].name = "../x";
              }).starts_with(where + ".name is \"../x\", "));
  EXPECT_TRUE(error_of([](CheckpointPlan& plan) {
                plan.files[1].tensors.push_back(plan.files[1].tensors[0]);
              }).starts_with(where + ": tensor \"embed.weight\" occurs twice"));
  EXPECT_TRUE(content_of(parent).empty());
  EXPECT_EQ(error_of([&](CheckpointPlan& plan) { plan.temporary = parent + "/none/x"; }),
            "[file] cannot ask what is free at " + parent + "/none: No such file or directory");
}

/// Writes pieces of file 2 in an order, several at a time, and returns the manifest's entry.
Task<ManifestFile> write_in_order(CheckpointSave* save, const CheckpointPlan* plan,
                                  std::vector<std::size_t> order, bool at_once) {
  co_await save->create();
  co_await save->open();
  co_await write_slices(save, plan, 0, 2, 1 << 20);  // the first half of each file
  const std::vector<std::byte> data = data_of(*plan, 2);
  const std::size_t half = data.size() / 2;
  const std::size_t piece = (data.size() - half + 3) / 4;
  Scope scope(EventLoop::current());
  for (const std::size_t i : order) {
    const std::size_t begin = std::min(half + i * piece, data.size());
    scope.spawn("write", &CheckpointSave::write, save, std::size_t{2}, std::uint64_t{begin},
                std::span(data).subspan(begin, std::min(piece, data.size() - begin)));
    if (!at_once) {
      co_await scope.empty();
    }
  }
  co_await scope.join();
  co_await save->sync();
  std::vector<ManifestFile> all = co_await save->hash();
  co_await save->discard();
  co_return all[2];
}

TEST_F(CheckpointFaults, HashesOnTheWayOnlyWhatComesInOrder) {
  CpuPool pool(loop, {.threads = 2});
  ContentHash expected;
  for (CpuPool* hashing : {static_cast<CpuPool*>(nullptr), &pool}) {
    for (const auto& order : std::vector<std::vector<std::size_t>>{
             {0, 1, 2, 3}, {0, 2, 1, 3}, {3, 2, 1, 0}, {0, 0, 1, 2, 3}}) {
      for (const bool at_once : {false, true}) {
        auto counting = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, {}));
        std::set<std::string> read;
        counting->set_rule([&](const FileOp& op, std::uint64_t) {
          if (op.request.kind == Kind::kRead) {
            read.insert(std::filesystem::path(*op.request.path_of_file).filename());
          }
          return FileFault{};
        });
        FileIo io(loop, std::move(counting));
        const CheckpointPlan plan = small_plan(parent, 20, 40'000);  // several pieces
        CheckpointSave save(&io, plan, 0, 1, hashing);
        const ManifestFile file = loop.run(write_in_order, &save, &plan, order, at_once);
        expected = expected == ContentHash{} ? file.hash : expected;
        EXPECT_EQ(file.hash, expected);
        const bool in_order = order == std::vector<std::size_t>{0, 1, 2, 3};
        EXPECT_EQ(read.contains("exp_avg_sq-00000.safetensors"), !in_order) << order[0] << order[1];
        EXPECT_TRUE(read.contains("master-00000.safetensors")) << "half of it was written";
      }
    }
  }
}

TEST_F(CheckpointFaults, AFailedWriteHoldsUpNoneOfTheOthers) {
  const CheckpointPlan plan = small_plan(parent, 20, 10);
  bool failed = true;
  std::uint64_t k = 0;
  while (failed) {
    ++k;
    std::uint64_t writes = 0;
    auto faulty = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, {}));
    faulty->set_rule([&](const FileOp& op, std::uint64_t) {
      const bool this_one = op.request.kind == Kind::kWrite && ++writes == k;
      return FileFault{.error_number = this_one ? EIO : 0};
    });
    FileIo io(loop, std::move(faulty));
    CheckpointSave save(&io, plan, 0, 1);
    failed = false;
    try {
      static_cast<void>(
          loop.run(write_in_order, &save, &plan, std::vector<std::size_t>{0, 1, 2, 3}, true));
    } catch (const FileError& error) {
      failed = error.error_number() == EIO;
    }
    EXPECT_EQ(failed, writes >= k);
    loop.run([](CheckpointSave* one) -> Task<> { co_await one->discard(); }, &save);
    EXPECT_TRUE(content_of(parent).empty());
  }
  EXPECT_GT(k, 9U);
}

}  // namespace
}  // namespace tandem
