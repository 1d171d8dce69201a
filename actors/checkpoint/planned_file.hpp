// actors/checkpoint/planned_file.hpp — a safetensors file that will be written: its size and its
// header are known before the first byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/storage/safetensors_header.hpp"

namespace tandem {

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
