// Threads that cannot be made: an error in words, nothing left running, no abort.
#include "runtime/system/limits.hpp"

#include <csignal>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/system/process_state.hpp"
#include "runtime/util/build.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/child_process.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

/// Returns the error of `body` in a process that has address space for only a few more stacks. The
/// process must end in an orderly way.
template <class Body>
std::string error_with_little_room(Body body) {
  const test::ChildProcess child([&](int pipe) {
    rlimit stack{};
    (void)::getrlimit(RLIMIT_STACK, &stack);
    const rlim_t room = 6 * std::min<rlim_t>(stack.rlim_cur, 8 << 20);
    long pages = 0;
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    (void)!std::fscanf(file, "%ld", &pages);
    std::fclose(file);
    const rlim_t bytes = static_cast<rlim_t>(pages) * 4096 + room;
    const rlimit limit{bytes, bytes};
    (void)::setrlimit(RLIMIT_AS, &limit);
    body();
    (void)!::write(pipe, "no error", 8);
  });
  const std::string text = child.text();
  const int status = child.wait();
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  return fmt::format("{} {}", WEXITSTATUS(status), text);
}

TEST(Limits, APoolWhoseThreadsCannotBeMadeSaysSo) {
  if (kSanitized) {
    GTEST_SKIP() << "a sanitizer's own memory does not fit within the limit";
  }
  const std::string text = error_with_little_room([] {
    EventLoop loop;
    const CpuPool pool(loop, {.threads = 64, .name = "adam"});
  });
  EXPECT_THAT(text, HasSubstr("3 [threads] adam: thread "));
  EXPECT_THAT(text, HasSubstr(" of 64 cannot be made: "));
  EXPECT_THAT(text, HasSubstr("ulimit -u "));
}

TEST(Limits, RoomForThreadsIsFoundOutBeforeTheyAreNeeded) {
  if (kSanitized) {
    GTEST_SKIP() << "a sanitizer's own memory does not fit within the limit";
  }
  EXPECT_NO_THROW(limits::require_threads(8, ""));
  const std::string text = error_with_little_room(
      [] { limits::require_threads(64, "use fewer with --optimizer_threads"); });
  EXPECT_THAT(text, HasSubstr("3 [limits] 64 threads are needed and "));
  EXPECT_THAT(text, HasSubstr("use fewer with --optimizer_threads"));
}

TEST(Limits, ASmallStackIsRefused) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_STACK, &limit), 0);
  EXPECT_NO_THROW(limits::require_stack());
  const rlimit small{64 << 10, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_STACK, &small), 0);
  EXPECT_THROW(limits::require_stack(), Error);
  ASSERT_EQ(::setrlimit(RLIMIT_STACK, &limit), 0);
}

TEST(ProcessState, AStoppedProcessIsSeen) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) {
      ::pause();
    }
  }
  EXPECT_EQ(process_state(child).parent, ::getpid());
  EXPECT_EQ(stopped_state(child), '\0');
  ::kill(child, SIGSTOP);
  ASSERT_EQ(::waitpid(child, nullptr, WUNTRACED), child);
  EXPECT_EQ(stopped_state(child), 'T');
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(process_state(child).process, 0);
}

}  // namespace
}  // namespace tandem
