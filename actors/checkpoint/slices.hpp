// actors/checkpoint/slices.hpp — slices.json: the slices of a checkpoint on one of several disks.
//
// If hosts have disks of their own, a save makes one folder on each disk. The folder has the slices
// that this disk's ranks keep, in files of the same names as in the whole checkpoint, and
// slices.json instead of a manifest. A tensor in such a file is a run of elements of one of the
// checkpoint's tensors, and is named after it: "layer.weight[0:512]". The folder is not a
// checkpoint unless it has every element.
// Invariant: parse() accepts only texts that json() has written, bit for bit, and every tensor in
// the files is a run of a tensor of the whole checkpoint's file of that name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/checkpoint/planned_file.hpp"
#include "actors/storage/manifest.hpp"

namespace tandem {

/// Elements [begin, end) of a tensor, row-major.
struct TensorRun {
  std::string tensor;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  /// "layer.weight[0:512]"
  [[nodiscard]] std::string name() const;
  /// Returns the run of such a name; nullopt for any other name.
  [[nodiscard]] static std::optional<TensorRun> parse(std::string_view name);
};

/// One disk's part in a save, the same on its ranks.
struct SlicesPlan {
  std::string save;                // 32 hex digits that identify the save, the same on its disks
  std::uint32_t disk = 0;          // number of this disk
  std::vector<std::string> hosts;  // [disk] the name of a host that has it
  std::vector<PlannedFile> whole;  // the files of the whole checkpoint, the same on all disks
};

struct Slices {
  std::int64_t step = 0;
  SlicesPlan plan;
  std::vector<ManifestFile> files;  // in this folder

  [[nodiscard]] std::string json() const;
  /// Error (user input, one line with `path` and the fault) for anything that json() would not
  /// write.
  static Slices parse(const std::string& text, const std::string& path);
};

}  // namespace tandem
