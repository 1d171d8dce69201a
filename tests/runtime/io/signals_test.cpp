// The runtime's effect on a process's signals and descriptors: handlers stay as they were, an
// executed program inherits no descriptor, and a broken pipe is an error.
#include "runtime/io/signals.hpp"

#include <csignal>
#include <string>

#include <asio/posix/stream_descriptor.hpp>
#include <asio/write.hpp>
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/address.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/event_fd.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/scope.hpp"
#include "runtime/semaphore.hpp"
#include "runtime/sleep.hpp"
#include "runtime/supervision/describe.hpp"
#include "runtime/supervision/status_server.hpp"
#include "runtime/with_deadline.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

volatile std::sig_atomic_t handled = 0;
void handle_signal(int) { handled = handled + 1; }

TEST(SignalsLeft, AHandlerIsPutBackWhenTheLastSetHasGone) {
  std::signal(SIGUSR1, &handle_signal);
  handled = 0;
  EventLoop loop;
  {
    Signals one(loop, {SIGUSR1, SIGUSR1});
    {
      Signals other(loop, {SIGUSR1});
      ::raise(SIGUSR1);
      loop.run([](Signals* s) -> Task<> { (void)co_await s->wait(); }, &other);
    }
    ::raise(SIGUSR1);
    loop.run([](Signals* s) -> Task<> { (void)co_await s->wait(); }, &one);
    EXPECT_EQ(handled, 0);
  }
  ::raise(SIGUSR1);
  EXPECT_EQ(handled, 1);
  std::signal(SIGUSR1, SIG_DFL);
}

TEST(SignalsLeft, AnIgnoredSignalIsIgnoredAgain) {
  std::signal(SIGUSR2, SIG_IGN);
  EventLoop loop;
  {
    Signals signals(loop, {SIGUSR2});
  }
  ::raise(SIGUSR2);
  std::signal(SIGUSR2, SIG_DFL);
}

TEST(SignalsLeft, AHandlerThatTheProgramSetMeanwhileStays) {
  EventLoop loop;
  handled = 0;
  {
    Signals signals(loop, {SIGUSR1});
    std::signal(SIGUSR1, &handle_signal);
  }
  ::raise(SIGUSR1);
  EXPECT_EQ(handled, 1);
  std::signal(SIGUSR1, SIG_DFL);
}

TEST(SignalsLeft, AHandlerIsPutBackAfterADump) {
  std::signal(SIGUSR1, &handle_signal);
  handled = 0;
  EventLoop loop;
  {
    const DumpOnSignal dump(loop, SIGUSR1);
  }
  ::raise(SIGUSR1);
  EXPECT_EQ(handled, 1);
  std::signal(SIGUSR1, SIG_DFL);
}

// Waits until something has come, is asked to stop before its turn, and waits again.
template <class Source, class Wait>
Task<> meet_a_stop(Source* source, Wait wait, void (*come)(Source* source)) {
  EventLoop& loop = EventLoop::current();
  StopSource stop;
  co_await with_scope(
      [](Scope& scope, Source* from, Wait wait_for, StopSource* stopped, EventLoop* on,
         void (*comes)(Source*)) -> Task<> {
        scope.spawn(
            "waits",
            [](Source* it, Wait f, StopToken token) -> Task<> {
              EXPECT_THROW((void)co_await f(it, token), Stopped);
            },
            from, wait_for, stopped->token());
        co_await yield();
        comes(from);
        on->reactor().restart();
        on->reactor().poll();
        stopped->request_stop();
      },
      source, wait, &stop, &loop, come);
  EXPECT_NE(co_await with_deadline(10s, wait, source, StopToken()), 0U);
}

TEST(MeetsAStop, ASignalIsKept) {
  EventLoop loop;
  Signals signals(loop, {SIGUSR1});
  const auto wait = [](Signals* on, StopToken stop) -> Task<unsigned> {
    co_return static_cast<unsigned>(co_await on->wait(std::move(stop)));
  };
  loop.run(
      &meet_a_stop<Signals, decltype(wait)>, &signals, wait,
      +[](Signals* /*on*/) { ::raise(SIGUSR1); });
}

TEST(MeetsAStop, ANotificationIsKept) {
  EventLoop loop;
  EventFd bell(loop);
  const auto wait = [](EventFd* on, StopToken stop) -> Task<std::uint64_t> {
    co_return co_await on->wait(std::move(stop));
  };
  loop.run(&meet_a_stop<EventFd, decltype(wait)>, &bell, wait, +[](EventFd* on) { on->notify(); });
}

TEST(SourceDeathTest, IsAwaitedOnItsLoop) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        EventLoop home({.name = "home"});
        Signals signals(home, {SIGUSR1});
        EventLoop mine;
        mine.run([](Signals* of) -> Task<> { (void)co_await of->wait(); }, &signals);
      },
      "home: a Signals is awaited on the loop that it was made for");
  EXPECT_DEATH(
      {
        EventLoop home({.name = "home"});
        EventFd bell(home);
        EventLoop mine;
        mine.run([](EventFd* of) -> Task<> { (void)co_await of->wait(); }, &bell);
      },
      "home: an EventFd is awaited on the loop that it was made for");
}

// Counts this process's descriptors that an executed program would inherit, without the first
// three.
int inherited_descriptors() {
  int count = 0;
  for (int descriptor = 3; descriptor < 1024; ++descriptor) {
    const int flags = ::fcntl(descriptor, F_GETFD);
    count += flags >= 0 && (flags & FD_CLOEXEC) == 0 ? 1 : 0;
  }
  return count;
}

TEST(SignalsLeft, NoDescriptorIsLeftToAnExecutedProgram) {
  const int before = inherited_descriptors();
  EventLoop loop;
  FileIo io(loop);
  FileIo threads(loop, {.backend = FileIo::Backend::kThreads});
  CpuPool pool(loop, {.threads = 1});
  Signals signals(loop, {SIGUSR1});
  EventFd bell(loop);
  const StatusServer status(loop, "127.0.0.1:0", {});
  EXPECT_GE(loop.ready_descriptor(), 0);
  loop.run(
      [](FileIo* files, FileIo* others, CpuPool* workers) -> Task<> {
        const IoFile one = co_await files->open("/proc/self/exe", OpenMode::kRead);
        const IoFile other = co_await others->open("/proc/self/exe", OpenMode::kRead);
        co_await workers->run([] {});
        co_await sleep_for(2ms);
        EXPECT_TRUE(one.is_open() && other.is_open());
      },
      &io, &threads, &pool);
  EXPECT_EQ(inherited_descriptors(), before);
}

/// More signals than the pipe of Asio's sets has room for, which no loop reads meanwhile: 0 if
/// every one of them returns, and if the pipe is closed for executed programs.
int raise_more_than_the_pipe_holds() {
  constexpr int kPipeBytes = 1 << 16;  // of which each signal takes 4
  const int before = inherited_descriptors();
  EventLoop loop;
  Signals signals(loop, {SIGUSR1});
  const auto ended = std::chrono::steady_clock::now() + 10s;
  for (int i = 0; i < kPipeBytes && std::chrono::steady_clock::now() < ended; ++i) {
    ::raise(SIGUSR1);
  }
  loop.run([](Signals* s) -> Task<> { (void)co_await s->wait(); }, &signals);
  return inherited_descriptors() == before ? 0 : 3;
}

// A handler that waited for room would wait for ever: the thread that reads is the one it stopped.
TEST(SignalsLeft, AHandlerDoesNotWaitForRoomInThePipe) {
  for (const bool in_grandchild : {false, true}) {  // whose pipe is made anew
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(20);
      if (in_grandchild) {
        EventLoop loop;
        const Signals signals(loop, {SIGUSR1});
        if (const pid_t grandchild = ::fork(); grandchild != 0) {
          int status = 0;
          ::waitpid(grandchild, &status, 0);
          ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 4);
        }
        ::alarm(20);
      }
      ::_exit(raise_more_than_the_pipe_holds());
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "it hung";
    EXPECT_EQ(WEXITSTATUS(status), 0) << in_grandchild;
  }
}

Task<int> next_of(Signals* signals) {
  co_return co_await signals->wait(co_await current_stop_token());
}

// The child of a fork: waits for a signal on a loop of its own, and then has the default again.
[[noreturn]] void wait_in_child(int ready) {
  EventLoop loop;
  loop.run(
      [](int say) -> Task<> {
        Signals own(EventLoop::current(), {SIGTERM});
        EXPECT_EQ(::write(say, "r", 1), 1);
        if (co_await with_deadline(10s, &next_of, &own) != SIGTERM) {
          ::_exit(6);
        }
      },
      ready);
  ::raise(SIGTERM);
  ::_exit(7);
}

[[noreturn]] void dump_in_child(int ready) {
  EventLoop loop;
  loop.run(
      [](int say) -> Task<> {
        const DumpOnSignal dump(EventLoop::current(), SIGTERM);
        EXPECT_EQ(::write(say, "r", 1), 1);
        co_await sleep_for(100ms);
      },
      ready);
  ::raise(SIGTERM);
  ::_exit(8);
}

[[noreturn]] void idle_in_child(int ready) {
  EXPECT_EQ(::write(ready, "r", 1), 1);
  ::sleep(10);
  ::_exit(5);
}

struct ChildCase {
  const char* name;
  void (*go_on)(int ready);
};
void PrintTo(const ChildCase& one, std::ostream* out) { *out << one.name; }

class SignalsOfAChild : public testing::TestWithParam<ChildCase> {};

TEST_P(SignalsOfAChild, AreItsOwn) {
  EventLoop loop;
  Signals ours(loop, {SIGTERM});
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    GetParam().go_on(ends[1]);
  }
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  ::kill(child, SIGTERM);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_THROW(
      (void)loop.run(
          [](Signals* s) -> Task<int> { co_return co_await with_deadline(20ms, &next_of, s); },
          &ours),
      DeadlineExceeded);
  ::raise(SIGTERM);
  EXPECT_EQ(loop.run(&next_of, &ours), SIGTERM);
  ::close(ends[0]);
  ::close(ends[1]);
}

INSTANTIATE_TEST_SUITE_P(Fork, SignalsOfAChild,
                         testing::Values(ChildCase{"idle", &idle_in_child},
                                         ChildCase{"dumps", &dump_in_child},
                                         ChildCase{"waits", &wait_in_child}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(SignalsLeft, ABrokenPipeIsAnError) {
  EventLoop loop;
  EXPECT_THROW(loop.run([]() -> Task<> {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    ::close(ends[0]);
    asio::posix::stream_descriptor out(EventLoop::current().reactor(), ends[1]);
    (void)co_await asio::async_write(out, asio::buffer("x", 1), use_task);
  }),
               asio::system_error);
}

TEST(ZeroOfAnything, IsAnErrorThatCanBeCaught) {
  EventLoop loop;
  EXPECT_THROW(CpuPool(loop, {.threads = 0}), Error);
  EXPECT_THROW(FileIo(loop, {.backend = FileIo::Backend::kThreads, .threads = 0}), Error);
  EXPECT_THROW(FileIo(loop, {.backend = FileIo::Backend::kUring, .ring_entries = 0}), Error);
  EXPECT_THROW(FileIo(loop, {.ring_entries = 0}), Error);
  EXPECT_THROW(FileIo(loop, {.threads = 0}), Error);
  EXPECT_THROW((void)Semaphore(0).try_acquire(), Error);
  EXPECT_THROW((void)Semaphore(2).try_acquire(3), Error);
  EXPECT_THROW(loop.run([]() -> Task<> {
    Semaphore two(2);
    (void)co_await two.acquire(3);
  }),
               Error);
  EXPECT_THROW((void)Address<int>().with_credits(0), Error);
}

}  // namespace
}  // namespace tandem
