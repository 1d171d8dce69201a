// DeepSpeed's hostfile, --include and --exclude, and its file of variables.
#include "tools/launch/host_list.hpp"

#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/process/variable.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class HostList : public ::testing::Test {
 protected:
  HostList() { std::filesystem::create_directories(folder_); }
  ~HostList() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string file(const std::string& text, const std::string& name = "hosts") const {
    const std::string path = fmt::format("{}/{}", folder_, name);
    std::ofstream(path) << text;
    return path;
  }
  std::string folder_ = fmt::format("{}/host_list.{}", ::testing::TempDir(), ::getpid());
};

std::string text_of(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const HostSlots& host : hosts) {
    text += fmt::format("{}:{} ", host.name, fmt::join(host.slots, ","));
  }
  return text;
}

TEST_F(HostList, ReadsHostfilesAsDeepSpeedDoes) {
  EXPECT_EQ(
      text_of(read_hostfile(file("# two\nb slots=2\n\n  a.local \t slots=1  # the old one\r\n"))),
      "b:0,1 a.local:0 ");
}

TEST_F(HostList, SaysWhatIsWrongWithAHostfile) {
  const std::pair<std::string, std::string> bad[] = {
      {"a slots=2\nb slots=0\n", ":2: b has \"0\" slots; it takes 1 to 1024"},
      {"a slots=-1\n", "\"-1\" slots"},
      {"a slots=1025\n", "\"1025\" slots"},
      {"a slots=99999999999999\n", "slots; it takes"},
      {"a slots=2x\n", "\"2x\" slots"},
      {"a slots=\n", "\"\" slots"},
      {"a\n", ":1: \"a\" is not as a hostfile's lines are: NAME slots=N"},
      {"a:2\n", "NAME slots=N"},
      {"a slots = 2\n", "NAME slots=N"},
      {"a slots=1\na slots=1\n", ":2: host a is there twice"},
      {"", "names no host"},
      {"# a slots=2\n", "names no host"},
      {"-oProxyCommand=x slots=1\n", "\"-oProxyCommand=x\" is no host's name"},
      {"me@a slots=1\n", "is no host's name"},
      {"a;b slots=1\n", "is no host's name"},
      {"a\x1b[31m slots=1\n", "a\\x1b[31m"}};
  for (const auto& [text, why] : bad) {
    const std::string path = file(text);
    EXPECT_THAT(error_text([&] { (void)read_hostfile(path); }), HasSubstr(why)) << text;
    EXPECT_THAT(error_text([&] { (void)read_hostfile(path); }), HasSubstr("[launch] ")) << text;
  }
  EXPECT_THAT(error_text([&] { (void)read_hostfile(folder_ + "/none"); }),
              HasSubstr("/none: No such file or directory"));
  EXPECT_THAT(error_text([&] { (void)read_hostfile(folder_); }), HasSubstr("Is a directory"));
}

// A FIFO may have no writer, and a device no end.
TEST_F(HostList, OnlyOrdinaryFilesAreRead) {
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, std::string("/dev/zero"), std::string("/dev/null")}) {
    EXPECT_THAT(error_text([&] { (void)read_hostfile(path); }),
                HasSubstr("it is no ordinary file"));
  }
  const std::string large = file(std::string((16 << 20) + 1, '#'));
  EXPECT_THAT(error_text([&] { (void)read_hostfile(large); }), HasSubstr("more than 16 MiB"));
  const std::string name = file(std::string(300, 'a') + " slots=1\n");
  const std::string said = error_text([&] { (void)read_hostfile(name); });
  EXPECT_THAT(said, HasSubstr("is no host's name"));
  EXPECT_LT(said.size(), 400U);
}

// Each of these takes minutes where names are compared with all others.
TEST_F(HostList, AHundredThousandHostsAreReadInLinearTime) {
  std::string lines;
  std::string chosen;
  std::string variables;
  for (int host = 0; host < 100'000; ++host) {
    lines += fmt::format("h{} slots=1\n", host);
    chosen += fmt::format("{}h{}", host == 0 ? "" : "@", host);
    variables += fmt::format("V{}={}\n", host, host);
  }
  const std::vector<HostSlots> hosts = read_hostfile(file(lines));
  EXPECT_EQ(hosts.size(), 100'000U);
  EXPECT_EQ(choose_slots(hosts, chosen, "").size(), 100'000U);
  EXPECT_LT(error_text([&] { (void)choose_slots(hosts, "none", ""); }).size(), 300U);
  (void)file(variables + "V7=last\n", ".deepspeed_env");
  ::setenv("HOME", folder_.c_str(), 1);
  const NamesAndValues all = read_deepspeed_env();
  EXPECT_EQ(all.size(), 100'000U);
  EXPECT_EQ(all.back(), (std::pair<std::string, std::string>("V7", "last")));
}

TEST_F(HostList, ReadsHostsOfACommandLine) {
  EXPECT_EQ(text_of(parse_hosts("a:2,b")), "a:0,1 b:0 ");
  for (const char* bad : {"", ",", "a:", "a:0", "a:x", "a:2,", "a,a", "a:1:2", "a b:1", "-n:1"}) {
    EXPECT_THAT(error_text([&] { (void)parse_hosts(bad); }), HasSubstr("[launch] --hosts: "))
        << bad;
  }
}

// The table is DeepSpeed's own parse_resource_filter() on the same arguments.
TEST_F(HostList, IncludesAndExcludesAsDeepSpeedDoes) {
  const auto hosts = parse_hosts("w0:2,w1:4,w2:1");
  const struct {
    const char* include;
    const char* exclude;
    const char* left;
  } cases[] = {{"", "", "w0:0,1 w1:0,1,2,3 w2:0 "},
               {"w1", "", "w1:0,1,2,3 "},
               {"w1:0,2@w0", "", "w0:0,1 w1:0,2 "},
               {"w1:2,0", "", "w1:0,2 "},
               {"w1:2,2", "", "w1:2 "},
               {"w1:2@w1:0", "", "w1:0,2 "},
               {"w1@w1:2", "", "w1:2 "},
               {"w2:0", "", "w2:0 "},
               {"", "w1", "w0:0,1 w2:0 "},
               {"", "w1:0,2@w0", "w1:1,3 w2:0 "},
               {"", "w2:0", "w0:0,1 w1:0,1,2,3 "},
               {"", "w0:0@w0:1", "w1:0,1,2,3 w2:0 "}};
  for (const auto& [include, exclude, left] : cases) {
    EXPECT_EQ(text_of(choose_slots(hosts, include, exclude)), left) << include << " " << exclude;
  }
}

TEST_F(HostList, SaysWhatCannotBeChosen) {
  const auto hosts = parse_hosts("w0:2,w1:4");
  const struct {
    const char* include;
    const char* exclude;
    const char* why;
  } cases[] = {{"w0", "w1", "--include and --exclude contradict each other"},
               {"w2", "", "--include: there is no host \"w2\"; the hosts are w0, w1"},
               {"", "w2:1", "--exclude: there is no host \"w2\""},
               {"w0:2", "", "--include: w0 has no slot \"2\"; its slots are 0 to 1"},
               {"w0:x", "", "w0 has no slot \"x\""},
               {"w0:", "", "w0 has no slot \"\""},
               {"w0@", "", "there is no host \"\""},
               {"w0,w1", "", "there is no host \"w0,w1\""},
               {"", "w0@w1", "--exclude w0@w1 leaves no slot of any host"},
               {"", "w0:0,1@w1", "leaves no slot"}};
  for (const auto& [include, exclude, why] : cases) {
    EXPECT_THAT(error_text([&] { (void)choose_slots(hosts, include, exclude); }), HasSubstr(why));
  }
}

TEST_F(HostList, ReadsVariablesOfTheHomeAndTheCurrentFolder) {
  const std::string home = folder_ + "/home";
  std::filesystem::create_directories(home);
  std::ofstream(home + "/.deepspeed_env") << "# ours\nNCCL_DEBUG=INFO\nA=1\n\nB = x=y \n";
  std::ofstream(folder_ + "/.deepspeed_env") << "A=2\r\n";
  const auto here = std::filesystem::current_path();
  const test::Variable of_home("HOME", home);
  std::filesystem::current_path(folder_);
  const NamesAndValues expected = {{"NCCL_DEBUG", "INFO"}, {"B", "x=y"}, {"A", "2"}};
  EXPECT_EQ(read_deepspeed_env(), expected);
  for (const char* bad : {"no equals", "=1", "1A=2", "A B=2"}) {
    std::ofstream(folder_ + "/.deepspeed_env") << "A=2\n" << bad << "\n";
    EXPECT_THAT(error_text([] { (void)read_deepspeed_env(); }),
                HasSubstr(fmt::format(".deepspeed_env:2: \"{}\" is no NAME=VALUE", bad)));
  }
  const test::Variable named("DS_ENV_FILE", "other");
  EXPECT_TRUE(read_deepspeed_env().empty());
  std::filesystem::current_path(here);
}

}  // namespace
}  // namespace tandem
