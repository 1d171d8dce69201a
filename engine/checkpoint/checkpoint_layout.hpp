// engine/checkpoint/checkpoint_layout.hpp — which files a checkpoint has, and where in them each
// element of a rank's state goes.
//
//   master-00001-of-00002.safetensors       every parameter by its Hugging Face name, fp32; none
//                                           of units that are frozen as a whole
//   exp_avg-00001-of-00002.safetensors      what the optimizer has, likewise; none of frozen ones
//   model.safetensors.index.json            so that Transformers reads the masters
//
// A tensor is whole and has the shape of the parameter, whatever the number of ranks, the stage,
// the placement and the layout of the state: each rank writes the elements of its slices. So a
// checkpoint is read on any number of ranks, by asking for other elements.
// Where hosts have disks of their own, the files on a disk have the same names, and in them the
// runs of elements that the disk's ranks keep (actors/checkpoint/slices.hpp).
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

/// "master", or what torch.optim calls the moment: exp_avg, exp_avg_sq, momentum_buffer, sum.
[[nodiscard]] std::string_view array_name(const UpdateConfig& optimizer, std::uint32_t array);

inline constexpr const char* kIndexFile = "model.safetensors.index.json";

/// Elements [begin, end) of a parameter.
struct ElementRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
/// The part of a unit's parameter that lies in that rank's slice of the unit; empty: nothing.
[[nodiscard]] ElementRun kept_by(const RankLayout& layout, std::uint32_t rank, std::size_t unit,
                                 std::size_t parameter);

/// Names the files of one array: "master-00001-of-00002.safetensors", ...
void name_array_files(std::span<PlannedFile> files, std::string_view array);

struct CheckpointLayout {
  static constexpr std::uint64_t kMostFileBytes = std::uint64_t{5} << 30;  // one unit may be more
  // A unit of that size begins a file where it would begin within a block of the one before: so
  // its arrays lie in the files of state and checkpoint at the same places within blocks.
  static constexpr std::uint64_t kOwnFileBytes = std::uint64_t{16} << 20;

  std::vector<PlannedFile> files;  // on this rank's disk
  std::vector<PlannedFile> whole;  // of the whole checkpoint: the same where all share it
  std::vector<CheckpointWriter::Unit> units;  // [unit] what this rank writes

  /// `ranks`: those of this rank's disk, this one among them; none: all share one. `with_frozen`:
  /// the masters of frozen units, too, which their source does not give again.
  static CheckpointLayout of(const RankLayout& layout, std::span<const std::uint32_t> ranks = {},
                             bool with_frozen = false);
  /// The text of kIndexFile, over the masters.
  [[nodiscard]] std::string index_json() const;
  /// The largest unit of this rank: what staging needs at least to be of use.
  [[nodiscard]] std::size_t largest_unit_bytes() const;
};

}  // namespace tandem
