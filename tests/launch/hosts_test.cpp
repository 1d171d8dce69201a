// A launch on several hosts, with a stand-in for ssh that runs each host's part on this one:
// places, lines, the first failure, and that nothing is left on any host.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/launch/launched.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using test::lines_of;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

std::string text_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class Hosts : public ::testing::Test {
 protected:
  Hosts() {
    std::filesystem::create_directories(folder_);
    std::filesystem::create_symlink(test::program_path("fake_ssh"), folder_ + "/ssh");
  }
  ~Hosts() override { std::filesystem::remove_all(folder_); }

  /// `hosts` as of --hosts; ranks are `sh -c script`, and meet on the loopback.
  [[nodiscard]] test::Launched on(const std::string& hosts, const std::string& script,
                                  std::vector<std::string> more = {},
                                  std::vector<std::string> variables = {}) const {
    more.insert(more.end(), {"--hosts", hosts, "--master_addr", "127.0.0.1"});
    return with(more, {"/bin/sh", "-c", script}, std::move(variables));
  }
  [[nodiscard]] test::Launched with(const std::vector<std::string>& flags,
                                    const std::vector<std::string>& command,
                                    std::vector<std::string> variables = {}) const {
    variables.insert(variables.end(), {fmt::format("PATH={}:/usr/local/bin:/usr/bin:/bin", folder_),
                                       "HOME=" + folder_, "SSH_CONNECTION=", "FAKE_SSH_LOG=" + log_,
                                       "FAKE_SSH_CUT=" + cut_});
    return test::Launched(flags, command, variables);
  }
  void cut() const { std::ofstream{cut_}; }

  std::string folder_ =
      fmt::format("{}/hosts.{}", std::filesystem::temp_directory_path().string(), ::getpid());
  std::string log_ = folder_ + "/ssh.log";
  std::string cut_ = folder_ + "/cut";
};

/// The part of a host ends by itself where the launcher cannot: waits for that.
void wait_for_nothing_left(const test::Launched& run) {
  while (run.left() > 0) {  // the test's own limit ends it if they stay
    std::this_thread::sleep_for(10ms);
  }
}

TEST_F(Hosts, EveryRankKnowsItsPlace) {
  auto run = on("a:2,b:1",
                "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, host $GROUP_RANK of "
                "$GROUP_WORLD_SIZE, $MASTER_ADDR $MASTER_PORT, $PWD, $TANDEM_RUN_SECRET");
  EXPECT_EQ(run.wait(), 0) << run.output;
  const std::string here = std::filesystem::current_path().string();
  const std::regex form(
      R"(\[(.):(\d)\] (\d of 3, \d of \d, host \d of 2), 127.0.0.1 (\d+), (\S+), )"
      R"(([0-9a-f]{64}))");
  std::set<std::string> ports;
  std::set<std::string> secrets;
  std::set<std::string> places;
  for (const std::string& line : lines_of(run.output)) {
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, form)) << line;
    places.insert(match.str(1) + match.str(2) + ": " + match.str(3));
    ports.insert(match[4]);
    EXPECT_EQ(match[5], here);
    secrets.insert(match[6]);
  }
  EXPECT_THAT(places, ::testing::ElementsAre("a0: 0 of 3, 0 of 2, host 0 of 2",
                                             "a1: 1 of 3, 1 of 2, host 0 of 2",
                                             "b2: 2 of 3, 0 of 1, host 1 of 2"));
  EXPECT_EQ(ports.size(), 1U);
  EXPECT_EQ(secrets.size(), 1U);
  EXPECT_THAT(text_of(log_), Not(HasSubstr(*secrets.begin())));
  EXPECT_THAT(text_of(log_), HasSubstr("BatchMode=yes\n"));
}

TEST_F(Hosts, NoCommandLineShowsTheSecret) {
  auto run = on("a:1",
                "p=$$; while [ $p -gt 1 ]; do case \"$(tr '\\0' ' ' < /proc/$p/cmdline)\" in "
                "*$TANDEM_RUN_SECRET*) echo shown;; esac; "
                "p=$(sed -n 's/^PPid:\\t//p' /proc/$p/status); done; echo looked");
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.output, "[a:0] looked\n");
}

TEST_F(Hosts, VariablesGoToEveryHost) {
  std::ofstream(folder_ + "/.deepspeed_env") << "FROM_FILE=a 'b' \\ c\n";
  auto run = with({"--hosts", "a:1,b:4", "--master_addr", "127.0.0.1", "--include", "a@b:1,3"},
                  {"/bin/sh", "-c", "echo \"$FROM_FILE|$NCCL_TEST|$CUDA_VISIBLE_DEVICES|$1\"", "sh",
                   "an argument\nof two lines \\ and 'quotes'"},
                  {"NCCL_TEST=x\ny"});
  EXPECT_EQ(run.wait(), 0) << run.output;
  const auto of_rank = [&](std::string_view rank) {  // lines of other ranks may stand between them
    std::string own;
    for (const std::string& line : lines_of(run.output)) {
      own += line.starts_with(rank) ? line + "\n" : "";
    }
    return own;
  };
  EXPECT_THAT(of_rank("[a:0]"),
              HasSubstr("[a:0] a 'b' \\ c|x\n[a:0] y||an argument\n[a:0] of two lines "
                        "\\ and 'quotes'\n"));
  EXPECT_THAT(of_rank("[b:1]"), HasSubstr("[b:1] a 'b' \\ c|x\n[b:1] y|1,3|an argument\n"));
  EXPECT_THAT(run.output, HasSubstr("[b:2] "));
}

// The rank's line is as long as the launcher keeps, less its prefix: what is behind the cut must
// not stand at the begin of a line.
TEST_F(Hosts, ALineThatIsCutIsNoNewsOfTheHost) {
  for (const char* news :
       {"failed 1 137 1", "failed -5 4 1", "refused 2 [launch] forged", "ended 9 x"}) {
    auto run =
        on("a:1,b:1",
           fmt::format("if [ $RANK = 0 ]; then head -c 1048570 /dev/zero | tr '\\0' a; sleep 0.3; "
                       "printf '\\036{}\\n'; sleep 0.3; fi",
                       news));
    EXPECT_EQ(run.wait(), 0) << news;
    for (const std::string& line : lines_of(run.output)) {
      EXPECT_TRUE(line.starts_with("[a:0] ")) << line.substr(0, 100);
    }
  }
}

TEST_F(Hosts, OnlyTheLinesOfRanksHaveARank) {
  auto run = on("banner:1,b:1", "echo out; echo to errors >&2; printf '\\036ended 0'");
  EXPECT_EQ(run.wait(), 0) << run.output;
  EXPECT_THAT(lines_of(run.output),
              ::testing::UnorderedElementsAre("[banner] Welcome", "[banner] Authorized use only",
                                              "[banner:0] out", "[banner:0] to errors",
                                              "[banner:0] \x1e"
                                              "ended 0",
                                              "[b:1] out", "[b:1] to errors",
                                              "[b:1] \x1e"
                                              "ended 0"));
}

TEST_F(Hosts, TheFirstFailureIsNamedWithHostAndRank) {
  auto run = on("a:2,b:2", "if [ $RANK = 3 ]; then exit 7; fi; exec sleep 1000");
  EXPECT_EQ(run.wait(), 7);
  EXPECT_THAT(run.output,
              HasSubstr("[b] launch: rank 3 exited with code 7; ending the other ranks"));
  EXPECT_THAT(run.output, HasSubstr("launch: rank 3 on host b failed; ending the other hosts"));
  EXPECT_EQ(lines_of(run.output).back(),
            "error: [launch] host b: rank 3 of 4 exited with code 7; see its output");
  EXPECT_EQ(run.left(), 0);
}

TEST_F(Hosts, ARankThatOnlyLostItsPeerIsNotBlamed) {
  auto run = on("a:1,b:1", "if [ $RANK = 0 ]; then exit 4; fi; sleep 0.2; kill -KILL $$");
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_THAT(lines_of(run.output).back(),
              HasSubstr("host b: rank 1 of 2 was killed by signal 9 (Killed)"));
  auto stopped = on("a:1,b:1", "if [ $RANK = 1 ]; then kill -STOP $$; fi; sleep 0.5; exit 4");
  EXPECT_EQ(stopped.wait(), 4);
  EXPECT_THAT(stopped.output, HasSubstr("[b] launch: rank 1 is stopped by signal"));
  EXPECT_THAT(lines_of(stopped.output).back(),
              HasSubstr("rank 1 of 2 (host b) is stopped: host a: rank 0 of 2 exited with code 4"));
  EXPECT_EQ(stopped.left(), 0);
}

// Rank 3 hangs; the others wrote down whom they blame.
TEST_F(Hosts, TheRankThatWitnessesBlameIsNamedWithItsHost) {
  const std::string blame = test::program_path("launch_alone blame ");
  auto run =
      on("a:2,b:2", fmt::format("if [ $RANK != 3 ]; then exec {}3; fi; exec sleep 1000", blame));
  EXPECT_EQ(run.wait(), 4);
  EXPECT_THAT(lines_of(run.output).back(),
              HasSubstr("error: [launch] rank 3 of 4 (host b) held the others up: host "));
  EXPECT_EQ(run.left(), 0);
  // The more, and of as many the one that blames no other rank.
  auto votes =
      on("a:2,b:2",
         fmt::format("case $RANK in 0) sleep 0.2; exec {0}1;; 3) exec sleep 1000;; esac; exec {0}3",
                     blame));
  EXPECT_EQ(votes.wait(), 4);
  EXPECT_THAT(lines_of(votes.output).back(), HasSubstr("rank 3 of 4 (host b) held the others up"));
  auto link = on("a:1,b:1", fmt::format("exec {}$((1 - RANK))", blame));
  EXPECT_EQ(link.wait(), 4);
  EXPECT_THAT(lines_of(link.output).back(),
              HasSubstr("blame each other: see the link between their hosts: host "));
  auto nonsense = on("a:1,b:1", fmt::format("exec {}77", blame));
  EXPECT_EQ(nonsense.wait(), 4);
  EXPECT_THAT(lines_of(nonsense.output).back(), HasSubstr("error: [launch] host "));
}

TEST_F(Hosts, ASignalGoesToEveryRankAndASecondOneEndsThemAtOnce) {
  auto run =
      on("a:2,b:1", "trap 'echo saving; exit 130' INT; echo ready; while :; do sleep 0.01; done");
  for (const char* rank : {"[a:0] ready", "[a:1] ready", "[b:2] ready"}) {
    run.wait_for(rank);
  }
  ASSERT_EQ(::kill(run.process, SIGINT), 0);
  EXPECT_EQ(run.wait(), 130);
  for (const char* rank : {"[a:0] saving", "[a:1] saving", "[b:2] saving"}) {
    EXPECT_THAT(run.output, HasSubstr(rank));
  }
  auto deaf = on("a:1,b:1", "trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done");
  deaf.wait_for("[a:0] ready");
  deaf.wait_for("[b:1] ready");
  ASSERT_EQ(::kill(deaf.process, SIGTERM), 0);
  deaf.wait_for("[a:0] asked");
  deaf.wait_for("[b:1] asked");
  std::this_thread::sleep_for(1'100ms);  // sooner it is the same request
  ASSERT_EQ(::kill(deaf.process, SIGTERM), 0);
  EXPECT_EQ(deaf.wait(), 128 + SIGTERM);
  EXPECT_EQ(deaf.left(), 0);
}

TEST_F(Hosts, EveryTreeEndsWithTheLauncher) {
  const std::string asked = folder_ + "/asked";
  auto run =
      on("a:1,b:1", fmt::format("(setsid sleep 1000 &); trap 'echo >> \"{}\"; exit' TERM; echo "
                                "ready; while :; do sleep 0.01; done",
                                asked));
  run.wait_for("[a:0] ready");
  run.wait_for("[b:1] ready");
  ASSERT_EQ(::kill(run.process, SIGKILL), 0);
  EXPECT_EQ(run.wait(), -SIGKILL);
  wait_for_nothing_left(run);
  EXPECT_EQ(text_of(asked), "\n\n");  // they could save
}

TEST_F(Hosts, AConnectionThatEndsIsALostHostWhoseRanksEndThemselves) {
  const std::string asked = folder_ + "/asked";
  auto run =
      on("a:1,cut:1",
         fmt::format("trap 'if [ $RANK = 0 ]; then sleep 1; fi; echo $RANK >> \"{}\"; exit 4' "
                     "TERM; echo ready; while :; do sleep 0.01; done",
                     asked));
  run.wait_for("[a:0] ready");
  run.wait_for("[cut:1] ready");
  cut();
  EXPECT_EQ(run.wait(), 4);
  EXPECT_EQ(
      lines_of(run.output).back(),
      "error: [launch] the connection to host cut ended: ssh was killed by signal 9 (Killed); "
      "see whether it runs");
  EXPECT_EQ(text_of(asked), "1\n0\n");
  EXPECT_EQ(run.left(), 0);
}

// Nothing ends, nothing comes: the part of the host finds that out by itself, even while it waits
// for the reader of its output.
TEST_F(Hosts, AConnectionThatHangsEndsTheHostsRanks) {
  const std::string gone = folder_ + "/gone";
  auto run =
      on("a:1,dumb:1",
         fmt::format("if [ $RANK = 1 ]; then trap 'echo > \"{0}\"; exit' TERM; echo ready; while "
                     ":; do if [ -e '{1}' ]; then echo 0123456789; else sleep 0.01; fi; done; "
                     "fi; echo ready; exec sleep 1000",
                     gone, cut_),
         {}, {"TANDEM_HEARTBEAT_S=0.2"});
  run.wait_for("[a:0] ready");
  run.wait_for("[dumb:1] ready");
  cut();
  while (!std::filesystem::exists(gone)) {
    std::this_thread::sleep_for(10ms);
  }
  ASSERT_EQ(::kill(run.process, SIGINT), 0);
  ASSERT_EQ(::kill(run.process, SIGKILL), 0);
  (void)run.wait();
  wait_for_nothing_left(run);
}

TEST_F(Hosts, NoRankStartsBeforeEveryHostIsThere) {
  const struct {
    const char* hosts;
    std::string line;
    int code;
  } cases[] = {
      {"a:1,nowhere:1",
       "error: [launch] there is no connection to host nowhere: ssh exited with code 255 (its last "
       "line: ssh: Could not resolve hostname nowhere: Name or service not known); try `ssh "
       "nowhere`",
       4},
      {"a:1,hangs:1", "error: [launch] host hangs did not come within 2 s; try `ssh hangs`", 4},
      {"a:1,absent:1",
       "error: [launch] host absent: cannot start " + test::program_path("launch_alone"), 2}};
  for (const auto& [hosts, line, code] : cases) {
    auto run = on(hosts, "echo started", {}, {"TANDEM_RENDEZVOUS_TIMEOUT_S=2"});
    EXPECT_EQ(run.wait(), code) << run.output;
    EXPECT_THAT(lines_of(run.output).back(), ::testing::StartsWith(line));
    EXPECT_THAT(run.output, Not(HasSubstr("started")));
    EXPECT_EQ(run.left(), 0);
  }
}

TEST_F(Hosts, AProgramAFolderAnAddressOrAPortThatIsNotThereIsTheUsersError) {
  auto program = with({"--hosts", "a:1,b:1", "--master_addr", "127.0.0.1"}, {"/no/such/program"});
  EXPECT_EQ(program.wait(), 2);
  EXPECT_THAT(
      program.output,
      ::testing::ContainsRegex("error: \\[launch\\] host [ab]: cannot start /no/such/program: No "
                               "such file or directory; the same must be there on every host\n$"));
  auto address = with({"--hosts", "a:1,b:1", "--master_addr", "192.0.2.1"}, {"true"});
  EXPECT_EQ(address.wait(), 2);
  EXPECT_THAT(address.output,
              HasSubstr("error: [launch] host a: no port that is free of 192.0.2.1: Cannot"));
  auto name = with({"--hosts", "a:1,b:1", "--master_addr", "a.b.c"}, {"true"});
  EXPECT_EQ(name.wait(), 2);
  EXPECT_THAT(name.output, HasSubstr("error: [launch] host a: a.b.c is no IP address"));
  auto no_way = with({"--hosts", "a:1,no-such-host.invalid:1"}, {"true"});
  EXPECT_EQ(no_way.wait(), 2);
  EXPECT_THAT(no_way.output, HasSubstr("host a: it knows no way to host no-such-host.invalid"));
  auto interface = with({"--hosts", "a:1,b:1"}, {"true"}, {"TANDEM_INTERFACE=none0"});
  EXPECT_EQ(interface.wait(), 2);
  EXPECT_THAT(interface.output,
              HasSubstr("host a: TANDEM_INTERFACE is none0, and no such interface"));
  auto chosen = with({"--hosts", "a:1,b:1"}, {"/bin/sh", "-c", "echo at $MASTER_ADDR"},
                     {"TANDEM_INTERFACE=lo"});
  EXPECT_EQ(chosen.wait(), 0) << chosen.output;
  EXPECT_THAT(chosen.output, HasSubstr("[b:1] at 127.0.0.1\n"));
}

TEST_F(Hosts, FlagsThatContradictEachOtherAreRefused) {
  const std::string none = folder_ + "/none";
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--hostfile", none}, "cannot read the hostfile " + none + ": No such file or directory"},
      {{"--hostfile", none, "--hosts", "a:1"}, "--hostfile and --hosts contradict each other"},
      {{"--hosts", "a:1", "-n", "2"}, "-n is of this host alone"},
      {{"-n", "2", "--include", "a"}, "--include and --exclude choose among hosts"},
      {{"--hosts", "a:1,a:2"}, "--hosts: host a is there twice"},
      {{"--hosts", "a:1", "--exclude", "a"}, "leaves no slot of any host"},
      {{"--hosts", "a:1", "--include", "b"}, "there is no host \"b\"; the hosts are a"},
      {{"--hosts", "a:1", "--max_restarts", "-1"}, "--max_restarts is -1; it takes 0 to 1000"},
      {{"--hosts", "a:1", "--master_port", "65536"}, "--master_port is 65536; it takes 0 to 65535"},
      {{}, "launch has no ranks; give -n N, --hostfile F or --hosts a:2,b:2"},
      {{"-n", "0"}, "launch has no ranks"}};
  for (const auto& [flags, why] : cases) {
    auto run = with(flags, {"true"});
    EXPECT_EQ(run.wait(), 2) << why;
    EXPECT_EQ(lines_of(run.output).size(), 1U) << run.output;
    EXPECT_THAT(run.output, HasSubstr(why));
    EXPECT_THAT(run.output, ::testing::StartsWith("error: ["));
  }
}

TEST_F(Hosts, LogsLieOnEachHostByRank) {
  const std::string logs = folder_ + "/logs";
  auto run = on("a:1,b:1", "echo of $RANK", {"--log_dir", logs});
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(text_of(logs + "/rank_0.log"), "of 0\n");
  EXPECT_EQ(text_of(logs + "/rank_1.log"), "of 1\n");
}

TEST_F(Hosts, AFailureIsTriedAgainAsOftenAsAsked) {
  const std::string tries = folder_ + "/tries";
  const std::string script = fmt::format(
      "again() {{ test $TORCHELASTIC_RESTART_COUNT -lt 2; }}; if [ $RANK = 0 ]; then if again; "
      "then "
      "exec sleep 1000; fi; exit; fi; echo $TORCHELASTIC_RESTART_COUNT of "
      "$TORCHELASTIC_MAX_RESTARTS >> '{}'; if again; then exit 9; fi; echo through",
      tries);
  auto run = on("a:1,b:1", script, {"--max_restarts", "2"});
  EXPECT_EQ(run.wait(), 0) << run.output;
  EXPECT_EQ(text_of(tries), "0 of 2\n1 of 2\n2 of 2\n");
  EXPECT_THAT(run.output, HasSubstr("\nlaunch: host b: rank 1 of 2 exited with code 9; see its "
                                    "output; restart 2 of 2 with 2 ranks on host a and host b\n"));
  EXPECT_THAT(run.output, HasSubstr("[b:1] through"));
  auto not_enough = on("a:1,b:1", script, {"--max_restarts", "1"});
  EXPECT_EQ(not_enough.wait(), 9);
  EXPECT_EQ(
      lines_of(not_enough.output).back(),
      "error: [launch] host b: rank 1 of 2 exited with code 9; see its output; restarts: 1 of "
      "1 used");
}

TEST_F(Hosts, ALostReportEndsNoOtherHost) {
  auto run = on("a:1,b:1", "if [ $RANK = 0 ]; then exit 6; fi; sleep 0.5; echo saved",
                {"--max_restarts", "2"});
  EXPECT_EQ(run.wait(), 6);
  EXPECT_THAT(run.output, HasSubstr("[b:1] saved\n"));
  EXPECT_EQ(
      lines_of(run.output).back(),
      "error: [launch] host a: rank 0 of 2 trained and saved, and lost a report: see its output");
}

TEST_F(Hosts, ALostHostIsLeftOutOfARestart) {
  const std::string script =
      "echo up; if [ $WORLD_SIZE = 3 ]; then exec sleep 1000; fi; echo $RANK of $WORLD_SIZE, "
      "restart $TORCHELASTIC_RESTART_COUNT, first $TANDEM_FIRST_WORLD_SIZE";
  for (const char* hosts : {"cut:1,b:2", "b:2,cut:1"}) {
    auto run = on(hosts, script, {"--max_restarts", "1"});
    for (const int rank : {0, 1, 2}) {
      run.wait_for(fmt::format(":{}] up\n", rank));
    }
    cut();
    EXPECT_EQ(run.wait(), 0) << run.output;
    EXPECT_THAT(run.output,
                HasSubstr("\nlaunch: the connection to host cut ended: ssh was killed by signal 9 "
                          "(Killed); see whether it runs; restart 1 of 1 with 2 ranks on host b, "
                          "without cut\n"));
    EXPECT_THAT(run.output, HasSubstr("[b:0] 0 of 2, restart 1, first 3\n"));
    EXPECT_THAT(run.output, HasSubstr("[b:1] 1 of 2, restart 1, first 3\n"));
    wait_for_nothing_left(run);  // also on the lost host
    std::filesystem::remove(cut_);
  }
}

TEST_F(Hosts, HostsThatAreNotThereAreLeftOutBeforeAnyRankBegins) {
  auto run = on("nowhere:2,hangs:1,b:1", "echo $WORLD_SIZE, restart $TORCHELASTIC_RESTART_COUNT",
                {"--max_restarts", "1"}, {"TANDEM_RENDEZVOUS_TIMEOUT_S=2"});
  EXPECT_EQ(run.wait(), 0) << run.output;
  EXPECT_THAT(run.output,
              HasSubstr("try `ssh nowhere`; starting anew with 2 ranks on host hangs and host b, "
                        "without nowhere\n"));
  EXPECT_THAT(run.output, HasSubstr("try `ssh hangs`; starting anew with 1 rank on host b, "
                                    "without hangs\n[b:0] 1, restart 0\n"));
  auto none = on("nowhere:1", "echo started", {"--max_restarts", "5"});
  EXPECT_EQ(none.wait(), 4);
  EXPECT_THAT(lines_of(none.output).back(), ::testing::EndsWith("`ssh nowhere`; no host is left"));
}

/// Two network namespaces with a cable between them; an address of its own in each.
class Cable {
 public:
  Cable() {
    made_ =
        run("ip netns add {0}a && ip netns add {0}b && "
            "ip link add {0}a netns {0}a type veth peer name {0}b netns {0}b && "
            "ip -n {0}a addr add 10.213.7.1/24 dev {0}a && "
            "ip -n {0}b addr add 10.213.7.2/24 dev {0}b && "
            "ip -n {0}a link set {0}a up && ip -n {0}b link set {0}b up");
  }
  ~Cable() { (void)run("ip netns del {0}a; ip netns del {0}b"); }
  Cable(const Cable&) = delete;
  [[nodiscard]] bool made() const noexcept { return made_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  [[nodiscard]] bool run(const std::string& commands) const {
    const std::string line = "PATH=$PATH:/usr/sbin; exec 2>/dev/null; " + commands;
    return std::system(fmt::format(fmt::runtime(line), name_).c_str()) == 0;
  }
  std::string name_ = fmt::format("td{}", ::getpid() % 100000);
  bool made_ = false;
};

TEST_F(Hosts, RanksOfTwoNetworksMeetAtTheAddressThatReachesRankZero) {
  const Cable cable;
  if (!cable.made()) {
    GTEST_SKIP() << "no network namespaces can be made here";
  }
  // Rank 1 gets through to where rank 0 listens, by bash's own sockets.
  const std::string python =
      "import os,socket as s\n"
      "at=(os.environ['MASTER_ADDR'],int(os.environ['MASTER_PORT']))\n"
      "if os.environ['RANK']=='0':\n"
      "  l=s.socket(); l.setsockopt(s.SOL_SOCKET,s.SO_REUSEADDR,1)\n"
      "  l.bind(at); l.listen(); print(l.accept()[1][0])\n"
      "else:\n"
      "  while s.socket().connect_ex(at): pass\n";
  for (const char* interface : {"", "lan"}) {
    std::vector<std::string> variables;
    if (*interface != 0) {
      variables.push_back(fmt::format("TANDEM_INTERFACE={}a", cable.name()));
    }
    auto run = with({"--hosts", fmt::format("apart-{0}a:1,apart-{0}b:1", cable.name())},
                    {"python3", "-c", python}, variables);
    EXPECT_EQ(run.wait(), 0) << run.output;
    EXPECT_EQ(run.output, fmt::format("[apart-{}a:0] 10.213.7.2\n", cable.name()));
  }
}

}  // namespace
}  // namespace tandem
