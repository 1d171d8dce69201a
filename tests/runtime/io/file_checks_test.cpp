// File operations that are left on their way where they may not be are refused in words, in release
// builds too.
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/event_loop.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/build.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

Task<> read_nothing(FileIo* io, std::string path) {
  const IoFile pipe = co_await io->open(path, OpenMode::kReadWrite);
  std::array<std::byte, 8> bytes{};
  (void)co_await io->read(pipe, 0, bytes);
}

/// The kernel gives the locked memory of an earlier ring back late, so a later one may have to
/// wait.
std::unique_ptr<FileIo> make_files(EventLoop& loop, FileIo::Backend backend) {
  constexpr auto kMost = 5s;
  const auto until = std::chrono::steady_clock::now() + kMost;
  for (;;) {
    try {
      return std::make_unique<FileIo>(loop, FileIo::Options{.backend = backend});
    } catch (const Error&) {
      if (std::chrono::steady_clock::now() > until) {
        throw;
      }
      std::this_thread::sleep_for(10ms);
    }
  }
}

struct FileChecksDeathTest : testing::Test {
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (!testing::internal::InDeathTestChild()) {
      skip_without_ring();
    }
    if (IsSkipped()) {
      return;
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
  static void skip_without_ring() {
    if (!FileIo::choose().uring ||
        FileIo::choose().why.find("single issuer") == std::string::npos) {
      GTEST_SKIP() << "no ring that belongs to a thread: " << FileIo::choose().why;
    }
    try {
      EventLoop loop;
      (void)make_files(loop, FileIo::Backend::kUring);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  std::string folder;
};

TEST_F(FileChecksDeathTest, ALoopStaysOnItsThreadUntilTheyHaveEnded) {
  EXPECT_DEATH(
      {
        EventLoop loop({.name = "home"});
        const std::unique_ptr<FileIo> io = make_files(loop, FileIo::Backend::kUring);
        Scope scope(loop);
        scope.spawn("reads", &read_nothing, io.get(), folder + "/pipe");
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
          const std::unique_ptr<FileIo> io = make_files(loop, backend);
          scope->spawn("reads", &read_nothing, io.get(), folder + "/pipe");
          loop.run([]() -> Task<> { co_await sleep_for(10ms); });
        },
        "file operations outlive their FileIo");
  }
}

// Leaves no address space for the stack of a further thread, and opens a file, which takes one.
[[noreturn]] void open_without_threads(const std::string& path) {
  EventLoop loop;
  const std::unique_ptr<FileIo> io = make_files(loop, FileIo::Backend::kUring);
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlim_t bytes = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (1U << 20);
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_AS, &limit);
  try {
    loop.run([](FileIo* files,
                std::string at) -> Task<> { (void)co_await files->open(at, OpenMode::kRead); },
             io.get(), path);
  } catch (const FileError& error) {
    ::_exit(error.error_number() == EAGAIN ? 0 : 1);
  }
  ::_exit(2);
}

TEST_F(FileChecksDeathTest, AThreadThatCannotBeMadeIsAnErrorOfTheCall) {
  if (kAddressSanitizer || kThreadSanitizer) {
    GTEST_SKIP() << "the sanitizer needs address space of its own";
  }
  EXPECT_EXIT(open_without_threads(folder + "/pipe"), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tandem
