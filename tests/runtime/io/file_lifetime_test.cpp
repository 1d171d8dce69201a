// A file object that dies while its operations are on their way; pipes; and opens that block.
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/io/file_io.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/with_deadline.hpp"
#include "tests/runtime/io/file_backends.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

class FileLifetime : public testing::TestWithParam<FileIo::Backend> {
 protected:
  FileLifetime() {
    std::string path = (std::filesystem::temp_directory_path() / "tandem-XXXXXX").string();
    folder = ::mkdtemp(path.data());
  }
  ~FileLifetime() override { std::filesystem::remove_all(folder); }
  [[nodiscard]] std::string at(const char* name) const { return folder + "/" + name; }
  static std::string text_of(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string folder;
  EventLoop loop;
  FileIo io{loop, {.backend = GetParam(), .ring_entries = 1, .threads = 1}};
};

Task<> write_one(FileIo* io, const IoFile* file, const std::string* text) {
  co_await io->write(*file, 0, std::as_bytes(std::span(*text)));
}

TEST_P(FileLifetime, AQueuedWriteNeverLandsInAnotherFile) {
  loop.run(
      [](FileIo* files, std::string in) -> Task<> {
        auto mine = std::make_unique<IoFile>(co_await files->open(in + "/mine", OpenMode::kCreate));
        const IoFile busy = co_await files->open(in + "/busy", OpenMode::kCreate);
        const std::string large(8'000'000, 'b');
        const std::string secret = "secret";
        int other = -1;
        co_await with_scope(
            [](Scope& scope, FileIo* f, const IoFile* b, std::unique_ptr<IoFile>* m,
               const std::string* l, const std::string* s, std::string where, int* o) -> Task<> {
              scope.spawn("busy", &write_one, f, b, l);
              scope.spawn("mine", &write_one, f, m->get(), s);
              co_await yield();
              m->reset();  // its write waits
              *o = ::open((where + "/innocent").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
            },
            files, &busy, &mine, &large, &secret, in, &other);
        ::close(other);
      },
      &io, folder);
  EXPECT_EQ(text_of(at("innocent")), "");
  EXPECT_EQ(text_of(at("mine")), "secret");
}

TEST_P(FileLifetime, AFileInUseIsNotClosed) {
  loop.run(
      [](FileIo* files, std::string in) -> Task<> {
        IoFile file = co_await files->open(in + "/file", OpenMode::kCreate);
        const std::string text(100'000, 'x');
        co_await with_scope(
            [](Scope& scope, FileIo* f, IoFile* on, const std::string* t) -> Task<> {
              scope.spawn("write", &write_one, f, on, t);
              co_await yield();
              bool refused = false;
              try {
                co_await f->close(std::move(*on));
              } catch (const Error& error) {
                refused = std::string(error.what()).find("are on their way") != std::string::npos;
              }
              EXPECT_TRUE(refused);
            },
            files, &file, &text);
      },
      &io, folder);
  EXPECT_EQ(text_of(at("file")).size(), 100'000U);
}

TEST_P(FileLifetime, APipeIsReadToItsEnd) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  std::thread writer([path = at("pipe")] {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_EQ(::write(descriptor, "hello ", 6), 6);
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(::write(descriptor, "world", 5), 5);
    ::close(descriptor);
  });
  EXPECT_EQ(
      loop.run(
          [](FileIo* files, std::string path) -> Task<std::string> {
            const IoFile file = co_await files->open(path, OpenMode::kRead);
            std::string text(64, ' ');
            text.resize(co_await files->read(file, 0, std::as_writable_bytes(std::span(text))));
            co_return text;
          },
          &io, at("pipe")),
      "hello world");
  writer.join();
}

void stop_an_open(EventLoop& loop, FileIo& io, const std::string& path) {
  const auto open_it = [](FileIo* files, std::string pipe) -> Task<> {
    const IoFile file = co_await files->open(pipe, OpenMode::kRead, co_await current_stop_token());
    co_await sleep_for(1h, co_await current_stop_token());
  };
  EXPECT_THROW(
      loop.run([](FileIo* files, std::string pipe,
                  auto open) -> Task<> { co_await with_deadline(20ms, open, files, pipe); },
               &io, path, open_it),
      DeadlineExceeded);
}

TEST_P(FileLifetime, AnOpenThatBlocksIsStopped) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  stop_an_open(loop, io, at("pipe"));
}

TEST_P(FileLifetime, AnOpenIsStoppedInAProgramThatBlocksAllSignals) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  {
    FileIo files(loop, {.backend = GetParam()});
    stop_an_open(loop, files, at("pipe"));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_P(FileLifetime, AnOpenIsStoppedInAProgramThatHandlesTheSignal) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  FileIo files(loop, {.backend = GetParam()});
  stop_an_open(loop, files, at("pipe"));
  static std::atomic<int> handled{0};
  struct sigaction before = {};
  struct sigaction ours = {};
  ours.sa_handler = [](int) { ++handled; };
  ours.sa_flags = SA_RESTART;
  ::sigaction(SIGURG, &ours, &before);
  stop_an_open(loop, files, at("pipe"));
  ::sigaction(SIGURG, &before, nullptr);
  EXPECT_EQ(handled, 0);
}

INSTANTIATE_TEST_SUITE_P(BackEnds, FileLifetime,
                         testing::Values(FileIo::Backend::kAuto, FileIo::Backend::kThreads),
                         backend_of);

}  // namespace
}  // namespace tandem
