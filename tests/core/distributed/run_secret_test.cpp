// Where the ranks of a run have their secret from, and whom they leave it to.
#include "engine/distributed/run_secret.hpp"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/support/process/variable.hpp"
#include "tests/support/strangers/other_user.hpp"
#include "tests/support/strangers/rendezvous_job.hpp"

namespace tandem {
namespace {

using test::all_of;
using test::Job;
using test::OtherUser;
using test::run;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

const std::string kSecret(64, 's');

/// A folder that is gone with the test, in XDG_RUNTIME_DIR. Where a test takes that away, notes go
/// to /tmp/tandem-UID, which is gone with the test as well if it was not there before.
class RunSecret : public ::testing::Test {
 protected:
  RunSecret() {
    std::filesystem::create_directories(folder_);
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  }
  ~RunSecret() override {
    std::filesystem::remove_all(folder_);
    if (!had_shared_) {
      ::rmdir(shared_.c_str());  // does nothing while a file lies in it
    }
  }
  [[nodiscard]] std::vector<std::filesystem::path> files() const {
    return {std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()};
  }
  [[nodiscard]] std::string write(const std::string& text, mode_t mode) const {
    const std::string path = folder_ / "secret";
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("tandem-secret-test.{}", ::getpid());
  test::Variable runtime_{"XDG_RUNTIME_DIR", folder_.string()};

 private:
  const std::filesystem::path shared_ = fmt::format("/tmp/tandem-{}", ::geteuid());
  const bool had_shared_ = std::filesystem::exists(shared_);
};

TEST_F(RunSecret, LiesInAFileOfThisUserAloneWhileRanksMeet) {
  const Job job;
  std::string mode;
  std::thread late([&] {
    while (files().empty()) {
      std::this_thread::sleep_for(1ms);
    }
    std::this_thread::sleep_for(20ms);
    ASSERT_EQ(files().size(), 1U);
    struct stat status{};
    EXPECT_EQ(::stat(files()[0].c_str(), &status), 0);
    mode = fmt::format("{:o}", status.st_mode & 07777);
    EXPECT_EQ(run({job.of(1)}, job.timeout), std::vector<std::string>{""});
  });
  EXPECT_EQ(run({job.of(0)}, job.timeout, [&](ProcessGroup&) { EXPECT_TRUE(files().empty()); }),
            std::vector<std::string>{""});
  late.join();
  EXPECT_EQ(mode, "600");
}

TEST_F(RunSecret, OfAnEarlierRunDoesNotStopThisOne) {
  const Job job;
  MeetingNote stale(job.of(0));
  stale.leave({.port = 1, .secret = kSecret});
  std::thread late([&] {
    std::this_thread::sleep_for(100ms);
    EXPECT_EQ(run({job.of(0)}, job.timeout), std::vector<std::string>{""});
  });
  EXPECT_EQ(run({job.of(1)}, job.timeout), std::vector<std::string>{""});
  late.join();
}

// Every user can make /tmp/tandem-UID before this user does, open it to others, or make it a link.
TEST_F(RunSecret, LiesInNoFolderThatOthersCanEnter) {
  const Job job;
  for (const mode_t mode : {mode_t{0755}, mode_t{0770}, mode_t{0701}}) {
    ASSERT_EQ(::chmod(folder_.c_str(), mode), 0);
    MeetingNote note(job.of(0));
    note.leave({.port = 1, .secret = kSecret});
    EXPECT_TRUE(files().empty()) << fmt::format("{:o}", mode);
  }
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
  const std::string link = folder_.string() + ".link";
  ASSERT_EQ(::symlink(folder_.c_str(), link.c_str()), 0);
  runtime_.set(link);
  MeetingNote note(job.of(0));
  note.leave({.port = 1, .secret = kSecret});
  EXPECT_TRUE(files().empty());
  ::unlink(link.c_str());
  if (OtherUser::can_be()) {
    runtime_.set(folder_.string());
    ASSERT_EQ(::chown(folder_.c_str(), test::kOtherUser, test::kOtherUser), 0);
    note.leave({.port = 1, .secret = kSecret});
    EXPECT_TRUE(files().empty());
  }
}

// Another user has taken every name that is known beforehand.
TEST_F(RunSecret, HasAFolderThatOthersCannotTake) {
  if (!OtherUser::can_be()) {
    GTEST_SKIP() << "only root can be another user";
  }
  const pid_t process = ::fork();
  if (process == 0) {  // in a /tmp of its own
    const std::string taken = fmt::format("/tmp/tandem-{}", ::geteuid());
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", "/tmp", "tmpfs", 0, "mode=1777") != 0) {
      ::_exit(77);
    }
    (void)::mkdir(taken.c_str(), 0755);
    (void)::chown(taken.c_str(), test::kOtherUser, test::kOtherUser);
    ::unsetenv("XDG_RUNTIME_DIR");
    const auto entries = [] {
      return std::distance(std::filesystem::directory_iterator("/tmp"), {});
    };
    int faults = 0;
    // Its home has no cache yet; then the caches of others in there, and no home at all.
    for (const char* home : {"/tmp/home", "/tmp/home", "/proc/none"}) {
      ::setenv("HOME", home, 1);
      const auto before = entries();
      MeetingNote note(Job().of(0));
      note.leave({.port = 1, .secret = kSecret});
      const auto found = note.read();
      faults += found && found->secret == kSecret ? 0 : 1;
      note.remove();
      faults += home[1] == 'p' && entries() != before ? 1 : 0;
      (void)::chmod("/tmp/home/.cache/tandem", 0755);
    }
    struct stat status{};
    faults +=
        ::stat("/tmp/home/.cache/tandem/runs", &status) == 0 && (status.st_mode & 077) == 0 ? 0 : 1;
    ::_exit(faults);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(process, &status, 0), process);
  if (WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "no mounts can be made here";
  }
  EXPECT_EQ(status, 0);
}

TEST_F(RunSecret, ComesFromAFile) {
  const Job job;
  std::vector<Environment> environments = all_of(job);
  environments[0].secret_file = write(kSecret + "\n", 0600);
  environments[1].secret = kSecret;
  EXPECT_EQ(run(environments, job.timeout), (std::vector<std::string>{"", ""}));
  EXPECT_EQ(files().size(), 1U);  // the secret; no note beside it
}

TEST_F(RunSecret, OfAnotherUserOrOpenToOthersOrTooShortIsRefused) {
  Environment environment = Job().of(0);
  const auto error = [&] { return run({environment}, 1s).front(); };
  for (const mode_t mode : {mode_t{0640}, mode_t{0604}}) {
    environment.secret_file = write(kSecret, mode);
    EXPECT_THAT(error(), HasSubstr("2 [rendezvous] " + environment.secret_file));
    EXPECT_THAT(error(), HasSubstr(fmt::format("mode {:04o}; make it a file of your own", mode)));
  }
  environment.secret_file = write("short", 0600);
  EXPECT_THAT(error(), HasSubstr("has 5 characters; it takes 32 to 1024"));
  environment.secret_file = folder_ / "none";
  EXPECT_THAT(error(), HasSubstr("cannot read"));
  environment.secret_file = folder_;
  EXPECT_THAT(error(), HasSubstr("make it a file of your own"));
  environment.secret_file.clear();
  environment.secret = "guess";
  EXPECT_THAT(error(), HasSubstr("2 [rendezvous] TANDEM_RUN_SECRET has 5 characters"));
  if (OtherUser::can_be()) {
    environment.secret.clear();
    environment.secret_file = write(kSecret, 0600);
    ASSERT_EQ(::chown(environment.secret_file.c_str(), test::kOtherUser, 0), 0);
    EXPECT_THAT(error(), HasSubstr("is of user 65534"));
  }
}

}  // namespace
}  // namespace tandem
