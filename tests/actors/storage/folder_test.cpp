// Folders that appear at once, and who holds one.
#include "actors/storage/folder.hpp"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/system/reach.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Folders : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(testing::TempDir()) / fmt::format("{}_{}", info->name(), ::getpid());
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  static void put(const fs::path& path, std::string_view text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  static std::string get(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(dir_)) {
      found.push_back(entry.path().filename());
    }
    std::ranges::sort(found);
    return found;
  }
  using Names = std::vector<std::string>;

  fs::path dir_;
};

TEST_F(Folders, ReplaceAnOlderOneAsAWhole) {
  put(dir_ / "model/config.json", "old");
  put(dir_ / "model/weights", "old");
  AtomicFolder made(dir_ / "model", "test");
  write_file(made.temporary() / "config.json", "test", "new");
  EXPECT_EQ(get(dir_ / "model/config.json"), "old") << "until the commit";
  made.commit();
  EXPECT_EQ(names(), Names{"model"});
  EXPECT_EQ(get(dir_ / "model/config.json"), "new");
  EXPECT_FALSE(fs::exists(dir_ / "model/weights"));
}

TEST_F(Folders, WithoutACommitNothingHappened) {
  put(dir_ / "model/config.json", "old");
  {
    AtomicFolder made(dir_ / "model", "test");
    put(made.temporary() / "config.json", "new");
  }
  EXPECT_EQ(names(), Names{"model"});
  EXPECT_EQ(get(dir_ / "model/config.json"), "old");
}

TEST_F(Folders, KeepWhatTheNewOneDoesNotReplace) {
  put(dir_ / "model/README.md", "of the user");
  put(dir_ / "model/below/more", "of the user");
  put(dir_ / "model/tokenizer.json", "old");
  AtomicFolder made(dir_ / "model", "test");
  put(made.temporary() / "config.json", "new");
  made.keep_others([](std::string_view name) { return name == "tokenizer.json"; });
  made.commit();
  EXPECT_EQ(get(dir_ / "model/README.md"), "of the user");
  EXPECT_EQ(get(dir_ / "model/below/more"), "of the user");
  EXPECT_EQ(get(dir_ / "model/config.json"), "new");
  EXPECT_FALSE(fs::exists(dir_ / "model/tokenizer.json"));
}

TEST_F(Folders, FollowALinkInTheirPlace) {
  put(dir_ / "elsewhere/model/config.json", "old");
  fs::create_directory_symlink(dir_ / "elsewhere/model", dir_ / "model");
  AtomicFolder made(dir_ / "model", "test");
  put(made.temporary() / "config.json", "new");
  made.commit();
  EXPECT_TRUE(fs::is_symlink(dir_ / "model"));
  EXPECT_EQ(get(dir_ / "elsewhere/model/config.json"), "new");
}

TEST_F(Folders, WithinAnOwnFolderNoLinkIsFollowed) {
  const OwnFolder own(dir_);
  put(dir_ / "elsewhere/config.json", "of the user");
  AtomicFolder made(dir_ / "model", "test");
  write_file(made.temporary() / "config.json", "test", "new");
  fs::create_directory_symlink(dir_ / "elsewhere", dir_ / "model");
  EXPECT_THROW(made.commit(), Error);
  EXPECT_THROW(write_file(dir_ / "model/config.json", "test", "new"), Error);
  EXPECT_THROW((void)read_file(dir_ / "model/config.json", "test", 100), Error);
  EXPECT_EQ(get(dir_ / "elsewhere/config.json"), "of the user");
  EXPECT_EQ(AtomicFolder(dir_ / "model", "test").temporary().parent_path(), dir_);
}

TEST_F(Folders, OfKilledProcessesAreRemovedAndOthersAreNot) {
  put(dir_ / "model.tmp-0123456789abcdef/config.json", "left behind");
  put(dir_ / "elsewhere/config.json", "of the user");
  fs::create_directory_symlink(dir_ / "elsewhere", dir_ / "model.tmp-0123456789abcdef/within");
  fs::create_directory_symlink(dir_ / "elsewhere", dir_ / "model.tmp-fedcba9876543210");
  Names left = {"elsewhere",
                "model.old",
                "model.tmp-2026-11-28",
                "model.tmp-fedcba9876543210",
                "model.tmp-mine",
                "model2.tmp-0123456789abcdef"};
  for (const char* name :
       {"model.old", "model.tmp-2026-11-28", "model.tmp-mine", "model2.tmp-0123456789abcdef"}) {
    put(dir_ / name / "config.json", "of the user");
  }
  const AtomicFolder living(dir_ / "model", "test");
  remove_abandoned(dir_ / "model");
  left.push_back(living.temporary().filename());
  std::ranges::sort(left);
  EXPECT_EQ(names(), left);
  EXPECT_EQ(get(dir_ / "elsewhere/config.json"), "of the user");
}

TEST_F(Folders, ACommitLeavesAFolderThatIsCalledOldAlone) {
  put(dir_ / "model/config.json", "old");
  put(dir_ / "model.old/config.json", "of the user");
  AtomicFolder made(dir_ / "model", "test");
  put(made.temporary() / "config.json", "new");
  made.commit();
  EXPECT_EQ(get(dir_ / "model.old/config.json"), "of the user");
}

TEST_F(Folders, AnOlderOneThatWasMovedAsideComesBack) {
  put(dir_ / "model.old-0123456789abcdef/config.json", "old");
  remove_abandoned(dir_ / "model");
  EXPECT_EQ(names(), Names{"model"});
  put(dir_ / "model.old-0123456789abcdef/config.json", "older");
  remove_abandoned(dir_ / "model");
  EXPECT_EQ(names(), Names{"model"}) << "it has been replaced";
  EXPECT_EQ(get(dir_ / "model/config.json"), "old");
}

TEST_F(Folders, TemporaryFilesOfKilledProcessesAreRemoved) {
  put(dir_ / ".metrics.json.tmp-0123456789abcdef", "x");
  put(dir_ / ".notes.tmp-77-0", "x");
  put(dir_ / ".hidden", "x");
  put(dir_ / ".x.tmp-notes", "x");
  put(dir_ / "summary.tmp-1", "x");
  remove_abandoned_files(dir_);
  EXPECT_EQ(names(), (Names{".hidden", ".notes.tmp-77-0", ".x.tmp-notes", "summary.tmp-1"}));
}

TEST_F(Folders, ALockNamesItsHolderAndEndsWithIt) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t other = ::fork();
  if (other == 0) {
    const FolderLock lock(dir_, "test", "trainer, process 77");
    // Another user who could open it could hold it.
    EXPECT_EQ(fs::status(dir_ / "run.lock").permissions() & ~fs::perms::owner_all, fs::perms::none);
    (void)!::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THAT([&] { FolderLock(dir_, "test", "me"); },
              ThrowsError(ExitCode::kUserInput,
                          AllOf(HasSubstr("trainer, process 77"), HasSubstr(dir_.string()))));
  std::thread ends([other] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::kill(other, SIGKILL);
  });
  {
    const FolderLock lock(dir_, "test", "me", std::chrono::minutes(1));
  }
  ends.join();
  ::waitpid(other, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_TRUE(names().empty()) << "the file goes with the lock";
}

TEST_F(Folders, ALockIsNoOtherFileThanItsOwn) {
  put(dir_ / "elsewhere", "precious");
  const auto refuses = [&](const char* why) {
    EXPECT_THAT([&] { FolderLock(dir_, "test", "me"); },
                ThrowsError(ExitCode::kUserInput, HasSubstr(why)));
    EXPECT_TRUE(fs::exists(fs::symlink_status(dir_ / "run.lock"))) << why;
    EXPECT_EQ(get(dir_ / "elsewhere"), "precious") << why;
    fs::remove(dir_ / "run.lock");
  };
  fs::create_symlink(dir_ / "elsewhere", dir_ / "run.lock");
  refuses("it is a link");
  fs::create_directory(dir_ / "run.lock");
  refuses("it is a folder");
  fs::create_hard_link(dir_ / "elsewhere", dir_ / "run.lock");
  refuses("a file of another name");
  ASSERT_EQ(::mkfifo((dir_ / "run.lock").c_str(), 0600), 0);
  refuses("no regular file");
  const FolderLock lock(dir_, "test", "me");
  struct stat made{};
  ASSERT_EQ(::stat((dir_ / "run.lock").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777U, 0600U) << "no other user may hold it";
}

TEST_F(Folders, TheirRoomIsThatOfTheNearestParent) {
  const std::uint64_t here = free_disk_bytes(dir_);
  const std::uint64_t below = free_disk_bytes(dir_ / "not/yet/there");
  EXPECT_GT(here, 0U);
  EXPECT_NE(here, UINT64_MAX);
  EXPECT_NEAR(static_cast<double>(below), static_cast<double>(here),
              0.1 * static_cast<double>(here));
}

}  // namespace
}  // namespace tandem
