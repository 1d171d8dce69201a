// models/io/checkpoint.hpp — the weights of a Hugging Face model folder: one model.safetensors, or
// shards with an index.
//
// Invariant: every tensor has exactly one place, and no name in the index leads out of the folder.
// As in Transformers, the index lists the files, and the files list their tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/storage/safetensors.hpp"

namespace tandem {

/// Returns a sentence about a folder that is no Hugging Face model: "FOLDER holds NAME, ...", of an
/// entry that tells what the folder is, with the way on; empty if none does.
[[nodiscard]] std::string told_by_entries(const std::filesystem::path& folder);

class Checkpoint {
 public:
  /// Opens the folder's model.safetensors, or else the shards of model.safetensors.index.json.
  /// Throws Error if the folder has neither (pickle files are never read), if a shard is missing,
  /// or if two shards hold different values of a tensor.
  static Checkpoint open(const std::filesystem::path& folder);

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  [[nodiscard]] const std::vector<SafetensorsFile>& files() const noexcept { return files_; }
  /// Names of all tensors, sorted.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] const TensorInfo* find(std::string_view name) const noexcept;
  [[nodiscard]] const TensorInfo& at(std::string_view name) const;  // Error naming the folder
  [[nodiscard]] std::span<const std::byte> bytes(std::string_view name) const;
  /// Reads elements [begin, end) as fp32. Any thread.
  void read_f32(std::string_view name, std::int64_t begin, std::int64_t end, float* out) const;
  [[nodiscard]] std::uint64_t total_bytes() const noexcept;
  /// Returns a line for each oddity that is no error, such as a difference between index and
  /// shards.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }
  void add_note(std::string note) { notes_.push_back(std::move(note)); }

 private:
  void add_file(const std::filesystem::path& path);

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, std::size_t> file_of_;
  std::vector<std::string> notes_;
};

}  // namespace tandem
