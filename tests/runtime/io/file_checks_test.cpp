// File operations that are left on their way where they may not be are refused in words, in release
// builds too.
#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "runtime/event_loop.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

Task<> read_nothing(FileIo* io, std::string path) {
  const IoFile pipe = co_await io->open(path, OpenMode::kReadWrite);
  std::array<std::byte, 8> bytes{};
  (void)co_await io->read(pipe, 0, bytes);
}

struct FileChecksDeathTest : testing::Test {
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (!FileIo::choose().uring ||
        FileIo::choose().why.find("single issuer") == std::string::npos) {
      GTEST_SKIP() << "no ring that belongs to a thread: " << FileIo::choose().why;
    }
    folder = testing::TempDir() + "tandem_file_checks_XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    ASSERT_EQ(::mkfifo((folder + "/pipe").c_str(), 0600), 0);
  }
  void TearDown() override {
    if (!folder.empty()) {
      std::filesystem::remove_all(folder);
    }
  }
  std::string folder;
};

TEST_F(FileChecksDeathTest, ALoopStaysOnItsThreadUntilTheyHaveEnded) {
  EXPECT_DEATH(
      {
        EventLoop loop({.name = "home"});
        FileIo io(loop, {.backend = FileIo::Backend::kUring});
        Scope scope(loop);
        scope.spawn("reads", &read_nothing, &io, folder + "/pipe");
        loop.run([]() -> Task<> { co_await sleep_for(10ms); });
        std::thread([&] { loop.run([]() -> Task<> { co_await sleep_for(1h); }); }).join();
      },
      "home: a loop changed its thread with file operations on their way");
}

TEST_F(FileChecksDeathTest, TheyEndBeforeTheirFileIo) {
  for (const auto backend : {FileIo::Backend::kUring, FileIo::Backend::kThreads}) {
    EXPECT_DEATH(
        {
          EventLoop loop({.name = "home"});
          auto* scope = new Scope(loop);
          FileIo io(loop, {.backend = backend});
          scope->spawn("reads", &read_nothing, &io, folder + "/pipe");
          loop.run([]() -> Task<> { co_await sleep_for(10ms); });
        },
        "file operations outlive their FileIo");
  }
}

}  // namespace
}  // namespace tandem
