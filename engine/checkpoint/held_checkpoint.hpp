// engine/checkpoint/held_checkpoint.hpp — the part of a checkpoint that one disk has: all of it, or
// runs of elements of its tensors.
//
// Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "actors/storage/manifest.hpp"
#include "engine/checkpoint/checkpoint_layout.hpp"

namespace tandem {

struct HeldCheckpoint {
  std::string folder;  // empty: this disk has nothing of it
  bool in_slices = false;
  std::int64_t step = 0;
  std::vector<ManifestFile> files;  // on this disk
  std::vector<PlannedFile> whole;   // the tensors' files of the whole checkpoint
  std::vector<std::string> hosts;   // of slices: [disk] the host that saved them
  std::uint32_t disk = 0;           // of slices: this disk's number in `hosts`

  /// Reads the text of its manifest. Throws what Manifest::parse() throws.
  static HeldCheckpoint parse(const std::string& folder, const std::string& text);
};

/// Returns the array that a file's name begins with, "master" for
/// master-00001-of-00002.safetensors; empty if the file has no array's name.
[[nodiscard]] std::string_view array_of_file(std::string_view name);

/// The elements that a disk has, by array and tensor: ascending runs that do not touch.
class HeldRuns {
 public:
  HeldRuns() = default;
  explicit HeldRuns(const HeldCheckpoint& held);

  [[nodiscard]] const std::vector<ElementRun>& of(std::string_view array,
                                                  const std::string& tensor) const;
  /// Returns the parts of `run` that are not there.
  [[nodiscard]] std::vector<ElementRun> missing(std::string_view array, const std::string& tensor,
                                                ElementRun run) const;

 private:
  std::unordered_map<std::string, std::vector<ElementRun>> runs_;  // by "array/tensor"
};

/// Returns the parts of `run` that no run of `held` covers; `held` ascends.
[[nodiscard]] std::vector<ElementRun> left_of(ElementRun run, const std::vector<ElementRun>& held);

}  // namespace tandem
