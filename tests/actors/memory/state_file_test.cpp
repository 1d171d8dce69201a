// The time in which state files are busy, in virtual time.
#include "actors/memory/state_file.hpp"

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "actors/memory/arena.hpp"
#include "runtime/scope.hpp"
#include "runtime/sim/sim_files.hpp"
#include "runtime/sim/sim_world.hpp"
#include "runtime/sleep.hpp"

namespace tandem {
namespace {

constexpr std::size_t kBytes = 16 * StateFile::kAlignment;

struct TwoFiles {
  FileIo* io = nullptr;
  BusyTime busy;
  StateFile first{kBytes};
  StateFile second{kBytes};
  HostBuffer memory{2 * kBytes};
  double under_way_s = 0;
};

Task<> move(StateFile* file, std::byte* memory, bool in) {
  std::vector<StateFile::Transfer> whole(
      1, {.in_file = file->data(), .memory = memory, .bytes = kBytes});
  co_await (in ? file->read(std::move(whole)) : file->write(std::move(whole)));
}

/// Both at the same time, then nothing, then one.
Task<> use(TwoFiles* files) {
  EventLoop& loop = EventLoop::current();
  co_await files->first.open(files->io, "first", kBytes / 4, &files->busy);
  co_await files->second.open(files->io, "second", kBytes / 4, &files->busy);
  const auto seconds_since = [&loop](TimePoint begin) {
    return std::chrono::duration<double>(loop.now() - begin).count();
  };
  const TimePoint both = loop.now();
  {
    Scope scope(loop, "both");
    scope.spawn("write", &move, &files->first, files->memory.data(), false);
    scope.spawn("read", &move, &files->second, files->memory.data() + kBytes, true);
    co_await scope.join();
  }
  files->under_way_s += seconds_since(both);
  co_await sleep_for(std::chrono::seconds(1));
  const TimePoint one = loop.now();
  co_await move(&files->second, files->memory.data(), false);
  files->under_way_s += seconds_since(one);
}

TEST(StateFile, FilesThatShareADiskCountATimeOnce) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimWorld world({.seed = seed});
    SimDisk disk;
    const SimFiles::Faults slow{.call_time = std::chrono::milliseconds(10)};
    FileIo io(world.loop(0), std::make_unique<SimFiles>(world, 0, disk, slow));
    TwoFiles files{.io = &io};
    Scope scope(world.loop(0));
    scope.spawn("use", &use, &files);
    EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kDone);
    EXPECT_TRUE(scope.failures().empty());
    EXPECT_GT(files.under_way_s, 5e-3);
    constexpr double kOfTheLoop = 1e-4;
    EXPECT_NEAR(files.busy.seconds(), files.under_way_s, kOfTheLoop) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tandem
