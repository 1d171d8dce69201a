// engine/checkpoint/checkpoint_source.hpp — gives a rank the elements that it keeps of a
// checkpoint's tensors: from files on its disk, or from memory that other ranks filled.
//
// Invariant: files were verified against their hashes before (the ranks of a disk share that work);
// sizes, names and shapes are checked here.
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

  /// Has no files: what lies here is given with keep().
  explicit CheckpointSource(std::size_t arrays) : arrays_(arrays), lent_(arrays) {}

  /// Adds elements of an array of a parameter, from `begin` on, that lie here.
  void keep(std::uint32_t array, const std::string& parameter, std::int64_t begin,
            std::vector<float> values);
  /// Adds elements of an array of a parameter, from `begin` on, that lie in no file here.
  void lend(std::uint32_t array, const std::string& parameter, std::int64_t begin,
            std::vector<float> values);
  void drop_lent();

  /// Returns a function that copies elements of an array of a parameter. Any thread; valid as long
  /// as this object.
  [[nodiscard]] StateSource source() const;
  void read(std::uint32_t array, const std::string& parameter, std::int64_t begin, std::int64_t end,
            float* out) const;

 private:
  /// Where a run of elements lies.
  struct Place {
    ElementRun run;
    const SafetensorsFile* file = nullptr;  // null: in `values`
    const TensorInfo* tensor = nullptr;
    std::vector<float> values;
  };
  static Place in_memory(std::int64_t begin, std::vector<float> values);
  using Places = std::unordered_map<std::string, std::vector<Place>>;  // by parameter

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Places> arrays_;  // [array]
  std::vector<Places> lent_;    // likewise
};

/// Throws user_error if the whole checkpoint lacks an array of a parameter, or has it with another
/// shape. The layout says which arrays a parameter has.
void require_shapes(const HeldCheckpoint& held, const RankLayout& layout,
                    const std::vector<std::string>& arrays);

/// Whether the checkpoint has that array at all.
[[nodiscard]] bool has_array(const HeldCheckpoint& held, std::string_view array);

}  // namespace tandem
