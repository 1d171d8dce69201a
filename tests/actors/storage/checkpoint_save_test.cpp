#include <cerrno>

#include "actors/storage/safetensors.hpp"
#include "runtime/io/faulty_files.hpp"
#include "runtime/system/reach.hpp"
#include "tests/actors/storage/checkpoint_fixture.hpp"

namespace tandem {
namespace {

using Kind = FileRequest::Kind;

TEST_F(CheckpointTest, IsFoundAndHoldsWhatWasWritten) {
  save(20);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 20);
  EXPECT_EQ(found()[0].path, parent + "/step-00000020");
  EXPECT_TRUE(broken.empty());
  EXPECT_TRUE(loop.run(faults_of, &files, found()[0].path).empty());
  const CheckpointPlan plan = small_plan(parent, 20);
  for (std::size_t file = 0; file < plan.files.size(); ++file) {
    const SafetensorsFile read = SafetensorsFile::open(plan.folder + "/" + plan.files[file].name);
    std::vector<std::byte> data;
    for (const TensorInfo& tensor : read.tensors()) {
      data.insert(data.end(), read.bytes(tensor).begin(), read.bytes(tensor).end());
    }
    EXPECT_EQ(data, data_of(plan, file));
  }
  EXPECT_EQ(text_of(plan.folder + "/state.json"), small_texts(20)[0].text);
  EXPECT_FALSE(std::filesystem::exists(plan.temporary));
}

TEST_F(CheckpointTest, AnyNumberOfWritersWritesTheSameBytes) {
  std::map<std::string, std::string> expected;
  for (const std::uint32_t world : {1U, 2U, 3U, 4U, 7U}) {
    save(20, world);
    const auto content = content_of(parent);
    EXPECT_EQ(content.size(), 7U);
    expected = world == 1 ? content : expected;
    EXPECT_EQ(content, expected) << world << " writers";
    std::filesystem::remove_all(parent + "/step-00000020");
  }
}

TEST_F(CheckpointTest, ReplacesAFolderOfTheSameStep) {
  save(20);
  std::ofstream(parent + "/step-00000020/state.json") << "{}";
  EXPECT_TRUE(found().empty());
  ASSERT_EQ(broken.size(), 1U);
  EXPECT_EQ(broken[0], parent +
                           "/step-00000020: [checkpoint] state.json has 2 bytes, its manifest says "
                           "27; use an older one");
  save(20, 2);
  EXPECT_EQ(found().size(), 1U);
  EXPECT_TRUE(loop.run(faults_of, &files, parent + "/step-00000020").empty());
  EXPECT_EQ(content_of(parent).size(), 7U) << "the replaced one is gone";
}

Task<int> open_behind_a_link(FileIo* io, CheckpointPlan plan, std::string elsewhere) {
  CheckpointSave save(io, plan, 0, 1);
  co_await save.create();
  std::filesystem::rename(plan.temporary, elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, plan.temporary);
  int error = 0;
  try {
    co_await save.open();
  } catch (const FileError& failed) {
    error = failed.error_number();
  }
  co_await save.discard();
  co_return error;
}

TEST_F(CheckpointTest, ALinkThatComesIntoItsPlaceIsNotFollowed) {
  const std::string elsewhere = parent + "/elsewhere";
  const CheckpointPlan plan = small_plan(parent, 20);
  EXPECT_EQ(loop.run(open_behind_a_link, &files, plan, elsewhere), ELOOP);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(plan.temporary)));
  EXPECT_FALSE(std::filesystem::is_empty(elsewhere)) << "the link goes itself";
}

TEST_F(CheckpointTest, InAnOwnFolderNoLinkIsReadAsACheckpoint) {
  save(10);
  save(20);
  save(30);
  const std::string elsewhere = parent + "-elsewhere";
  std::filesystem::create_directory(elsewhere);
  std::filesystem::rename(parent + "/step-00000030", elsewhere + "/30");
  std::filesystem::create_directory_symlink(elsewhere + "/30", parent + "/step-00000030");
  std::filesystem::rename(parent + "/step-00000020/manifest.json", elsewhere + "/manifest.json");
  std::filesystem::create_symlink(elsewhere + "/manifest.json",
                                  parent + "/step-00000020/manifest.json");
  EXPECT_EQ(found().size(), 3U) << "where the user leads it";
  const OwnFolder own(parent);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 10);
  ASSERT_EQ(broken.size(), 2U);
  for (const std::string& line : broken) {
    EXPECT_NE(line.find("a link is in its place or on the way to it"), std::string::npos) << line;
  }
  std::filesystem::remove_all(elsewhere);
}

}  // namespace
}  // namespace tandem
