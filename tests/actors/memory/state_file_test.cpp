// The time in which state files are busy, in virtual time.
#include "actors/memory/state_file.hpp"

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actors/memory/arena.hpp"
#include "runtime/scope.hpp"
#include "runtime/sim/sim_files.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "runtime/sim/sim_world.hpp"
#include "runtime/sleep.hpp"
#include "tests/runtime/io/file_backends.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

constexpr std::size_t kBytes = 64 * StateFile::kAlignment;

struct TwoFiles {
  FileIo* io = nullptr;
  CpuPool* pool = nullptr;
  BusyTime busy;
  StateFile first{kBytes};
  StateFile second{kBytes};
  HostBuffer memory{2 * kBytes};
  double under_way_s = 0;
};

Task<> move(StateFile* file, std::byte* memory, bool in) {
  std::vector<StateFile::Transfer> whole(
      1, {.in_file = file->data(), .memory = memory, .bytes = kBytes});
  Task<> moved = in ? file->read(std::move(whole)) : file->write(std::move(whole));
  co_await std::move(moved);
}

/// Both at the same time, then nothing, then one.
Task<> use(TwoFiles* files) {
  EventLoop& loop = EventLoop::current();
  for (const auto& [file, name] :
       {std::pair{&files->first, "first"}, std::pair{&files->second, "second"}}) {
    co_await file->open({.io = files->io,
                         .pool = files->pool,
                         .path = name,
                         .piece_bytes = kBytes / 4,
                         .busy = &files->busy});
  }
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
    SimPool workers(world, 0, {});
    CpuPool pool(world.loop(0), {.driver = &workers});
    TwoFiles files{.io = &io, .pool = &pool};
    Scope scope(world.loop(0));
    scope.spawn("use", &use, &files);
    EXPECT_EQ(world.run([&] { return scope.running() == 0; }), SimWorld::End::kDone);
    EXPECT_TRUE(scope.failures().empty());
    EXPECT_GT(files.under_way_s, 5e-3);
    constexpr double kOfTheLoop = 1e-4;
    EXPECT_NEAR(files.busy.seconds(), files.under_way_s, kOfTheLoop) << "seed " << seed;
  }
}

/// A state file on the disk, and a second descriptor of it, as an older process of this user may
/// have one.
struct Pieces {
  FileIo::Backend backend = FileIo::Backend::kAuto;
  std::size_t bytes = 0;
  bool summed_by_pool = false;
};
std::string name_of(const Pieces& pieces) {
  return fmt::format("{}{}", name_of(pieces.backend), pieces.bytes);
}
void PrintTo(const Pieces& pieces, std::ostream* out) { *out << name_of(pieces); }

class StateFileOnDisk : public testing::TestWithParam<Pieces> {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "tandem_state_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    io_.emplace(loop_, FileIo::Options{.backend = GetParam().backend});
    loop_.run([](StateFile* file,
                 StateFile::Options options) -> Task<> { co_await file->open(std::move(options)); },
              &file_,
              StateFile::Options{.io = &*io_,
                                 .pool = &pool_,
                                 .path = folder_ + "/state",
                                 .piece_bytes = GetParam().bytes});
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      struct stat named{};
      struct stat in{};
      if (::stat(entry.path().c_str(), &named) == 0 && S_ISREG(named.st_mode) &&
          ::stat(folder_.c_str(), &in) == 0 && named.st_dev == in.st_dev && named.st_nlink == 0 &&
          static_cast<std::size_t>(named.st_size) == kBytes) {
        other_ = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
        mode_ = named.st_mode & 0777U;
      }
    }
    ASSERT_GE(other_, 0) << "it has no name, and its full size";
  }
  void TearDown() override {
    ::close(other_);
    std::filesystem::remove_all(folder_);
  }
  void pass(bool in) { loop_.run(move, &file_, memory_.data(), in); }

  EventLoop loop_;
  CpuPool pool_{loop_, {}};
  std::optional<FileIo> io_;
  StateFile file_{kBytes};
  HostBuffer memory_{kBytes};
  std::string folder_;
  int other_ = -1;
  unsigned mode_ = 0;
};

TEST_P(StateFileOnDisk, IsThisUsersAlone) {
  EXPECT_EQ(mode_, 0600U);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_P(StateFileOnDisk, WhatWasNotWrittenByTheRunIsNotTrainedOn) {
  pass(true);  // zeros
  std::fill_n(memory_.data(), kBytes, std::byte{3});
  pass(false);
  std::fill_n(memory_.data(), kBytes, std::byte{0});
  pass(true);
  EXPECT_EQ(memory_.data()[kBytes - 1], std::byte{3});
  for (const std::size_t at : {std::size_t{0}, 5 * StateFile::kAlignment + 100, kBytes - 1}) {
    constexpr char kFlipped = 3 ^ 64;
    constexpr char kWritten = 3;
    ASSERT_EQ(::pwrite(other_, &kFlipped, 1, static_cast<off_t>(at)), 1);
    ASSERT_EQ(::fsync(other_), 0);
    EXPECT_THAT([&] { pass(true); },
                ThrowsError(ExitCode::kFailure,
                            testing::AllOf(testing::HasSubstr(folder_ + "/state has other bytes"),
                                           testing::HasSubstr(fmt::format(
                                               "at byte {} ", at - at % StateFile::kAlignment)))));
    ASSERT_EQ(::pwrite(other_, &kWritten, 1, static_cast<off_t>(at)), 1);
    ASSERT_EQ(::fsync(other_), 0);
    pass(true);
  }
}

TEST_P(StateFileOnDisk, LargePiecesAreSummedUpBesideTheLoop) {
  pass(false);
  pass(true);
  EXPECT_EQ(pool_.busy_s() > 0, GetParam().summed_by_pool);
}

constexpr std::size_t kSmall = 4 * StateFile::kAlignment;
INSTANTIATE_TEST_SUITE_P(Pieces, StateFileOnDisk,
                         testing::Values(Pieces{FileIo::Backend::kAuto, kSmall, false},
                                         Pieces{FileIo::Backend::kThreads, kSmall, false},
                                         Pieces{FileIo::Backend::kAuto, kBytes / 2, true},
                                         Pieces{FileIo::Backend::kThreads, kBytes / 2, true}),
                         [](const auto& pieces) { return name_of(pieces.param); });

}  // namespace
}  // namespace tandem
