// models/foreign/torch_writer.hpp — files that torch.load(weights_only=True) reads: a zip archive
// of stored entries with a minimal pickle. Storages are written in pieces, whatever their size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/json.hpp"
#include "actors/storage/safetensors.hpp"
#include "models/foreign/imported_checkpoint.hpp"

namespace tandem {

/// The elements of a tensor that will be written.
struct TensorSource {
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;
  std::function<void(std::int64_t begin, std::int64_t end, std::span<std::byte> out)> read;
};
/// Returns a source of fp32 elements.
TensorSource f32_source(std::vector<std::int64_t> shape, ImportedTensor::ReadF32 read);
/// Returns a source of a tensor's stored elements, or else of its fp32 values in its type.
TensorSource stored_source(const ImportedTensor& tensor);

/// Builds a pickle value by value; between the begin and the end of a dict come key, value, key,
/// value.
class PickleText {
 public:
  void none() { text_ += 'N'; }
  void boolean(bool value) { text_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value);
  void real(double value);
  void text(std::string_view value);
  void begin_dict() { text_ += "}("; }
  void begin_ordered_dict() { text_ += "ccollections\nOrderedDict\n)R("; }
  void end_dict() { text_ += 'u'; }
  void begin_list() { text_ += "]("; }
  void end_list() { text_ += 'e'; }
  void size(std::span<const std::int64_t> shape);  // torch.Size
  void json(const JsonValue& value);
  /// Error if torch has no storage class of this type.
  void tensor(TensorSource source);

  /// The file's pickle and the sources of its storages, in order.
  [[nodiscard]] std::string pickle() const { return "\x80\2" + text_ + '.'; }
  [[nodiscard]] const std::vector<TensorSource>& sources() const noexcept { return sources_; }

 private:
  void tuple(std::span<const std::int64_t> values);

  std::string text_;
  std::vector<TensorSource> sources_;
};

/// Writes the file durably, complete or not at all. Throws Error if it cannot be written, and
/// passes on errors of the sources.
void write_torch_file(const std::filesystem::path& path, const PickleText& pickle);

}  // namespace tandem
