#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/build.hpp"
#include "tests/runtime/io/file_io_fixture.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/faults/file_size_limit.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

TEST_P(FileIoTest, WritesAndReadsBack) {
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
      files.get(), folder);
}

TEST_P(FileIoTest, ManyAtOnce) {
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
        files.get(), folder + "/" + std::to_string(i));
  }
  loop.run(&Scope::join, &scope);
}

TEST_P(FileIoTest, ShortReadsAreCarriedThrough) {
  // The kernel answers a large read of a /proc file with a page or so at a time.
  const auto whole = loop.run(
      [](FileIo* files) -> Task<std::size_t> {
        const IoFile in = co_await files->open("/proc/kallsyms", OpenMode::kRead);
        std::vector<std::byte> text(100'000);
        co_return co_await files->read(in, 0, text);
      },
      files.get());
  std::ifstream file("/proc/kallsyms");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (text.size() < 100'000) {
    GTEST_SKIP() << "/proc/kallsyms is short here";
  }
  EXPECT_EQ(whole, 100'000U);
}

TEST_P(FileIoTest, ErrorsNamePathAndOperation) {
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

TEST_P(FileIoTest, AFileSizeLimitShowsAsAnErrorOfTheWrite) {
  // A partial transfer first, then EFBIG: the short write must not pass as success.
  int number = 0;
  {
    const test::FileSizeLimit limit(10'000);
    number = error_of(
                 [](FileIo* files, std::string f) -> Task<> {
                   const IoFile file = co_await files->open(f + "/big", OpenMode::kCreate);
                   const auto data = pattern(100'000);
                   co_await files->write(file, 0, data);
                 },
                 folder)
                 .second;
  }
  EXPECT_EQ(number, EFBIG);
  EXPECT_EQ(std::filesystem::file_size(folder + "/big"), 10'000U);
}

TEST_P(FileIoTest, InterruptedCallsGoOn) {
  // Signals without SA_RESTART rain on the process while files are written and read.
  struct sigaction handler{};
  struct sigaction before{};
  handler.sa_handler = [](int) {};
  sigaction(SIGUSR1, &handler, &before);
  {
    const std::jthread rain([](const std::stop_token& over) {
      while (!over.stop_requested()) {
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
        files.get(), folder);
  }
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_P(FileIoTest, SaysWhatItRunsOn) {
  EXPECT_EQ(files->backend_name(), GetParam() == FileIo::Backend::kUring ? "io_uring" : "threads");
  EXPECT_EQ(files->why(), "asked for");
  // Rings that were just closed, in any process of the user, may still hold locked memory: then it
  // runs on threads, and says so.
  const FileIo by_itself(loop);
  if (by_itself.why() == FileIo::choose().why) {
    EXPECT_EQ(by_itself.backend_name(), FileIo::choose().uring ? "io_uring" : "threads");
  } else {
    EXPECT_EQ(by_itself.backend_name(), "threads");
    EXPECT_THAT(by_itself.why(), ::testing::HasSubstr("io_uring"));
  }
  EXPECT_FALSE(by_itself.why().empty());
}

TEST_P(FileIoTest, LargeTransfersAreCut) {
  // The logic of transfers beyond 2 GiB, with a small limit.
  std::uint64_t calls = 0;
  std::size_t largest = 0;
  auto counting = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, options()));
  counting->set_rule([&](const FileOp& op, std::uint64_t) {
    calls += op.is_transfer() ? 1 : 0;
    largest = std::max(largest, op.bytes());
    return FileFault{};
  });
  FileIo cut(loop, std::move(counting), with(options(), 65536));
  loop.run(write_and_read_back, &cut, folder + "/cut", std::size_t{1'000'000});
  EXPECT_EQ(largest, 65536U);
  EXPECT_EQ(calls, 2U * 16);
}

TEST_P(FileIoTest, ShortTransfersAndInterruptionsAreCarriedThrough) {
  auto faulty = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, options()));
  FaultyFiles& faults = *faulty;
  faults.set_rule([](const FileOp& op, std::uint64_t call) {
    if (op.request.kind == FileRequest::Kind::kClose) {
      return FileFault{};
    }
    switch (call % 5) {
      case 0:
        return FileFault{.error_number = EINTR};
      case 3:  // as io_uring has if a signal arrives while it starts a worker
        return FileFault{.error_number = ECANCELED};
      case 1:
        return FileFault{.bytes_max = 7'001 * call};
      case 2:
        return FileFault{.error_number = EAGAIN};
      default:
        return FileFault{};
    }
  });
  FileIo io(loop, std::move(faulty), with(options(), 100'000));
  loop.run(write_and_read_back, &io, folder + "/short", std::size_t{3'000'001});
  EXPECT_GT(faults.faults(), 20U);
}

TEST_P(FileIoTest, AnErrorAtTheKthCallReachesTheCaller) {
  for (std::uint64_t k = 1; k <= 8; ++k) {
    auto faulty = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, options()));
    FaultyFiles& faults = *faulty;
    faults.set_rule([k](const FileOp&, std::uint64_t call) {
      return FileFault{.error_number = call == k ? ENOSPC : 0};
    });
    FileIo io(loop, std::move(faulty), with(options(), 4096));
    try {
      loop.run(write_and_read_back, &io, folder + "/kth", std::size_t{8192});
      EXPECT_GT(k, faults.calls()) << "no error though there was one";
    } catch (const FileError& error) {
      EXPECT_EQ(error.error_number(), ENOSPC);
      EXPECT_EQ(faults.calls(), k);
    }
  }
}

TEST_P(FileIoTest, ARefusalWithoutEndIsAnErrorInTheEnd) {
  ManualClock clock;
  EventLoop virtual_loop({.clock = &clock});
  auto faulty =
      std::make_unique<FaultyFiles>(virtual_loop, FileIo::make_backend(virtual_loop, options()));
  faulty->set_rule([](const FileOp&, std::uint64_t) { return FileFault{.error_number = EAGAIN}; });
  FileIo io(virtual_loop, std::move(faulty));
  EXPECT_THROW(virtual_loop.run(write_and_read_back, &io, folder + "/never", std::size_t{10}),
               FileError);
}

TEST_P(FileIoTest, MoreOperationsThanTheRingHolds) {
  FileIo small(loop, with(options(), 1 << 20, 2));
  Scope scope(loop);
  for (int i = 0; i < 150; ++i) {  // each has a descriptor
    scope.spawn("file", write_and_read_back, &small, folder + "/" + std::to_string(i),
                std::size_t{5'000});
  }
  loop.run(&Scope::join, &scope);
}

TEST_P(FileIoTest, ALoopThatNeverSleepsStillLearnsTheEnd) {
  // Another task keeps the loop awake until the files are done: completions must be looked for
  // meanwhile.
  Scope scope(loop);
  bool done = false;
  scope.spawn(
      "files",
      [](FileIo* io, std::string path, bool* end) -> Task<> {
        co_await write_and_read_back(io, path, 1'000'000);
        *end = true;
      },
      files.get(), folder + "/busy", &done);
  scope.spawn(
      "busy",
      [](bool* end) -> Task<> {
        while (!*end) {
          co_await yield();
        }
      },
      &done);
  loop.run(&Scope::join, &scope);
  EXPECT_TRUE(done);
}

TEST_P(FileIoTest, ALoopMayChangeItsThreadBetweenRuns) {
  loop.run(write_and_read_back, files.get(), folder + "/a", std::size_t{10'000});
  std::thread([this] {
    loop.run(write_and_read_back, files.get(), folder + "/b", std::size_t{300'000});
  }).join();
  loop.run(write_and_read_back, files.get(), folder + "/c", std::size_t{10'000});
}

TEST_P(FileIoTest, PastThePageCache) {
  const auto [text, number] = error_of(
      [](FileIo* io, std::string path) -> Task<> {
        struct alignas(4096) Block {
          std::byte bytes[4096];
        };
        std::vector<Block> blocks(20);
        const std::span<std::byte> all(blocks[0].bytes, blocks.size() * sizeof(Block));
        IoFile out = co_await io->open(path, OpenMode::kCreate);
        const auto data = pattern(70'001);
        co_await io->write(out, 0, data);
        co_await io->close(std::move(out));
        const IoFile in = co_await io->open_direct(path, OpenMode::kRead);
        EXPECT_TRUE(in.is_direct());
        // The last block is not full: it ends there.
        EXPECT_EQ(co_await io->read(in, 0, all), 70'001U);
        EXPECT_EQ(std::memcmp(all.data(), data.data(), data.size()), 0);
        EXPECT_THAT(
            co_await outcome_of([&] { return io->read(in, 5, all.first(100)); }),
            ThrowsError("[file] cannot read " + path +
                        " at byte 5 (100 bytes) past the page cache: offset and size must be "
                        "multiples of 4096, the buffer's address of " +
                        std::to_string(in.memory_alignment()) +
                        "; align them, or open the file without open_direct"));
        // As much as the file system asks for, and no more.
        EXPECT_EQ(co_await io->read(in, 0, all.subspan(in.memory_alignment(), 4096)), 4096U);
        EXPECT_EQ(std::memcmp(all.data() + in.memory_alignment(), data.data(), 4096), 0);
        EXPECT_THAT(co_await outcome_of([&] { return io->read(in, 0, all.subspan(1, 4096)); }),
                    ThrowsError(::testing::HasSubstr("the buffer's address")));
      },
      folder + "/direct");
  if (number == EINVAL) {
    GTEST_SKIP() << "this file system has no O_DIRECT";
  }
  EXPECT_EQ(text, "no error");
}

TEST_P(FileIoTest, SharedBlocksAreWrittenApart) {
  static constexpr std::size_t kBlocks = std::size_t{1} << 20;
  bool shared = false;
  const auto [text, number] = error_of(
      [](FileIo* io, std::string path, bool* shared) -> Task<> {
        const auto data = pattern(2 * kBlocks);
        const std::vector<std::byte> zeros(kBlocks);
        const IoFile from = co_await io->open(path + "-from", OpenMode::kReadWrite);
        const IoFile into = co_await io->open(path + "-into", OpenMode::kReadWrite);
        co_await io->write(from, 0, data);
        co_await io->reserve(into, 3 * kBlocks);
        *shared = FileIo::share(from, kBlocks, into, 2 * kBlocks, kBlocks);
        const std::span<const std::byte> second = std::span(data).subspan(kBlocks);
        const std::span<const std::byte> expected = *shared ? second : zeros;
        std::vector<std::byte> back(kBlocks);
        EXPECT_EQ(co_await io->read(into, 2 * kBlocks, back), kBlocks);
        EXPECT_TRUE(std::ranges::equal(back, expected));
        EXPECT_EQ(co_await io->read(into, kBlocks, back), kBlocks);
        EXPECT_TRUE(std::ranges::equal(back, zeros)) << "what lies before";
        co_await io->write(from, kBlocks, zeros);
        EXPECT_EQ(co_await io->read(into, 2 * kBlocks, back), kBlocks);
        EXPECT_TRUE(std::ranges::equal(back, expected)) << "it changed with the other file";
        EXPECT_FALSE(FileIo::share(from, 1, into, 0, kBlocks)) << "no whole blocks";
      },
      folder + "/shared", &shared);
  EXPECT_EQ(text, "no error");
  if (!shared) {
    GTEST_SKIP() << "files of this file system share no blocks";
  }
}

TEST_P(FileIoTest, BothEndsOfAPipeAreOpenedByOneLoop) {
  const std::string path = folder + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  Scope scope(loop);
  std::string got(5, '.');
  scope.spawn(
      "reader",
      [](FileIo* io, std::string from, std::string* into) -> Task<> {
        const IoFile file = co_await io->open(from, OpenMode::kRead);
        EXPECT_EQ(co_await io->read(file, 0, std::as_writable_bytes(std::span(*into))), 5U);
      },
      files.get(), path, &got);
  scope.spawn(
      "writer",
      [](FileIo* io, std::string to) -> Task<> {
        const IoFile file = co_await io->open(to, OpenMode::kCreate);
        co_await io->write(file, 0, std::as_bytes(std::span("hello", 5)));
      },
      files.get(), path);
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(got, "hello");
}

TEST_P(FileIoTest, ReadsOfPipesHoldUpNothingElse) {
  constexpr int kPipes = 12;
  Scope readers(loop);
  for (int i = 0; i < kPipes; ++i) {
    const std::string path = folder + "/" + std::to_string(i);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    readers.spawn(
        "reader",
        [](FileIo* io, std::string from) -> Task<> {
          const StopToken stop = co_await current_stop_token();
          const IoFile file = co_await io->open(from, OpenMode::kRead, stop);  // waits for a writer
          std::array<std::byte, 3> bytes{};
          EXPECT_EQ(co_await io->read(file, 0, bytes, stop), 3U);
        },
        files.get(), path);
  }
  loop.run(&write_and_read_back, files.get(), folder + "/file", std::size_t{1000});
  for (int i = 0; i < kPipes; ++i) {
    loop.run(
        [](FileIo* io, std::string to) -> Task<> {
          const IoFile file = co_await io->open(to, OpenMode::kCreate);
          co_await io->write(file, 0, std::as_bytes(std::span("abc", 3)));
        },
        files.get(), folder + "/" + std::to_string(i));
  }
  loop.run(&Scope::join, &readers);
}

// A ring takes the last of them for "where the file stands".
TEST_P(FileIoTest, AnOffsetThatNoFileHasIsRefused) {
  loop.run(
      [](FileIo* io, std::string path) -> Task<> {
        const IoFile file = co_await io->open(path, OpenMode::kReadWrite);
        std::array<std::byte, 3> bytes{};
        for (const std::uint64_t offset : {std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
          int number = 0;
          try {
            co_await io->write(file, offset, bytes);
          } catch (const FileError& error) {
            number = error.error_number();
          }
          EXPECT_EQ(number, EINVAL);
          try {
            number = 0;
            (void)co_await io->read(file, offset, bytes);
          } catch (const FileError& error) {
            number = error.error_number();
          }
          EXPECT_EQ(number, EINVAL);
        }
        EXPECT_EQ(co_await io->size(file), 0U);
      },
      files.get(), folder + "/file");
}

INSTANTIATE_TEST_SUITE_P(Both, FileIoTest, kBothBackends, backend_of);

TEST(FileIoChoice, IsThreadsWhereNoFurtherRingCanBeMade) {
  if (!FileIo::choose().uring) {
    GTEST_SKIP() << "no io_uring: " << FileIo::choose().why;
  }
  if (kAddressSanitizer) {
    GTEST_SKIP() << "a sanitizer's own checks need descriptors";
  }
  const test::ChildProcess child([](int /*pipe*/) {
    EventLoop loop;
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(next);
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = static_cast<rlim_t>(next);  // a ring is a descriptor
    ::setrlimit(RLIMIT_NOFILE, &limit);
    FileIo io(loop, FileIo::Options{});
    throw user_error("test", "{}: {}", io.backend_name(), io.why());
  });
  EXPECT_THAT(child.text(), ::testing::HasSubstr("threads: [io] io_uring is not usable here"));
}

}  // namespace
}  // namespace tandem
