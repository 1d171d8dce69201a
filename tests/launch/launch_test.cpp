// The launcher with shell scripts for ranks: codes, lines, and that nothing of them outlives it.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pty.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/system/machine.hpp"
#include "tests/launch/launched.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

using test::lines_of;

struct Setup {
  int ranks = 2;
  int grace_ms = 30'000;
  std::string log_dir = "";
  bool bind = false;
  int max_restarts = 0;
};

/// Ranks of this host that are `sh -c script`, or a command.
class Launched : public test::Launched {
 public:
  Launched(const Setup& setup, const std::string& script)
      : Launched(setup, std::vector<std::string>{"/bin/sh", "-c", script}) {}
  Launched(const Setup& setup, const std::vector<std::string>& command)
      : test::Launched(flags(setup), command) {}

 private:
  static std::vector<std::string> flags(const Setup& setup) {
    std::vector<std::string> all = {"-n",
                                    std::to_string(setup.ranks),
                                    "--grace_s",
                                    fmt::format("{}", setup.grace_ms / 1e3),
                                    "--max_restarts",
                                    std::to_string(setup.max_restarts)};
    if (!setup.log_dir.empty()) {
      all.insert(all.end(), {"--log_dir", setup.log_dir});
    }
    if (setup.bind) {
      all.emplace_back("--bind_cores_to_rank");
    }
    return all;
  }
};

TEST(Launch, EveryRankKnowsItsPlace) {
  Launched run({.ranks = 3},
               "echo rank=$RANK of $WORLD_SIZE local=$LOCAL_RANK of $LOCAL_WORLD_SIZE at "
               "$MASTER_ADDR port=$MASTER_PORT threads=$OMP_NUM_THREADS");
  EXPECT_EQ(run.wait(), 0);
  const auto lines = lines_of(run.output);
  ASSERT_EQ(lines.size(), 3U) << run.output;
  std::set<std::string> ports;
  std::set<char> ranks;
  const std::regex form(
      R"(\[(\d)\] rank=(\d) of 3 local=(\d) of 3 at 127\.0\.0\.1 port=(\d+) threads=[1-9]\d*)");
  for (const std::string& line : lines) {
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, form)) << line;
    EXPECT_EQ(match[1], match[2]);
    EXPECT_EQ(match[1], match[3]);
    ranks.insert(line[1]);
    ports.insert(match[4]);
  }
  EXPECT_EQ(ranks.size(), 3U);
  EXPECT_EQ(ports.size(), 1U);
}

TEST(Launch, RanksShareASecretThatNoCommandLineShows) {
  const std::string script =
      "case \"$(cat /proc/$PPID/cmdline /proc/$$/cmdline | tr '\\0' ' ')\" in "
      "*$TANDEM_RUN_SECRET*) echo shown;; esac; echo secret=$TANDEM_RUN_SECRET";
  std::set<std::string> secrets;
  for (int start = 0; start < 2; ++start) {
    Launched run({.ranks = 2}, script);
    EXPECT_EQ(run.wait(), 0);
    const auto lines = lines_of(run.output);
    ASSERT_EQ(lines.size(), 2U) << run.output;
    for (const std::string& line : lines) {
      EXPECT_TRUE(std::regex_match(line, std::regex(R"(\[\d\] secret=[0-9a-f]{64})"))) << line;
      secrets.insert(line.substr(4));
    }
  }
  EXPECT_EQ(secrets.size(), 2U);  // one for each start
}

// Between the launcher's choice and rank 0's listening no other program is given the port.
TEST(Launch, ThePortIsKeptForRankZero) {
  Launched run({.ranks = 1}, "echo port=$MASTER_PORT; sleep 60");
  run.wait_for("\n");
  const int port = std::stoi(run.output.substr(run.output.find("port=") + 5));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const auto* const raw = reinterpret_cast<const sockaddr*>(&address);
  const int other = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::bind(other, raw, sizeof(address)), -1);
  EXPECT_EQ(::connect(other, raw, sizeof(address)), -1);  // the launcher does not listen
  ::close(other);
  const int rank_0 = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ::setsockopt(rank_0, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  EXPECT_EQ(::bind(rank_0, raw, sizeof(address)), 0);
  EXPECT_EQ(::listen(rank_0, 1), 0);
  ::close(rank_0);
  ::kill(run.process, SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
}

// A rank's line and its prefix have room in a line of the terminal; a log has whole lines.
TEST(Launch, RanksKnowTheTerminalsColumns) {
  const std::string folder = fmt::format("{}/wide-logs", ::testing::TempDir());
  for (const bool logs : {false, true}) {
    winsize size{.ws_row = 20, .ws_col = 72, .ws_xpixel = 0, .ws_ypixel = 0};
    int terminal = -1;
    const pid_t process = ::forkpty(&terminal, nullptr, nullptr, &size);
    if (process == 0) {
      const std::string own = test::program_path("launch_alone");
      ::execl(own.c_str(), own.c_str(), "launch", "-n", "1", logs ? "--log_dir" : "--grace_s",
              logs ? folder.c_str() : "30", "--", "/bin/sh", "-c",
              "echo columns=${TANDEM_COLUMNS:-none}", nullptr);
      ::_exit(127);
    }
    std::string text;
    char buffer[256];
    for (ssize_t got = 0; (got = ::read(terminal, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<std::size_t>(got));
    }
    ::close(terminal);
    ::waitpid(process, nullptr, 0);
    EXPECT_THAT(text, HasSubstr(logs ? "columns=none" : "columns=68"));
  }
  std::filesystem::remove_all(folder);
}

TEST(Launch, LinesComeWholeAndIntoLogs) {
  const std::string folder = fmt::format("{}/logs", ::testing::TempDir());
  std::filesystem::remove_all(folder);
  Launched run({.ranks = 3, .log_dir = folder},
               "i=0; while [ $i -lt 200 ]; do printf 'a%s' $RANK; printf 'b%s' $i; printf 'c\\n'; "
               "i=$((i+1)); done; echo to errors >&2; printf 'no newline'");
  EXPECT_EQ(run.wait(), 0);
  const std::regex form(R"(\[(\d)\] (a\1b\d+c|to errors|no newline))");
  const auto lines = lines_of(run.output);
  EXPECT_EQ(lines.size(), 3 * 202U);
  for (const std::string& line : lines) {
    EXPECT_TRUE(std::regex_match(line, form)) << line;
  }
  for (int rank = 0; rank < 3; ++rank) {
    std::stringstream log;
    log << std::ifstream(fmt::format("{}/rank_{}.log", folder, rank)).rdbuf();
    EXPECT_EQ(lines_of(log.str()).size(), 202U);
    EXPECT_THAT(log.str(), HasSubstr(fmt::format("a{}b199c\n", rank)));
  }
  std::filesystem::remove_all(folder);
}

TEST(Launch, TheFirstFailureIsNamedAndItsCodeReturned) {
  Launched run({.ranks = 3}, "if [ $RANK = 1 ]; then exit 7; fi; exec sleep 1000");
  EXPECT_EQ(run.wait(), 7);
  EXPECT_THAT(run.output, HasSubstr("rank 1 exited with code 7; ending the other ranks"));
  EXPECT_THAT(run.output, HasSubstr("error: [launch] rank 1 of 3 exited with code 7"));
  EXPECT_EQ(run.left(), 0);
}

TEST(Launch, ARankThatOnlyLostItsPeerIsNotBlamed) {
  const std::string fifo = fmt::format("{}/gone.{}", ::testing::TempDir(), ::getpid());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  // Rank 1 fails when rank 0 is gone: the end of the pipe says so.
  Launched run(
      {.ranks = 2},
      fmt::format("if [ $RANK = 0 ]; then exec 3>'{0}'; exit 4; fi; cat '{0}'; exit 9", fifo));
  EXPECT_EQ(run.wait(), 9);
  EXPECT_THAT(run.output, HasSubstr("error: [launch] rank 1 of 2 exited with code 9"));
  ::unlink(fifo.c_str());
  Launched alone({.ranks = 2}, "if [ $RANK = 0 ]; then exit 4; fi");
  EXPECT_EQ(alone.wait(), 4);
  EXPECT_THAT(alone.output, HasSubstr("rank 0 of 2 exited with code 4"));
}

TEST(Launch, AFailureIsTriedAgainWhereThatMayHelp) {
  Launched run({.ranks = 2, .max_restarts = 3},
               "echo try $TORCHELASTIC_RESTART_COUNT $TANDEM_RUN_SECRET; if [ $RANK = 1 ] && "
               "[ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then kill -KILL $$; fi");
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(run.output,
              HasSubstr("\nlaunch: rank 1 of 2 was killed by signal 9 (Killed); see its "
                        "output; restart 2 of 3 with 2 ranks\n"));
  EXPECT_THAT(run.output, HasSubstr("[1] try 2 "));
  EXPECT_EQ(run.output.find("try 3"), std::string::npos);
  EXPECT_EQ(run.left(), 0);
  Launched never({.ranks = 2, .max_restarts = 1}, "if [ $RANK = 1 ]; then exit 1; fi; sleep 60");
  EXPECT_EQ(never.wait(), 1);
  EXPECT_EQ(
      lines_of(never.output).back(),
      "error: [launch] rank 1 of 2 exited with code 1; see its output; restarts: 1 of 1 used");
  for (const int code : {2, 3, 5, 6}) {  // the same would happen again, or all is done
    Launched wrong({.ranks = 1, .max_restarts = 3}, fmt::format("echo try; exit {}", code));
    EXPECT_EQ(wrong.wait(), code);
    EXPECT_EQ(lines_of(wrong.output).size(), 2U) << wrong.output;
  }
}

// It is trained and saved: no other rank is asked to end, and no restart repeats it.
TEST(Launch, ALostReportEndsNoOtherRank) {
  Launched run({.ranks = 2, .max_restarts = 2},
               "if [ $RANK = 0 ]; then exit 6; fi; sleep 0.5; echo saved");
  EXPECT_EQ(run.wait(), 6);
  EXPECT_THAT(run.output, HasSubstr("[1] saved\n"));
  EXPECT_EQ(lines_of(run.output).back(),
            "error: [launch] rank 0 of 2 trained and saved, and lost a report: see its output");
  Launched failed({.ranks = 2}, "if [ $RANK = 0 ]; then exit 6; fi; sleep 0.3; exit 7");
  EXPECT_EQ(failed.wait(), 7);
}

TEST(Launch, NothingOfTheTreeIsLeft) {
  for (const char* end : {"exit 3", "exit 0"}) {
    Launched run({.ranks = 2},
                 fmt::format("sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & "
                             "sleep 1000' &) ; {}",
                             end));
    (void)run.wait();
    EXPECT_EQ(run.left(), 0) << end;
  }
}

TEST(Launch, WhoIgnoresTheRequestIsKilled) {
  Launched run({.ranks = 2, .grace_ms = 100},
               "if [ $RANK = 1 ]; then trap '' TERM; echo deaf; while :; do sleep 1000; done; fi; "
               "exec sleep 1000");
  run.wait_for("[1] deaf");
  ASSERT_EQ(::kill(run.process, SIGTERM), 0);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
  EXPECT_EQ(run.left(), 0);
}

TEST(Launch, AStoppedRankIsEndedToo) {
  Launched run({.ranks = 2, .grace_ms = 3'600'000},
               "if [ $RANK = 1 ]; then echo stopping; kill -STOP $$; fi; exec sleep 1000");
  run.wait_for("[1] stopping");
  ASSERT_EQ(::kill(run.process, SIGTERM), 0);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
  EXPECT_EQ(run.left(), 0);
}

TEST(Launch, ASecondSignalDoesNotWait) {
  Launched run({.ranks = 2, .grace_ms = 3'600'000},
               "trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done");
  run.wait_for("[0] ready");
  run.wait_for("[1] ready");
  ASSERT_EQ(::kill(run.process, SIGTERM), 0);
  run.wait_for("[0] asked");
  std::this_thread::sleep_for(std::chrono::milliseconds(1'100));  // sooner it is the same request
  ASSERT_EQ(::kill(run.process, SIGTERM), 0);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
  EXPECT_EQ(run.left(), 0);
}

TEST(Launch, ASignalIsPassedOnAndTheRanksEndThemselves) {
  Launched run({.ranks = 2},
               "trap 'echo saving; exit 130' INT; echo ready; while :; do sleep 0.01; done");
  run.wait_for("[0] ready");
  run.wait_for("[1] ready");
  ASSERT_EQ(::kill(run.process, SIGINT), 0);
  EXPECT_EQ(run.wait(), 130);
  EXPECT_THAT(run.output, HasSubstr("[0] saving"));
  EXPECT_THAT(run.output, HasSubstr("[1] saving"));
}

TEST(Launch, TheRanksDieWithTheLauncher) {
  Launched run({.ranks = 2}, "echo ready; exec sleep 1000");
  run.wait_for("[0] ready");
  run.wait_for("[1] ready");
  ASSERT_EQ(::kill(run.process, SIGKILL), 0);
  EXPECT_EQ(run.wait(), -SIGKILL);
  while (run.left() > 0) {  // the test's own limit ends it if they stay
    std::this_thread::yield();
  }
}

TEST(Launch, AProgramThatIsNotThereIsTheUsersError) {
  Launched run({.ranks = 2}, std::vector<std::string>{"/no/such/program"});
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(
      run.output,
      HasSubstr("error: [launch] cannot start /no/such/program: No such file or directory"));
}

/// Cores, not hardware threads, among the CPUs that this process may use.
std::size_t own_cores() {
  cpu_set_t cpus;
  EXPECT_EQ(::sched_getaffinity(0, sizeof(cpus), &cpus), 0);
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &cpus)) {
      std::string siblings;
      std::getline(std::ifstream(fmt::format(
                       "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu)),
                   siblings);
      cores.insert(siblings.empty() ? std::to_string(cpu) : siblings);
    }
  }
  return cores.size();
}

TEST(Launch, BoundRanksShareTheCoresOut) {
  Launched run({.ranks = 2, .bind = true}, "grep Cpus_allowed_list /proc/self/status");
  EXPECT_EQ(run.wait(), 0);
  const auto lines = lines_of(run.output);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].substr(4) != lines[1].substr(4), own_cores() >= 2) << run.output;
}

TEST(Launch, FiftyKilledRanksAndNoHang) {
  double longest = 0;
  for (int repetition = 0; repetition < 50; ++repetition) {
    const int victim = repetition % 3;
    Launched run(
        {.ranks = 3},
        fmt::format("sleep 1000 & echo up $$; if [ $RANK = {} ]; then kill -KILL $$; fi; wait",
                    victim));
    run.wait_for(fmt::format("[{}] up", victim));
    const auto start = Clock::now();
    EXPECT_EQ(run.wait(), 128 + SIGKILL);
    EXPECT_EQ(run.left(), 0);
    longest = std::max(longest, std::chrono::duration<double>(Clock::now() - start).count());
    EXPECT_THAT(run.output, HasSubstr(fmt::format("rank {} of 3 was killed by signal 9", victim)));
  }
  fmt::print("the last process was gone {:.0f} ms after a kill, at most\n", longest * 1e3);
}

// ---- ranks that stop, and ranks that the kernel ends ----

TEST(Launch, AStoppedRankIsSaidAtOnceAndNamedInsteadOfAWitness) {
  Launched run({.ranks = 2}, "if [ $RANK = 1 ]; then kill -STOP $$; exit 4; fi; sleep 0.5; exit 4");
  EXPECT_EQ(run.wait(), 4);
  EXPECT_THAT(run.output, HasSubstr("launch: rank 1 is stopped by signal 19"));
  EXPECT_THAT(run.output,
              HasSubstr("error: [launch] rank 1 of 2 is stopped: rank 0 exited with code 4"));
}

TEST(Launch, TheRankThatAWitnessBlamesIsNamed) {
  Launched run(
      {.ranks = 3},
      fmt::format("if [ $RANK = 1 ]; then exec sleep 1000; fi; exec {}/launch_alone blame 1",
                  test::bin_dir()));
  EXPECT_EQ(run.wait(), 4);
  EXPECT_THAT(run.output, HasSubstr("error: [launch] rank 1 of 3 held the others up: rank "));
}

TEST(Launch, ARankWhoseOwnChildIsStoppedIsNamed) {
  Launched run({.ranks = 2},
               "if [ $RANK = 1 ]; then sh -c 'kill -STOP $$'; exit 4; fi; sleep 0.5; exit 4");
  EXPECT_EQ(run.wait(), 4);
  EXPECT_THAT(run.output,
              HasSubstr("error: [launch] rank 1 of 2 is stopped: rank 0 exited with code 4"));
}

TEST(Launch, ARankThatGoesOnIsNoFailure) {
  Launched run({.ranks = 2},
               "if [ $RANK = 1 ]; then (sleep 0.3; kill -CONT $$) & kill -STOP $$; fi; echo done");
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(run.output, HasSubstr("launch: rank 1 runs again after 0."));
  EXPECT_THAT(run.output, HasSubstr("[1] done"));
}

/// A control group of version 1 or 2 with little memory, which this process is in while it lives.
class LittleMemory {
 public:
  explicit LittleMemory(std::uint64_t bytes) {
    for (const auto& [controller, limit] :
         {std::pair("memory", "memory.limit_in_bytes"), std::pair("", "memory.max")}) {
      const std::vector<std::string> folders = machine::cgroup::folders(controller);
      if (folders.empty()) {
        continue;
      }
      outer_ = folders.front();
      inner_ = fmt::format("{}/tandem-test-{}", outer_, ::getpid());
      std::error_code error;
      if (!std::filesystem::create_directory(inner_, error)) {
        continue;
      }
      made_ = write(inner_ + "/" + limit, bytes) && write(inner_ + "/cgroup.procs", ::getpid());
      if (made_) {
        return;
      }
      std::filesystem::remove(inner_, error);
    }
  }
  ~LittleMemory() {
    if (made_) {
      (void)write(outer_ + "/cgroup.procs", ::getpid());
      ::rmdir(inner_.c_str());
    }
  }
  LittleMemory(const LittleMemory&) = delete;

  [[nodiscard]] bool made() const noexcept { return made_; }

 private:
  static bool write(const std::string& path, auto value) {
    std::ofstream file(path);
    file << value << std::flush;
    return file.good();
  }
  std::string outer_;
  std::string inner_;
  bool made_ = false;
};

TEST(Launch, ARankThatTheKernelKilledForMemoryIsNamedWithTheLimit) {
  const LittleMemory little(std::uint64_t{64} << 20);
  if (!little.made()) {
    GTEST_SKIP() << "no control group of its own can be made here";
  }
  // tail keeps a line without an end; of all in the group the kernel is to choose it, not the test.
  Launched run(
      {.ranks = 2},
      "if [ $RANK = 1 ]; then echo 1000 > /proc/self/oom_score_adj; exec tail /dev/zero; fi; "
      "sleep 60");
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_THAT(run.output, HasSubstr("error: [launch] rank 1 of 2 was killed by signal 9 (Killed) "
                                    "by the kernel for want of memory: it held 0.0"));
  EXPECT_THAT(run.output, HasSubstr("the limit of the control group is 0.06 GiB"));
}

TEST(Launch, AKillOfAnyOtherKindSaysNothingOfMemory) {
  Launched run({.ranks = 2}, "if [ $RANK = 1 ]; then kill -KILL $$; fi; sleep 60");
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_THAT(run.output,
              HasSubstr("error: [launch] rank 1 of 2 was killed by signal 9 (Killed); see"));
}

}  // namespace
}  // namespace tandem
