#include <cerrno>

#include "actors/storage/safetensors.hpp"
#include "runtime/io/faulty_files.hpp"
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

}  // namespace
}  // namespace tandem
