// actors/storage/safetensors.hpp — reads a .safetensors file: 8 bytes of header length, a JSON
// header, then raw tensors.
//
// The file is not trusted: every number is checked before it is used.
// Invariant: after open() every tensor's bytes lie inside the file, the tensors cover the data
// without gap or overlap, and the length of each is exactly shape * element size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "actors/storage/file.hpp"
#include "actors/storage/mapped_file.hpp"

namespace tandem {

enum class TensorType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
  kC64,
};

std::string_view name_of(TensorType type) noexcept;  // "F32", "BF16", ...
std::size_t bytes_of(TensorType type) noexcept;
/// Returns the type with that name in safetensors files; nullopt for any other name.
std::optional<TensorType> type_named(std::string_view name) noexcept;
/// Returns the product of the shape and the element size; nothing if it does not fit into 63 bits.
std::optional<std::uint64_t> checked_size_bytes(std::span<const std::int64_t> shape,
                                                TensorType type) noexcept;
/// Convert between an element type and its name in config.json: "float32", "bfloat16" or "float16".
/// The second throws user_error for any other name.
std::string_view torch_dtype_of(TensorType type) noexcept;
TensorType tensor_type_of(std::string_view torch_dtype);
/// "[2, 3]"
std::string shape_text(std::span<const std::int64_t> shape);

struct TensorInfo {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin_byte = 0;  // in the file
  std::uint64_t size_bytes = 0;

  [[nodiscard]] std::int64_t numel() const noexcept {
    return static_cast<std::int64_t>(size_bytes / bytes_of(type));
  }
};

/// Converts elements of the four float types to fp32. `bytes` has out.size() elements; large
/// outputs bypass the caches. The type is F32, BF16, F16 or F64.
void convert_to_f32(TensorType type, std::span<const std::byte> bytes, std::span<float> out);
/// Converts fp32 to F32, BF16 or F16, rounded to nearest even.
void convert_from_f32(TensorType type, std::span<const float> values, std::span<std::byte> out);
bool is_float(TensorType type) noexcept;  // F32, BF16, F16, F64

class SafetensorsFile {
 public:
  /// Opens a file and checks it. Error if it is missing or truncated, if its header is too large or
  /// not JSON, if a type is unknown, if a shape or offsets do not fit, ...
  static SafetensorsFile open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Returns the tensors in the order of their data.
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept {
    return metadata_;
  }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const noexcept;
  /// Returns the tensor of that name; an Error that names the file if there is none.
  [[nodiscard]] const TensorInfo& at(std::string_view name) const;

  /// Returns the tensor's bytes in the mapping, valid while this object lives (for a file that may
  /// shrink use MappedFile::survives()).
  [[nodiscard]] std::span<const std::byte> bytes(const TensorInfo& tensor) const noexcept;

  /// Reads the elements [begin, end) of a float tensor, row-major, as fp32. Error if the file was
  /// shortened meanwhile. Any thread, several at once.
  void read_f32(const TensorInfo& tensor, std::int64_t begin, std::int64_t end, float* out) const;
  void read_f32(std::string_view name, std::int64_t begin, std::int64_t end, float* out) const {
    read_f32(at(name), begin, end, out);
  }

 private:
  std::filesystem::path path_;
  FileHandle file_;
  MappedFile map_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::size_t> index_;  // keys point into tensors_
  std::map<std::string, std::string> metadata_;
};

}  // namespace tandem
