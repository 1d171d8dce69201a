// The root script ./tandem, in a copy of its own (in a folder with a blank in its name): what it
// reports, and its exit codes. Nothing is installed or built here.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/util/error.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

class FrontDoor : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / fmt::format("tandem cli {}", ::getpid());
    fs::remove_all(root_);
    fs::create_directories(root_ / "tools");
    fs::create_directories(root_ / "elsewhere");
    const fs::path source = test::source_dir();
    fs::copy_file(source / "tandem", root_ / "tandem");
    write("os-release", "ID=debian\nVERSION_ID=\"12\"\n");
    std::string setup = text_of(source / "tools/setup.sh");
    constexpr std::string_view kOfTheMachine = "os_release=/etc/os-release";
    setup.replace(setup.find(kOfTheMachine), kOfTheMachine.size(), "os_release=$root/os-release");
    write("tools/setup.sh", setup);
    write("tools/packages.txt", "system debian-12\n# a comment\nbash  # always there on Debian\n");
    write("requirements.txt", "");
    write("requirements-prepare.txt", "no-such-reader==1.0\n");
    write("requirements-test.txt", "no-such-module==1.0\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& name, std::string_view text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }

  /// An executable of the copy's own PATH folder, which comes first.
  void fake(const std::string& name, std::string_view body) const {
    write("bin/" + name, "#!/bin/bash\n" + std::string(body) + "\n");
    fs::permissions(root_ / "bin" / name, fs::perms::owner_all);
  }

  /// Exit code, and stdout and stderr together.
  [[nodiscard]] std::pair<int, std::string> run(const std::string& arguments) const {
    const std::string out = (root_ / "output").string();
    const std::string command = fmt::format(
        "cd '{0}/elsewhere' && PATH='{0}/bin':$PATH '{0}/tandem' {1} >'{2}' 2>&1 </dev/null",
        root_.string(), arguments, out);
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text_of(out)};
  }

  fs::path root_;
};

TEST_F(FrontDoor, HelpAndUnknownNames) {
  EXPECT_EQ(run("help").first, 0);
  EXPECT_THAT(run("").second, HasSubstr("train [flags]"));
  EXPECT_EQ(run("trian").first, 2);
  EXPECT_EQ(run("setup --chekc").first, 2);
  EXPECT_EQ(run("build relaese").first, 2);
  EXPECT_EQ(run("test modles").first, 2);
  EXPECT_THAT(run("test --help").second, HasSubstr("--quick"));
  EXPECT_EQ(run("build --help").first, 0);
  EXPECT_THAT(run("build --help").second, HasSubstr("ThreadSanitizer"));
}

TEST_F(FrontDoor, ABuildWithNothingToDoSaysNothing) {
  fake("dpkg-query", "echo -n installed");
  fake("ninja",
       "echo 'ninja: no work to do.'; [[ ! -f fault ]] || { echo 'x.cpp:1: no'; exit 1; }");
  write(".venv/bin/python", "#!/bin/bash\n");
  fs::permissions(root_ / ".venv/bin/python", fs::perms::owner_all);
  write("build/release/build.ninja", "");
  ASSERT_EQ(run("setup").first, 0);
  const auto [code, text] = run("build");
  EXPECT_EQ(code, 0);
  EXPECT_EQ(text, fmt::format("build: {}/build/release/bin\n", root_.string()));
  write("elsewhere/fault", "");
  const auto [failed, fault] = run("build");
  EXPECT_EQ(failed, 1);
  EXPECT_THAT(fault, HasSubstr("x.cpp:1: no"));
}

TEST_F(FrontDoor, CheckReportsWhatIsMissingAndChangesNothing) {
  fake("dpkg-query", "[[ ${@: -1} == bash ]] && echo -n installed");
  write("tools/packages.txt", "system debian-12\nbash\nno-such-package # why\n");
  const auto [code, text] = run("setup --check");
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text, AllOf(HasSubstr("packages: missing: no-such-package\n"),
                          HasSubstr("requirements.txt: nothing missing"),
                          HasSubstr("installed with the first prepare: no-such-reader==1.0"),
                          HasSubstr("needed for test and bench only: no-such-module==1.0")));
  EXPECT_FALSE(fs::exists(root_ / ".venv"));
  EXPECT_FALSE(fs::exists(root_ / ".cache"));
}

TEST_F(FrontDoor, SetupInstallsOnlyWhatIsMissingAndOnlyOnce) {
  fake("dpkg-query", "[[ ${@: -1} == bash || -f '" + (root_ / "installed").string() +
                         "' ]] && echo -n installed");
  fake("apt-get", "echo \"$@\" >> '" + (root_ / "apt").string() + "'; touch '" +
                      (root_ / "installed").string() + "'");
  fake("sudo", "\"$@\"");
  for (const char* program : {"clang++-19", "cmake", "ctest", "ninja"}) {
    fake(program, "exit 0");
  }
  write("tools/packages.txt", "system debian-12\nbash\nabsent-one\nabsent-two\n");
  write(".venv/bin/python", "#!/bin/bash\n");
  fs::permissions(root_ / ".venv/bin/python", fs::perms::owner_all);
  const auto [code, text] = run("setup");
  EXPECT_EQ(code, 0) << text;
  EXPECT_THAT(text, HasSubstr("installing packages: absent-one absent-two"));
  EXPECT_THAT(text_of(root_ / "apt"),
              AllOf(HasSubstr("update -qq "),
                    HasSubstr("--no-install-recommends absent-one absent-two\n")));
  fs::remove(root_ / "apt");
  const auto [again, silent] = run("setup");
  EXPECT_EQ(again, 0);
  EXPECT_THAT(silent, Not(HasSubstr("installing")));
  EXPECT_FALSE(fs::exists(root_ / "apt")) << "apt-get is not called when nothing is missing";
}

TEST_F(FrontDoor, AFailedInstallationShowsWhy) {
  fake("dpkg-query", "exit 1");
  fake("apt-get", "echo 'E: Unable to locate package bash'; exit 100");
  fake("sudo", "\"$@\"");
  const auto [code, text] = run("setup");
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text,
              AllOf(HasSubstr("E: Unable to locate package bash"), HasSubstr("error: [setup]")));
}

}  // namespace
}  // namespace tandem
