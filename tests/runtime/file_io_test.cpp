#include "runtime/file_io.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"

namespace tandem {
namespace {

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::byte>(i * 131 + i / 257);
  }
  return data;
}

class FileIoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "tandem_file_io_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  // The error that `factory` ends with.
  template <class Factory, class... Args>
  std::pair<std::string, int> error_of(Factory factory, Args... args) {
    try {
      loop.run(factory, &io, args...);
    } catch (const FileError& error) {
      return {error.what(), error.error_number()};
    }
    return {"no error", 0};
  }

  EventLoop loop;
  FileIo io{loop};
  std::string folder;
};

TEST_F(FileIoTest, WritesAndReadsBack) {
  loop.run(
      [](FileIo* files, std::string folder_path) -> Task<> {
        const auto data = pattern(3'000'001);
        const std::string temporary = folder_path + "/a.tmp";
        IoFile out = co_await files->open(temporary, OpenMode::kCreate);
        co_await files->write(out, 0, std::span(data).first(1000));
        co_await files->write(out, 1000, std::span(data).subspan(1000));
        co_await files->fsync(out);
        co_await files->close(std::move(out));
        EXPECT_FALSE(out.is_open());
        co_await files->rename(temporary, folder_path + "/a");
        co_await files->fsync_folder(folder_path);

        const IoFile in = co_await files->open(folder_path + "/a", OpenMode::kRead);
        EXPECT_EQ(co_await files->size(in), data.size());
        std::vector<std::byte> back(data.size());
        EXPECT_EQ(co_await files->read(in, 0, back), data.size());
        EXPECT_TRUE(back == data);
        // Fewer at the end, none behind it.
        EXPECT_EQ(co_await files->read(in, data.size() - 10, back), 10U);
        EXPECT_EQ(co_await files->read(in, data.size() + 10, back), 0U);
        co_await files->remove(folder_path + "/a");
        EXPECT_FALSE(std::filesystem::exists(folder_path + "/a"));
      },
      &io, folder);
}

TEST_F(FileIoTest, ManyAtOnce) {
  Scope scope(loop);
  for (int i = 0; i < 50; ++i) {
    scope.spawn(
        "file",
        [](FileIo* files, std::string path) -> Task<> {
          const auto data = pattern(10'000 + path.size());
          IoFile file = co_await files->open(path, OpenMode::kReadWrite);
          co_await files->write(file, 0, data);
          std::vector<std::byte> back(data.size());
          EXPECT_EQ(co_await files->read(file, 0, back), data.size());
          EXPECT_TRUE(back == data);
          co_await files->close(std::move(file));
        },
        &io, folder + "/" + std::to_string(i));
  }
  loop.run(&Scope::join, &scope);
}

TEST_F(FileIoTest, ShortReadsAreCarriedThrough) {
  // The kernel answers a large read of a /proc file with a page or so at a time.
  const auto whole = loop.run(
      [](FileIo* files) -> Task<std::size_t> {
        const IoFile in = co_await files->open("/proc/kallsyms", OpenMode::kRead);
        std::vector<std::byte> text(100'000);
        co_return co_await files->read(in, 0, text);
      },
      &io);
  std::ifstream file("/proc/kallsyms");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (text.size() < 100'000) {
    GTEST_SKIP() << "/proc/kallsyms is short here";
  }
  EXPECT_EQ(whole, 100'000U);
}

TEST_F(FileIoTest, ErrorsNamePathAndOperation) {
  const auto [missing, missing_number] = error_of([](FileIo* files) -> Task<> {
    (void)co_await files->open("/nowhere/at/all", OpenMode::kRead);
  });
  EXPECT_EQ(missing, "[file] cannot open /nowhere/at/all: No such file or directory");
  EXPECT_EQ(missing_number, ENOENT);

  const auto [full, full_number] = error_of([](FileIo* files) -> Task<> {
    const IoFile device = co_await files->open("/dev/full", OpenMode::kReadWrite);
    const auto data = pattern(4096);
    co_await files->write(device, 0, data);
  });
  EXPECT_EQ(full, "[file] cannot write /dev/full at byte 0 (4096 bytes): No space left on device");
  EXPECT_EQ(full_number, ENOSPC);

  const auto [renamed, renamed_number] = error_of(
      [](FileIo* files, std::string f) -> Task<> { co_await files->rename(f + "/a", f + "/b"); },
      folder);
  EXPECT_EQ(renamed,
            "[file] cannot rename " + folder + "/a to " + folder + "/b: No such file or directory");
  EXPECT_EQ(renamed_number, ENOENT);

  EXPECT_EQ(
      error_of([](FileIo* files, std::string f) -> Task<> { co_await files->remove(f); }, folder)
          .second,
      EISDIR);
  EXPECT_EQ(error_of(
                [](FileIo* files, std::string f) -> Task<> {
                  const IoFile file = co_await files->open(f, OpenMode::kRead);
                  std::vector<std::byte> into(10);
                  (void)co_await files->read(file, 0, into);
                },
                folder)
                .second,
            EISDIR);
  EXPECT_EQ(error_of([](FileIo* files) -> Task<> {
              IoFile closed;
              co_await files->fsync(closed);
            }).second,
            EBADF);
}

TEST_F(FileIoTest, AFileSizeLimitShowsAsAnErrorOfTheWrite) {
  // A partial transfer first, then EFBIG: the short write must not pass as success.
  struct sigaction ignore{};
  struct sigaction before{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGXFSZ, &ignore, &before);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 10'000;
  setrlimit(RLIMIT_FSIZE, &small);
  const int number = error_of(
                         [](FileIo* files, std::string f) -> Task<> {
                           const IoFile file = co_await files->open(f + "/big", OpenMode::kCreate);
                           const auto data = pattern(100'000);
                           co_await files->write(file, 0, data);
                         },
                         folder)
                         .second;
  setrlimit(RLIMIT_FSIZE, &old);
  sigaction(SIGXFSZ, &before, nullptr);
  EXPECT_EQ(number, EFBIG);
  EXPECT_EQ(std::filesystem::file_size(folder + "/big"), 10'000U);
}

TEST_F(FileIoTest, InterruptedCallsGoOn) {
  // Signals without SA_RESTART rain on the process while files are written and read.
  struct sigaction handler{};
  struct sigaction before{};
  handler.sa_handler = [](int) {};
  sigaction(SIGUSR1, &handler, &before);
  std::atomic<bool> stop{false};
  std::thread rain([&stop] {
    while (!stop) {
      kill(getpid(), SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  loop.run(
      [](FileIo* files, std::string f) -> Task<> {
        const auto data = pattern(1 << 20);
        for (int i = 0; i < 20; ++i) {
          IoFile file = co_await files->open(f + "/rain", OpenMode::kReadWrite);
          co_await files->write(file, 0, data);
          co_await files->fsync(file);
          std::vector<std::byte> back(data.size());
          EXPECT_EQ(co_await files->read(file, 0, back), data.size());
          EXPECT_TRUE(back == data);
          co_await files->close(std::move(file));
        }
      },
      &io, folder);
  stop = true;
  rain.join();
  sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
}  // namespace tandem
