// Calls by path within an own folder follow no link, whenever it comes; elsewhere they do.
#include "runtime/system/reach.hpp"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ReachTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("reach" + std::to_string(::getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "own/deep");
    fs::create_directories(dir_ / "beside/deep");
    put("beside/thesis");
    put("own/file");
  }
  void TearDown() override { fs::remove_all(dir_); }
  void put(const std::string& name) const { std::ofstream(dir_ / name) << name; }
  [[nodiscard]] std::string at(const std::string& name) const { return dir_ / name; }
  [[nodiscard]] bool is_there(const std::string& name) const {
    return fs::exists(fs::symlink_status(dir_ / name));
  }
  static int open_at(const std::string& path, int flags = O_RDONLY) {
    const int opened = reach::open(path, flags | O_CLOEXEC, 0600);
    const int error = errno;
    if (opened >= 0) {
      ::close(opened);
    }
    return opened >= 0 ? 0 : error;
  }
  static int error_of(int result) { return result == 0 ? 0 : errno; }

  fs::path dir_;
};

TEST_F(ReachTest, NoCallFollowsALinkToAFolder) {
  const OwnFolder own(at("own"));
  fs::create_directory_symlink(dir_ / "beside", dir_ / "own/link");
  for (const std::string way : {"own/link", "own/./link", "own//deep/../link"}) {
    EXPECT_NE(open_at(at(way + "/thesis")), 0) << way;
    EXPECT_NE(open_at(at(way + "/new"), O_WRONLY | O_CREAT), 0) << way;
    EXPECT_NE(error_of(reach::make_folder(at(way + "/new"))), 0) << way;
    EXPECT_NE(error_of(reach::remove(at(way + "/thesis"))), 0) << way;
    EXPECT_NE(error_of(reach::remove_folder(at(way + "/deep"))), 0) << way;
    EXPECT_NE(error_of(reach::rename(at("own/file"), at(way + "/file"))), 0) << way;
    EXPECT_NE(error_of(reach::rename(at(way + "/thesis"), at("own/thesis"))), 0) << way;
    EXPECT_NE(error_of(reach::link(at(way + "/thesis"), at("own/thesis"))), 0) << way;
    struct stat found{};
    EXPECT_NE(error_of(reach::status(at(way + "/thesis"), found)), 0) << way;
    std::vector<std::string> names;
    EXPECT_NE(error_of(reach::list(at(way), names)), 0) << way;
    EXPECT_THAT(names, IsEmpty());
  }
  EXPECT_EQ(open_at(at("own/link/thesis")), ELOOP);
  EXPECT_EQ(open_at(at("own/link"), O_RDONLY | O_DIRECTORY), ELOOP);
  EXPECT_FALSE(is_there("beside/new"));
  EXPECT_TRUE(is_there("beside/thesis") && is_there("beside/deep") && is_there("own/file"));
}

TEST_F(ReachTest, NoCallFollowsALinkToAFile) {
  const OwnFolder own(at("own"));
  fs::create_symlink(dir_ / "beside/thesis", dir_ / "own/link");
  fs::create_symlink(dir_ / "beside/none", dir_ / "own/nothing");
  EXPECT_EQ(open_at(at("own/link")), ELOOP);
  EXPECT_EQ(open_at(at("own/link"), O_WRONLY | O_TRUNC), ELOOP);
  EXPECT_EQ(open_at(at("own/nothing"), O_WRONLY | O_CREAT), ELOOP);
  EXPECT_FALSE(is_there("beside/none"));
  EXPECT_EQ(error_of(reach::remove(at("own/link"))), 0);
  EXPECT_TRUE(is_there("beside/thesis")) << "the link goes itself";
}

TEST_F(ReachTest, ALinkInThePlaceOfTheFolderIsFollowedOnce) {
  fs::create_directory_symlink(dir_ / "own", dir_ / "by_link");
  const OwnFolder own(at("by_link"));
  fs::remove(dir_ / "by_link");
  fs::create_directory_symlink(dir_ / "beside", dir_ / "by_link");
  EXPECT_EQ(open_at(at("by_link/made"), O_WRONLY | O_CREAT), 0);
  EXPECT_EQ(open_at(at("by_link/thesis")), ENOENT);
  std::vector<std::string> names;
  EXPECT_EQ(error_of(reach::list(at("by_link"), names)), 0);
  EXPECT_THAT(names, testing::UnorderedElementsAre("deep", "file", "made"));
  EXPECT_TRUE(is_there("own/made"));
  EXPECT_FALSE(is_there("beside/made"));
}

TEST_F(ReachTest, ItsOtherNameWithoutLinksIsHeldAsWell) {
  fs::create_directory_symlink(dir_ / "own", dir_ / "by_link");
  const OwnFolder own(at("by_link"));
  fs::create_directory_symlink(dir_ / "beside", dir_ / "own/link");
  EXPECT_TRUE(reach::is_own(at("own/file")));
  EXPECT_EQ(open_at(at("own/link/thesis")), ELOOP);
}

TEST_F(ReachTest, AFolderWithinAnotherMayBeALink) {
  fs::create_directory_symlink(dir_ / "beside", dir_ / "own/checkpoints");
  const OwnFolder own(at("own"));
  const OwnFolder within(at("own/checkpoints"));
  EXPECT_EQ(open_at(at("own/checkpoints/thesis")), 0);
  fs::create_directory_symlink(dir_ / "own", dir_ / "beside/link");
  EXPECT_EQ(open_at(at("own/checkpoints/link/file")), ELOOP);
  EXPECT_EQ(error_of(reach::rename(at("own/checkpoints/thesis"), at("own/thesis"))), 0);
  EXPECT_TRUE(is_there("own/thesis"));
}

TEST_F(ReachTest, ElsewhereLinksAreFollowed) {
  const OwnFolder own(at("own"));
  EXPECT_FALSE(reach::is_own(at("own2")));
  EXPECT_FALSE(reach::is_own(dir_));
  fs::create_directory_symlink(dir_ / "own", dir_ / "beside/link");
  EXPECT_EQ(open_at(at("beside/link/file")), 0);
  {
    const OwnFolder held(at("beside"));
    EXPECT_EQ(open_at(at("beside/link/file")), ELOOP);
  }
  EXPECT_EQ(open_at(at("beside/link/file")), 0) << "no longer than the object lives";
}

TEST_F(ReachTest, RelativePathsMeanTheSameFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(dir_ / "beside");
  const OwnFolder own("../own");
  fs::create_directory_symlink(dir_ / "beside", dir_ / "own/link");
  EXPECT_EQ(open_at("../own/file"), 0);
  EXPECT_EQ(open_at("../own/link/thesis"), ELOOP);
  EXPECT_EQ(open_at(at("own/link/thesis")), ELOOP);
  fs::current_path(before);
}

TEST_F(ReachTest, AFolderThatIsMadeAgainIsHeldAsBefore) {
  const OwnFolder own(at("own"));
  fs::remove_all(dir_ / "own");
  EXPECT_EQ(open_at(at("own/made"), O_WRONLY | O_CREAT), ENOENT);
  fs::create_directory(dir_ / "own");
  fs::create_directory_symlink(dir_ / "beside", dir_ / "own/link");
  EXPECT_EQ(open_at(at("own/made"), O_WRONLY | O_CREAT), 0);
  EXPECT_EQ(open_at(at("own/link/thesis")), ELOOP);
  EXPECT_TRUE(is_there("own/made"));
  fs::remove_all(dir_ / "own");
  fs::create_directory_symlink(dir_ / "beside", dir_ / "own");
  EXPECT_NE(open_at(at("own/made"), O_WRONLY | O_CREAT), 0);
  EXPECT_FALSE(is_there("beside/made"));
}

TEST_F(ReachTest, NothingIsHeldOfAFolderThatIsNotThere) {
  const OwnFolder own(at("none"));
  EXPECT_FALSE(reach::is_own(at("none/file")));
}

}  // namespace
}  // namespace tandem
