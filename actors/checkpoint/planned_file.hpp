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

  /// Length field and JSON header. Large files begin their data at a whole block, so that most
  /// tensors of a checkpoint can be written from where they lie.
  [[nodiscard]] std::string header() const;
  /// Both make the header to know its size.
  [[nodiscard]] std::uint64_t header_bytes() const;
  [[nodiscard]] std::uint64_t size_bytes() const;
};

}  // namespace tandem
