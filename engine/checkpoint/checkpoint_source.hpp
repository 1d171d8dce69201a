// engine/checkpoint/checkpoint_source.hpp — the tensors of a checkpoint, to be loaded by the
// elements that a rank keeps: from files on its disk, or from memory into which other ranks' came.
//
// Invariant: what it hands out from files was verified against their hashes, which the ranks of a
// disk share; sizes, names and shapes are checked here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/storage/safetensors.hpp"
#include "engine/checkpoint/held_checkpoint.hpp"
#include "engine/rank/rank_layout.hpp"
#include "engine/rank/weight_loader.hpp"

namespace tandem {

class CheckpointSource {
 public:
  /// Opens the files of `arrays` (array_name()) that lie here, which may be none.
  CheckpointSource(const HeldCheckpoint& here, const std::vector<std::string>& arrays);

  /// Elements of an array of a parameter, from `begin` on, that lie in no file here.
  void lend(std::uint32_t array, const std::string& parameter, std::int64_t begin,
            std::vector<float> values);
  void drop_lent();

  /// Elements of an array of a parameter. Any thread; it lives while the source does.
  [[nodiscard]] StateSource source() const;
  void read(std::uint32_t array, const std::string& parameter, std::int64_t begin, std::int64_t end,
            float* out) const;

 private:
  /// Where a run of elements lies.
  struct Place {
    ElementRun run;
    const SafetensorsFile* file = nullptr;  // null: in `lent`
    const TensorInfo* tensor = nullptr;
    std::vector<float> lent;
  };
  using Places = std::unordered_map<std::string, std::vector<Place>>;  // by parameter

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Places> arrays_;  // [array]
  std::vector<Places> lent_;    // likewise
};

/// Throws user_error where the whole checkpoint has no such array of a parameter, or one of
/// another shape. Which arrays a parameter has the layout says.
void require_shapes(const HeldCheckpoint& held, const RankLayout& layout,
                    const std::vector<std::string>& arrays);

/// Whether the checkpoint has that array at all.
[[nodiscard]] bool has_array(const HeldCheckpoint& held, std::string_view array);

}  // namespace tandem
