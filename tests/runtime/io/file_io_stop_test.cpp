// Stopping file operations: at every call, in the queue, in the kernel.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/event.hpp"
#include "runtime/io/thread_files.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "tests/runtime/io/file_io_fixture.hpp"

namespace tandem {
namespace {

class FileIoStop : public FileIoTest {};

// A pipe blocks a read until there is something in it.
struct Pipe {
  explicit Pipe(const std::string& path) : name(path) { EXPECT_EQ(mkfifo(path.c_str(), 0600), 0); }
  std::string name;
};

// Reads from a pipe that stays empty, until stopped.
Task<bool> read_until_stopped(FileIo* io, std::string path, StopToken stop, Event* started) {
  // of a pipe: does not wait for the other end
  const IoFile in = co_await io->open(path, OpenMode::kReadWrite);
  std::vector<std::byte> into(100);
  started->set();
  try {
    (void)co_await io->read(in, 0, into, stop);
  } catch (const Stopped&) {
    co_return true;
  }
  co_return false;
}

TEST_P(FileIoStop, AnOperationThatIsStoppedEndsBeforeItsAwait) {
  if (GetParam() == FileIo::Backend::kThreads) {
    GTEST_SKIP() << "a thread's blocking call is awaited, by contract";
  }
  const Pipe pipe(folder + "/pipe");
  loop.run(
      [](FileIo* io, std::string path) -> Task<> {
        StopSource source;
        Event started;
        Scope scope(EventLoop::current());
        scope.spawn(
            "stopper",
            [](Event* at, StopSource* stop) -> Task<> {
              co_await *at;
              for (int i = 0; i < 10; ++i) {
                co_await yield();  // the read is in the kernel by now
              }
              stop->request_stop();
            },
            &started, &source);
        EXPECT_TRUE(co_await read_until_stopped(io, path, source.token(), &started));
        co_await scope.join();
      },
      files.get(), pipe.name);
}

TEST_P(FileIoStop, WhatHasNotBegunIsStoppedAtOnce) {
  loop.run(
      [](FileIo* io, std::string f) -> Task<> {
        StopSource source;
        std::vector<std::byte> bytes(100);
        const IoFile file = co_await io->open(f + "/x", OpenMode::kReadWrite, source.token());
        source.request_stop();
        bool stopped = false;
        try {
          co_await io->write(file, 0, bytes, source.token());
        } catch (const Stopped&) {
          stopped = true;
        }
        EXPECT_TRUE(stopped);
        EXPECT_EQ(co_await io->size(file), 0U);
        EXPECT_TRUE(file.is_open());
      },
      files.get(), folder);
}

TEST_P(FileIoStop, StopAtEveryCall) {
  // At the k-th call of a long chain of operations a stop is requested: each ends, with Stopped or
  // its result.
  int stopped_runs = 0;
  for (std::uint64_t k = 1; k <= 40; ++k) {
    StopSource source;
    auto watching = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, options()));
    StopHandle handle = source.handle(loop);
    watching->set_rule([&](const FileOp&, std::uint64_t call) {
      if (call == k) {
        handle.request_stop();  // arrives through the loop's queue, while the call is on its way
      }
      return FileFault{};
    });
    FileIo io(loop, std::move(watching), with(options(), 4096));
    const bool stopped = loop.run(
        [](FileIo* f, std::string path, StopToken stop) -> Task<bool> {
          try {
            const auto data = pattern(50'000);
            IoFile file = co_await f->open(path, OpenMode::kReadWrite, stop);
            co_await f->write(file, 0, data, stop);
            co_await f->fsync(file, stop);
            std::vector<std::byte> back(data.size());
            EXPECT_EQ(co_await f->read(file, 0, back, stop), back.size());
            EXPECT_TRUE(back == data);
            (void)co_await f->size(file, stop);
            co_await f->close(std::move(file));
            co_await f->rename(path, path + ".new", stop);
            co_await f->remove(path + ".new", stop);
          } catch (const Stopped&) {
            co_return true;
          }
          co_return false;
        },
        &io, folder + "/chain", source.token());
    stopped_runs += stopped ? 1 : 0;
  }
  EXPECT_GT(stopped_runs, 20);
}

// A call that lasts until the test opens the pipe and writes to it. A thread's open waits for a
// reader; the ring's does not (it tries without blocking first), but its read does, for which a
// thread gets ESPIPE. `blocking` counts those whose call that blocks is the next in the queue.
Task<> block_until_written(FileIo* io, std::string path, int* blocking, int* ended) {
  const bool uring = io->backend_name() == "io_uring";
  if (!uring) {
    ++*blocking;
  }
  const IoFile end = co_await io->open(path, uring ? OpenMode::kReadWrite : OpenMode::kCreate);
  if (uring) {
    ++*blocking;
    std::byte one[1];
    EXPECT_EQ(co_await io->read(end, 0, one), 1U);
  }
  ++*ended;
}

TEST_P(FileIoStop, QueuedOperationsLeaveTheQueueAtOnce) {
  // As many threads as there may be, or a ring of one, are held by calls that block. Calls behind
  // them are stopped.
  const Pipe pipe(folder + "/pipe");
  FileIo::Options narrow = with(options(), 4096, 1);
  narrow.threads = 1;
  FileIo io(loop, narrow);
  loop.run(
      [](FileIo* files, std::string f, std::string pipe_name) -> Task<> {
        StopSource source;
        Scope scope(EventLoop::current());
        int blocking = 0;
        int opened = 0;
        int stops = 0;
        const bool uring = files->backend_name() == "io_uring";
        const int blockers = uring ? 4 : static_cast<int>(detail::ThreadFiles::kThreadsMost);
        const IoFile file = co_await files->open(f + "/file", OpenMode::kReadWrite);
        for (int i = 0; i < blockers; ++i) {
          scope.spawn("blocks", block_until_written, files, pipe_name, &blocking, &opened);
        }
        // An open that the kernel hands to a worker may take longer than any number of turns, and
        // what is queued before the calls that block would be carried out.
        while (blocking < blockers) {
          co_await yield();
        }
        for (int i = 0; i < 5; ++i) {
          scope.spawn(
              "waits",
              [](FileIo* r, const IoFile* waits, StopToken stop, int* count) -> Task<> {
                try {
                  co_await r->fsync(*waits, stop);
                } catch (const Stopped&) {
                  ++*count;
                }
              },
              files, &file, source.token(), &stops);
        }
        for (int i = 0; i < 20; ++i) {
          co_await yield();
        }
        source.request_stop();
        while (stops < 5) {
          co_await yield();
        }
        EXPECT_EQ(opened, 0);
        const int both_ends = ::open(pipe_name.c_str(), O_RDWR | O_CLOEXEC);
        EXPECT_EQ(::write(both_ends, "abcd", 4), 4);
        co_await scope.join();
        ::close(both_ends);
        EXPECT_EQ(opened, blockers);
      },
      &io, folder, pipe.name);
}

INSTANTIATE_TEST_SUITE_P(Both, FileIoStop, kBothBackends, backend_of);

}  // namespace
}  // namespace tandem
