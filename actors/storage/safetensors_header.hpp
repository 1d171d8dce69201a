// actors/storage/safetensors_header.hpp — builds the header of a .safetensors file that will be
// written, whose sizes are known before the first byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "actors/storage/safetensors.hpp"

namespace tandem {

/// A tensor that will be written.
struct TensorPlan {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;

  [[nodiscard]] std::int64_t numel() const noexcept;
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;
};

/// Returns the length field and JSON header of a file with these tensors in this order, padded so
/// that the data begins at a multiple of `alignment`, which is a multiple of 8.
std::string safetensors_header(std::span<const TensorPlan> tensors, std::size_t alignment = 8,
                               const std::map<std::string, std::string>& metadata = {
                                   {"format", "pt"}});

/// A file that will be written.
struct PlannedFile {
  std::string name;
  std::vector<TensorPlan> tensors;

  /// Returns the length field and the JSON header. In large files the data begins at a disk block's
  /// boundary, so that most tensors of a checkpoint can be written without a copy.
  [[nodiscard]] std::string header() const;
  /// Both build the header to know its size.
  [[nodiscard]] std::uint64_t header_bytes() const;
  [[nodiscard]] std::uint64_t size_bytes() const;
};

}  // namespace tandem
