// tests/models/foreign/import_support.hpp — whole tensors of foreign checkpoints, and what they are
// compared with.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "models/foreign/imported_checkpoint.hpp"
#include "tests/data/references.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem::test {

/// Folders of checkpoints that DeepSpeed wrote: the small ones of this tree, and those that
/// tests/drills/deepspeed_checkpoints.py has made, else the large ones where they are there.
inline std::vector<std::filesystem::path> deepspeed_checkpoints() {
  if (const char* made = std::getenv("TANDEM_DEEPSPEED_CHECKPOINTS"); made != nullptr) {
    return {own_reference("deepspeed"), made};
  }
  return references({"deepspeed"}, {"oracles/ds_ckpt"});
}

/// Folders in `folder` with a record of what was saved.
inline std::vector<std::filesystem::path> recorded_checkpoints(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (fs::exists(entry.path() / "record.json")) {
      out.push_back(entry.path());
    }
  }
  std::ranges::sort(out);
  return out;
}

/// The checkpoints that tests/data/foreign/make.py made, unpacked for a while.
class UnpackedCheckpoints {
 public:
  UnpackedCheckpoints() {
    const std::string command = "tar -xJf '" +
                                test::source_path("tests/data/foreign/checkpoints.tar.xz' -C '") +
                                folder_.path().string() + "' 2>/dev/null";
    unpacked_ = std::system(command.c_str()) == 0;
  }
  explicit operator bool() const { return unpacked_; }
  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TempDir folder_;
  bool unpacked_ = false;
};

/// All elements, asked for in uneven pieces, as ranks do.
inline std::vector<float> read_all(const ImportedTensor::ReadF32& read, std::int64_t numel) {
  std::vector<float> out(static_cast<std::size_t>(numel), -1.0F);
  constexpr std::int64_t kPiece = 37;
  for (std::int64_t at = 0; at < numel; at += kPiece) {
    read(at, std::min(at + kPiece, numel), out.data() + at);
  }
  std::vector<float> at_once(out.size());
  read(0, numel, at_once.data());
  EXPECT_TRUE(std::ranges::equal(out, at_once, {}, std::bit_cast<std::uint32_t, float>,
                                 std::bit_cast<std::uint32_t, float>))
      << "pieces and whole differ";
  return out;
}

inline void expect_same_floats(const std::vector<float>& got, const std::vector<float>& wanted,
                               const std::string& name) {
  EXPECT_TRUE(std::ranges::equal(got, wanted, {}, std::bit_cast<std::uint32_t, float>,
                                 std::bit_cast<std::uint32_t, float>))
      << name;
}

/// Opens a checkpoint and reads all that is in it.
inline ImportedCheckpoint read_whole(const std::filesystem::path& path) {
  ImportedCheckpoint checkpoint = open_foreign_checkpoint(path);
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    std::vector<float> out(static_cast<std::size_t>(tensor.numel()));
    tensor.master(0, tensor.numel(), out.data());
    for (const auto& moment : tensor.moments) {
      if (moment) {
        moment(0, tensor.numel(), out.data());
      }
    }
  }
  return checkpoint;
}

}  // namespace tandem::test
