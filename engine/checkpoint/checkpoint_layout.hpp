// engine/checkpoint/checkpoint_layout.hpp — which files a checkpoint has, and the position of each
// element of a rank's state in them.
//
//   master-00001-of-00002.safetensors       every parameter by its Hugging Face name, fp32; none
//                                           of units that are frozen as a whole
//   exp_avg-00001-of-00002.safetensors      a moment, likewise; none of frozen parameters
//   model.safetensors.index.json            the index with which Transformers reads the masters
//
// A tensor is whole and has the parameter's shape, for every number of ranks, stage, placement and
// layout of the state: each rank writes the elements of its slices. So any number of ranks can read
// a checkpoint; each reads the elements of its own slices. Where hosts have disks of their own, the
// files on a disk have the same names, and in them the runs of elements that the disk's ranks keep
// (actors/storage/manifest.hpp).
// Invariant: the files are the same for all ranks of a disk, and every element that lies there is
// written by one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/checkpoint/checkpoint_save.hpp"
#include "actors/checkpoint/checkpoint_writer.hpp"
#include "engine/rank/rank_layout.hpp"

namespace tandem {

/// Returns the name of a state array: "master" for 0, else torch.optim's name of the moment
/// (exp_avg, exp_avg_sq, momentum_buffer, sum).
[[nodiscard]] std::string_view array_name(const UpdateConfig& optimizer, std::uint32_t array);

inline constexpr const char* kIndexFile = "model.safetensors.index.json";

/// Elements [begin, end) of a parameter.
struct ElementRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
/// Returns the elements of a unit's parameter that lie in that rank's slice of the unit; an empty
/// run if there are none.
[[nodiscard]] ElementRun kept_by(const RankLayout& layout, std::uint32_t rank, std::size_t unit,
                                 std::size_t parameter);

/// Names the files of one array: "master-00001-of-00002.safetensors", ...
void name_array_files(std::span<PlannedFile> files, std::string_view array);

struct CheckpointLayout {
  static constexpr std::uint64_t kMostFileBytes = std::uint64_t{5} << 30;  // one unit may be more
  // A unit of at least this size begins a new file if it would not begin at a disk block's
  // boundary. So its arrays have the same offsets within disk blocks in the file of state and in
  // the checkpoint, which sharing them needs.
  static constexpr std::uint64_t kOwnFileBytes = std::uint64_t{16} << 20;

  std::vector<PlannedFile> files;  // on this rank's disk
  std::vector<PlannedFile> whole;  // of the whole checkpoint: the same where all share it
  std::vector<CheckpointWriter::Unit> units;  // [unit] what this rank writes

  /// `ranks`: the ranks of this rank's disk, including this rank; empty: all ranks share one disk.
  /// `with_frozen`: includes the masters of frozen units, whose values the model's source does not
  /// give again.
  static CheckpointLayout of(const RankLayout& layout, std::span<const std::uint32_t> ranks = {},
                             bool with_frozen = false);
  /// Returns the text of kIndexFile, which lists the masters.
  [[nodiscard]] std::string index_json() const;
  /// Returns the bytes of this rank's largest unit: the least useful size of the save buffer.
  [[nodiscard]] std::size_t largest_unit_bytes() const;
};

}  // namespace tandem
