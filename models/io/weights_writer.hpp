// models/io/weights_writer.hpp — writes weights, tensor by tensor, as model.safetensors or as
// shards with an index.
//
// Sizes are known before the first byte, so the header comes first and nothing is held in memory.
// Invariant: until finish() every byte lies in temporary files; the last name to appear is the one
// that loaders look for first (model.safetensors, or the index), so loaders never find a partial
// model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/file.hpp"
#include "actors/storage/safetensors_header.hpp"

namespace tandem {

/// model.safetensors, its index, or a shard.
[[nodiscard]] bool is_weight_file(std::string_view name);

class WeightsWriter {
 public:
  struct Options {
    /// A shard is closed before it would exceed this (one tensor alone may). 0: one file of any
    /// size.
    std::uint64_t max_shard_bytes = std::uint64_t{5} << 30;
    /// The file's name if there is only one.
    std::string file = "model.safetensors";
  };

  /// Throws Error if the folder cannot be written, or if the disk has no room for all tensors.
  WeightsWriter(std::filesystem::path folder, std::vector<TensorPlan> tensors, Options options);
  WeightsWriter(std::filesystem::path folder, std::vector<TensorPlan> tensors);
  ~WeightsWriter();  // without finish(): leaves the folder as it was

  /// Appends the next bytes or elements of the tensors, one tensor after another in the planned
  /// order. A call may end anywhere inside a tensor, but must not run over a tensor's end. One
  /// thread at a time.
  void append(std::span<const std::byte> bytes);
  /// The same, converted to the tensor's type. Throws Error if a finite value becomes infinite.
  void append_f32(std::span<const float> values);
  /// Returns the tensor of the next append(); nullptr if all are complete.
  [[nodiscard]] const TensorPlan* current() const noexcept;

  /// Makes the checkpoint appear, durably, and removes weight files of an older one that it
  /// replaces.
  void finish();

 private:
  struct Shard {
    std::string name;
    std::size_t first = 0;  // tensors [first, last)
    std::size_t last = 0;
    std::unique_ptr<AtomicFile> file;
  };
  void plan_shards(std::uint64_t max_shard_bytes);
  void skip_complete();
  void check_range(std::span<const float> values) const;  // buffer_ holds them converted
  void remove_replaced(const std::vector<std::string>& old_files) const;
  [[nodiscard]] std::string index_json() const;
  [[nodiscard]] std::vector<std::string> weight_files_there() const;

  std::filesystem::path folder_;
  std::vector<TensorPlan> tensors_;
  std::string file_;
  std::vector<Shard> shards_;
  std::size_t shard_ = 0;
  std::size_t tensor_ = 0;
  std::uint64_t written_bytes_ = 0;  // of tensor_
  std::vector<std::byte> buffer_;
};

}  // namespace tandem
