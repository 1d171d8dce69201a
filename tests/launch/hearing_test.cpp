// The launcher always hears: however much its ranks write, whether anything reads it, and whatever
// they do to what they share with it.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/system/owned_descriptor.hpp"
#include "tests/launch/launched.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using test::Launched;
using test::lines_of;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

std::vector<std::string> shell(const std::string& script) { return {"/bin/sh", "-c", script}; }

/// `ranks` ranks of the script; what they print goes to `output`.
struct Ranks : Launched {
  Ranks(int ranks, const std::string& script, int output, std::vector<std::string> more = {})
      : Launched(words(all(ranks, more), shell(script)), {}, output) {}
  static std::vector<std::string> all(int ranks, std::vector<std::string> more) {
    more.insert(more.end(), {"-n", std::to_string(ranks)});
    if (std::ranges::find(more, "--grace_s") == more.end()) {
      more.insert(more.end(), {"--grace_s", "2"});
    }
    return more;
  }
};

struct Nowhere {
  int descriptor = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  ~Nowhere() { ::close(descriptor); }
};

/// A pipe that stays open and is not read.
struct Unread {
  int ends[2] = {};
  Unread() { EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0); }
  ~Unread() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
};

TEST(Hearing, ARankThatWritesWithoutEndHoldsUpNoSignal) {
  const Nowhere nowhere;
  for (const char* script : {"echo up >&2; exec yes", "echo up >&2; exec cat /dev/zero"}) {
    for (const int signal : {SIGINT, SIGTERM}) {
      Ranks run(2, script, nowhere.descriptor);
      run.wait_for("[0] up");
      run.wait_for("[1] up");
      ASSERT_EQ(::kill(run.process, signal), 0);
      EXPECT_EQ(run.wait(), 128 + signal);
      EXPECT_EQ(run.left(), 0);
    }
  }
}

TEST(Hearing, ARankThatWritesWithoutEndHidesNoFailure) {
  const Nowhere nowhere;
  Ranks run(2, "if [ $RANK = 0 ]; then exec yes; fi; sleep 0.2; exit 3", nowhere.descriptor);
  EXPECT_EQ(run.wait(), 3);
  EXPECT_THAT(run.output, HasSubstr("error: [launch] rank 1 of 2 exited with code 3"));
}

TEST(Hearing, AReaderThatDoesNotReadHoldsUpNothing) {
  const std::string flood =
      "head -c 3000000 /dev/zero | tr '\\0' '\\n'; echo through >&2; sleep 1000";
  for (const int signal : {SIGINT, SIGTERM}) {
    const Unread pipe;
    Ranks run(2, "echo up >&2; " + flood, pipe.ends[1]);
    run.wait_for("[0] up");
    ASSERT_EQ(::kill(run.process, signal), 0);
    EXPECT_EQ(run.wait(), 128 + signal);
    EXPECT_EQ(run.left(), 0);
  }
  const Unread pipe;
  Ranks killed(2, "if [ $RANK = 0 ]; then " + flood + "; fi; sleep 0.2; kill -KILL $$",
               pipe.ends[1]);
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  EXPECT_THAT(killed.output, HasSubstr("rank 1 of 2 was killed by signal 9"));
}

TEST(Hearing, WhatNoReaderTakesIsBoundedAndCounted) {
  const Unread pipe;
  // 16 MiB of prefixed lines, of which half can be held.
  Ranks run(1, "head -c 4000000 /dev/zero | tr '\\0' '\\n'; echo through >&2", pipe.ends[1]);
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(run.output, HasSubstr("[0] through"));
  std::uint64_t dropped = 0;
  ASSERT_EQ(std::sscanf(lines_of(run.output).back().c_str(),
                        "launch: %lu lines of output were dropped", &dropped),
            1)
      << run.output;
  char buffer[1 << 16];
  const ssize_t taken = ::read(pipe.ends[0], buffer, sizeof(buffer));
  const auto whole = static_cast<std::uint64_t>(std::count(buffer, buffer + taken, '\n'));
  EXPECT_EQ(dropped + whole, 4'000'000U);
}

TEST(Hearing, AReaderThatIsSlowLosesNothing) {
  Ranks run(2, "seq 300000", -1, {"--grace_s", "30"});
  char buffer[1 << 14];
  for (int read = 0; read < 64; ++read) {
    const ssize_t got = ::read(run.pipe, buffer, sizeof(buffer));
    ASSERT_GT(got, 0);
    run.output.append(buffer, static_cast<std::size_t>(got));
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(lines_of(run.output).size(), 600'000U);
}

TEST(Hearing, TwoSignalsAtOnceAreOneRequest) {
  Ranks run(2, "trap 'sleep 0.3; echo saved; exit 130' INT; echo up; while :; do sleep 0.01; done",
            -1);
  run.wait_for("[0] up");
  run.wait_for("[1] up");
  ASSERT_EQ(::kill(run.process, SIGINT), 0);
  std::this_thread::sleep_for(50ms);
  ASSERT_EQ(::kill(run.process, SIGINT), 0);
  EXPECT_EQ(run.wait(), 130);
  EXPECT_THAT(run.output, HasSubstr("[0] saved"));
  EXPECT_THAT(run.output, HasSubstr("[1] saved"));
}

TEST(Hearing, TheBatchSystemsWarningIsARequestToEnd) {
  Ranks run(1, "trap 'echo saved; exit 143' TERM; echo up; while :; do sleep 0.01; done", -1);
  run.wait_for("[0] up");
  ASSERT_EQ(::kill(run.process, SIGXCPU), 0);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
  EXPECT_THAT(run.output, HasSubstr("[0] saved"));
}

TEST(Hearing, ARecorderCannotBeCut) {
  Ranks run(1, "true > /proc/self/fd/$TANDEM_FLIGHT_FD; kill -KILL $$", -1);
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_THAT(run.output, HasSubstr("Operation not permitted"));
}

TEST(Hearing, TheKernelChoosesARankBeforeItsLauncher) {
  Ranks run(1, "echo $(($(cat /proc/self/oom_score_adj) - $(cat /proc/$PPID/oom_score_adj)))", -1);
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.output, "[0] 500\n");
}

TEST(Hearing, ChildrenThatItDidNotStartAreLeftAlone) {
  const std::string launch = test::program_path("launch_alone launch -n 1 -- ");
  // One that is there before, one that a stranger leaves behind, and one that a rank leaves.
  Launched run(shell("sleep 1001 & echo stranger=$!; sh -c 'sleep 1 & sleep 1003 & echo orphan=$!; "
                     "sleep 0.2' & sleep 0.1; exec " +
                     launch + "sh -c 'setsid sleep 1002 & sleep 0.5'"),
               {}, -1);
  run.wait_for("stranger=");
  const auto number_behind = [&](const std::string& name) {
    return std::stoi(run.output.substr(run.output.find(name) + name.size()));
  };
  run.wait_for("orphan=");
  while (::kill(run.process, 0) == 0 && run.left() > 2) {
    std::this_thread::sleep_for(10ms);
  }
  for (const char* name : {"stranger=", "orphan="}) {
    const int process = number_behind(name);
    EXPECT_EQ(::kill(process, 0), 0) << name;
    ::kill(process, SIGKILL);
  }
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.left(), 0);
}

// ---- logs ----

class Logs : public ::testing::Test {
 protected:
  Logs() { std::filesystem::create_directories(folder_); }
  ~Logs() override { std::filesystem::remove_all(folder_); }
  std::string folder_ = fmt::format("{}/logs.{}", ::testing::TempDir(), ::getpid());
};

TEST_F(Logs, FollowNoLinkAndWaitForNoFifo) {
  const std::string victim = folder_ + "/victim";
  const std::string log = folder_ + "/rank_0.log";
  std::ofstream(victim) << "precious";
  const auto refused_for = [&](const std::string& why) {
    Ranks run(1, "echo x", -1, {"--log_dir", folder_});
    EXPECT_EQ(run.wait(), 2);
    EXPECT_EQ(
        run.output,
        fmt::format("error: [launch] cannot write {}: {}; give another --log_dir\n", log, why));
    std::stringstream text;
    text << std::ifstream(victim).rdbuf();
    EXPECT_EQ(text.str(), "precious");
    std::filesystem::remove(log);
  };
  std::filesystem::create_symlink(victim, log);
  refused_for("it is a link");
  std::filesystem::create_hard_link(victim, log);
  refused_for("it has another name, too");
  ASSERT_EQ(::mkfifo(log.c_str(), 0600), 0);
  refused_for("it is no ordinary file");
  std::filesystem::create_symlink(victim, folder_ + "/flight_rank_0.txt");
  Ranks run(1, fmt::format("{}/launch_alone blame 0; kill -KILL $$", test::bin_dir()), -1,
            {"--log_dir", folder_});
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_THAT(run.output, HasSubstr("flight_rank_0.txt: it is a link"));
}

TEST_F(Logs, ADiskThatIsFullIsSaidAndEndsNothing) {
  const std::string launch = fmt::format("{}/launch_alone launch -n 1 --log_dir '{}' -- seq 100000",
                                         test::bin_dir(), folder_);
  Launched run(shell("ulimit -f 8; exec " + launch), {}, -1);
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(run.output, HasSubstr("rank_0.log lacks lines from here on: File too large"));
  EXPECT_THAT(run.output, HasSubstr("[0] 100000\n"));
  EXPECT_THAT(run.output,
              ::testing::ContainsRegex("rank_0.log lacks [0-9]+ lines: File too large\n"));
}

}  // namespace
}  // namespace tandem
