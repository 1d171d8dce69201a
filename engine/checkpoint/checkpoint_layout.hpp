// engine/checkpoint/checkpoint_layout.hpp — which files a checkpoint has, and where in them each
// element of a rank's state goes.
//
//   master-00001-of-00002.safetensors       every parameter by its Hugging Face name, fp32
//   exp_avg-00001-of-00002.safetensors      what the optimizer has, likewise; none of frozen ones
//   model.safetensors.index.json            so that Transformers reads the masters
//
// A tensor is whole and has the shape of the parameter, whatever the number of ranks, the stage,
// the placement and the layout of the state: each rank writes the elements of its slices. So a
// checkpoint is read on any number of ranks, by asking for other elements.
// Invariant: the files are the same for all ranks, and every element is written by one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/checkpoint/checkpoint_writer.hpp"
#include "actors/storage/checkpoint_save.hpp"
#include "engine/rank/rank_layout.hpp"

namespace tandem {

/// "master", or what torch.optim calls the moment: exp_avg, exp_avg_sq, momentum_buffer, sum.
[[nodiscard]] std::string_view array_name(const UpdateConfig& optimizer, std::uint32_t array);

inline constexpr const char* kIndexFile = "model.safetensors.index.json";

/// Names the files of one array: "master-00001-of-00002.safetensors", ...
void name_array_files(std::span<PlannedFile> files, std::string_view array);

struct CheckpointLayout {
  static constexpr std::uint64_t kMostFileBytes = std::uint64_t{5} << 30;  // one unit may be more

  std::vector<PlannedFile> files;
  std::vector<CheckpointWriter::Unit> units;  // [unit] what this rank writes

  static CheckpointLayout of(const RankLayout& layout);
  /// The text of kIndexFile, over the masters.
  [[nodiscard]] std::string index_json() const;
  /// The largest unit of this rank: what staging needs at least to be of use.
  [[nodiscard]] std::size_t largest_unit_bytes() const;
};

}  // namespace tandem
