// Snippets of docs/runtime.md: a program's parts made and ended; requests that are refused;
// semaphores, channels, generators. tools/docs_in_step.py keeps the page equal to this.
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <tandem/runtime.hpp>

namespace {

using namespace std::chrono_literals;
using tandem::Task;

// [refuse]
struct SizeOf {
  using Reply = std::size_t;
  std::string path;
};

/// A file that is not there is the asker's trouble and no reason to end the actor.
struct Library : tandem::Actor<Library, SizeOf> {
  explicit Library(tandem::FileIo* io) : Actor("library"), files(io) {}
  Task<> handle(SizeOf request, tandem::ReplyTo<SizeOf> reply) {
    try {
      const tandem::IoFile file = co_await files->open(request.path, tandem::OpenMode::kRead);
      reply.send(co_await files->size(file));
    } catch (const tandem::FileError&) {
      reply.fail(std::current_exception());  // the asker's co_await throws it; this one lives on
    }
  }
  tandem::FileIo* files;
};
// [/refuse]

// [generator]
tandem::Generator<std::string> blocks_of(tandem::FileIo* files, std::string path,
                                         std::size_t bytes) {
  const tandem::IoFile file = co_await files->open(path, tandem::OpenMode::kRead);
  for (std::uint64_t at = 0;; at += bytes) {
    std::string block(bytes, '\0');
    block.resize(co_await files->read(file, at, std::as_writable_bytes(std::span(block))));
    if (block.empty()) {
      co_return;
    }
    co_yield std::move(block);
  }
}
// [/generator]

// [channel]
Task<> read(tandem::FileIo* files, std::string path, tandem::Channel<std::string>* blocks) {
  const tandem::StopToken stop = co_await tandem::current_stop_token();
  tandem::Generator<std::string> all = blocks_of(files, path, 4);
  while (std::optional<std::string> block = co_await all.next()) {
    if (!co_await blocks->send(std::move(*block), stop)) {  // waits while it is full
      co_return;                                            // closed: no more is wanted
    }
  }
  blocks->close();
}

Task<> add_up(tandem::CpuPool* pool, tandem::Channel<std::string>* blocks, long* sum) {
  const tandem::StopToken stop = co_await tandem::current_stop_token();  // the reader may fail
  while (const std::optional<std::string> block = co_await blocks->receive(stop)) {
    *sum +=
        co_await pool->run([&block] { return std::accumulate(block->begin(), block->end(), 0L); });
  }
}
// [/channel]

// [semaphore]
/// However many tasks call it, four files at most are open at a time.
Task<std::size_t> size_of(tandem::Semaphore* open_files, tandem::FileIo* files, std::string path) {
  const tandem::Semaphore::Permit permit = co_await open_files->acquire();
  const tandem::IoFile file = co_await files->open(path, tandem::OpenMode::kRead);
  co_return co_await files->size(file);
}
// [/semaphore]

// [program]
/// Ctrl-C asks all tasks of `root` to stop; they end by themselves, and the program with them.
Task<> stop_on_signal(tandem::Scope* root) {
  const tandem::StopToken stop = co_await tandem::current_stop_token();
  tandem::Signals signals(tandem::EventLoop::current(), {SIGINT, SIGTERM});
  co_await signals.wait(stop);
  root->request_stop();
}

/// Each ends with the others: a reader that fails stops the adding up, too.
Task<long> run_until_done(tandem::FileIo* files, tandem::CpuPool* pool, std::string path) {
  tandem::Channel<std::string> blocks(2);
  long sum = 0;
  co_await tandem::with_scope(
      [](tandem::Scope& root, tandem::FileIo* from, tandem::CpuPool* on, std::string file,
         tandem::Channel<std::string>* through, long* to) -> Task<> {
        root.spawn("signals", &stop_on_signal, &root);
        root.spawn("reader", &read, from, file, through);
        co_await add_up(on, through, to);
        root.request_stop();  // ends the wait for signals
      },
      files, pool, path, &blocks, &sum);
  co_return sum;
}

long whole_program(const std::string& path) {
  tandem::EventLoop loop({.name = "main"});  // first made, last to go: everything refers to it
  tandem::CpuPool pool(loop, {.threads = 2, .name = "adders"});
  tandem::ComputeLane lane(loop, "library");  // one thread, for what wants to be called from one
  tandem::FileIo files(loop);                 // io_uring where the kernel has it, else threads
  const long sum = loop.run(&run_until_done, &files, &pool, path);
  return sum + loop.run(
                   [](tandem::ComputeLane* on) -> Task<int> {
                     co_return co_await on->run([] { return 0; });
                   },
                   &lane);
}
// [/program]

class DocsProgram : public testing::Test {
 protected:
  void SetUp() override { std::ofstream(path) << "0123456789"; }
  void TearDown() override { std::filesystem::remove(path); }
  const std::string path =  // a file of its own: tests run at the same time
      testing::TempDir() + "tandem_docs_" +
      testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(DocsProgram, AddsUpAFile) { EXPECT_EQ(whole_program(path), 10 * '0' + 45); }

TEST_F(DocsProgram, EndsWithTheReadersError) {
  EXPECT_THROW(whole_program("/nowhere/at/all"), tandem::FileError);
}

TEST_F(DocsProgram, ARefusedRequestEndsNoActor) {
  tandem::EventLoop loop;
  tandem::FileIo files(loop);
  tandem::Scope scope(loop, "actors");
  Library& library = scope.start<Library>(&files);
  loop.run(
      [](Library::AddressType to, std::string file) -> Task<> {
        bool refused = false;
        try {
          (void)co_await to.ask(SizeOf{"/nowhere/at/all"});
        } catch (const tandem::FileError&) {
          refused = true;
        }
        EXPECT_TRUE(refused);
        EXPECT_EQ(co_await to.ask(SizeOf{file}), 10U);
      },
      library.address(), path);
  loop.run(&tandem::Scope::join, &scope);
}

TEST_F(DocsProgram, SixteenTasksShareFourFiles) {
  tandem::EventLoop loop;
  tandem::FileIo files(loop);
  tandem::Semaphore open_files(4);
  tandem::Scope scope(loop, "sizes");
  std::size_t sum = 0;
  for (int i = 0; i < 16; ++i) {
    scope.spawn(
        "size",
        [](tandem::Semaphore* s, tandem::FileIo* io, std::string file, std::size_t* to) -> Task<> {
          const std::size_t size = co_await size_of(s, io, file);
          *to += size;
        },
        &open_files, &files, path, &sum);
  }
  loop.run(&tandem::Scope::join, &scope);
  EXPECT_EQ(sum, 160U);
}

}  // namespace
