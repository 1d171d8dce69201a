// The time limit of a rendezvous counts only time in which the process is awake.
#include "engine/rendezvous/patience.hpp"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tandem {
namespace {

using namespace std::chrono_literals;

/// Runs `body`, which stops its own process, in a process of its own, and lets that process go on
/// after `stopped_for`. Returns its exit status.
template <class Body>
int exit_of_stopped(std::chrono::milliseconds stopped_for, Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  std::this_thread::sleep_for(stopped_for);
  EXPECT_EQ(::kill(child, SIGCONT), 0);
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Patience, EndsAfterItsTime) {
  const auto began = std::chrono::steady_clock::now();
  Patience patience(50ms);
  while (patience.pause(1ms)) {
  }
  EXPECT_GE(std::chrono::steady_clock::now() - began, 50ms);
}

TEST(Patience, TimeOfASlowTryCounts) {
  Patience patience(500ms);
  std::this_thread::sleep_for(600ms);  // the ticks go on in it
  EXPECT_FALSE(patience.pause(0ms));
}

TEST(Patience, TimeOfAStopBetweenTwoPausesDoesNotCount) {
  EXPECT_EQ(exit_of_stopped(1500ms,
                            [] {
                              Patience patience(1s);
                              std::this_thread::sleep_for(10ms);
                              (void)::raise(SIGSTOP);
                              return patience.pause(1ms) ? 0 : 1;
                            }),
            0);
}

TEST(Patience, AStopIsNoLongWait) {
  EXPECT_EQ(exit_of_stopped(6s,  // longer than the silence
                            [] {
                              Patience patience(60s);
                              (void)::raise(SIGSTOP);
                              return patience.grows_long() ? 1 : 0;
                            }),
            0);
}

}  // namespace
}  // namespace tandem
