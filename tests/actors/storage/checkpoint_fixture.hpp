// tests/actors/storage/checkpoint_fixture.hpp — checkpoints in a folder of the test's own.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "runtime/event_loop.hpp"
#include "tests/support/small_checkpoint.hpp"

namespace tandem {

inline std::string text_of(const std::filesystem::path& path) {
  std::string text(std::filesystem::file_size(path), '\0');
  std::ifstream(path, std::ios::binary)
      .read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

/// Every file below `folder` with its bytes.
inline std::map<std::string, std::string> content_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> content;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      content[std::filesystem::relative(entry.path(), folder)] = text_of(entry.path());
    }
  }
  return content;
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "tandem_checkpoint_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    parent = name;
  }
  void TearDown() override { std::filesystem::remove_all(parent); }

  void save(std::int64_t step, std::uint32_t world = 1) {
    loop.run(save_checkpoint, &files, small_plan(parent, step), world, std::size_t{100});
  }
  std::vector<FoundCheckpoint> found() {
    broken.clear();
    return loop.run(find_checkpoints, &files, parent, &broken);
  }

  EventLoop loop;
  FileIo files{loop};
  std::string parent;
  std::vector<std::string> broken;
};

}  // namespace tandem
