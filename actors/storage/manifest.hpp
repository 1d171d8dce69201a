// actors/storage/manifest.hpp — manifest.json of a checkpoint: it lists the files and their
// tensors, with the hash of each.
//
// Invariant: parse() accepts only texts that json() has written, bit for bit (the text contains its
// own hash). The files lie directly in the checkpoint's folder, and a file's tensors follow one
// another without gap or overlap up to the file's end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/content_hash.hpp"
#include "actors/storage/safetensors.hpp"

namespace tandem {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kSlicesName = "slices.json";  // see slices.hpp

struct ManifestTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin_byte = 0;  // in the file
  std::uint64_t size_bytes = 0;
  ContentHash hash;
  bool is_finite = true;  // no value is a NaN or an infinity; always true for integers
};

struct ManifestFile {
  std::string name;
  std::uint64_t size_bytes = 0;
  ContentHash hash;
  std::vector<ManifestTensor> tensors;  // in the order of the data; empty: the file has no tensors
};

/// Returns the first tensor with a NaN or an infinity, as "FILE: tensor "NAME""; empty if there is
/// none.
[[nodiscard]] std::string first_not_finite(const std::vector<ManifestFile>& files);

struct Manifest {
  std::int64_t step = 0;
  std::vector<ManifestFile> files;

  /// Returns the text to write.
  [[nodiscard]] std::string json() const;
  /// Error (user input, one line with `path` and the fault) for anything that json() would not
  /// write: another format or version, a changed bit, a name with '/', sizes that do not fit, ...
  static Manifest parse(const std::string& text, const std::string& path);
};

/// Computes the hash of a file and of each of its tensors from bytes that are added in order, and
/// checks whether their values are finite.
class FileHasher {
 public:
  /// `file` gives name, size and tensors; its hashes are ignored.
  explicit FileHasher(ManifestFile file) : file_(std::move(file)) {}

  void add(std::span<const std::byte> bytes);
  /// Returns the file with its hashes. Call it after every byte was added.
  [[nodiscard]] ManifestFile result();

 private:
  // The hashes of file and tensor take turns by pieces: the second reads bytes that the first has
  // brought into the cache.
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 16;

  void finish_tensors();
  void look_at_values(const ManifestTensor& tensor, std::span<const std::byte> bytes);

  ManifestFile file_;
  ContentHasher of_file_;
  ContentHasher of_tensor_;
  std::size_t tensor_ = 0;  // index of the tensor at position_, or of the next one
  std::uint64_t position_ = 0;
  bool is_finite_ = true;                             // of that tensor, so far
  std::array<std::byte, sizeof(float)> begun_value_;  // a value whose last bytes are still to come
  std::size_t begun_bytes_ = 0;
};

}  // namespace tandem
