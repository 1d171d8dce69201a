// models/foreign/foreign_pieces.hpp — elements of foreign tensors, where they lie: in pieces of
// storages, which are parts of mapped files.
//
// Invariant: every element of every piece lies inside its storage, and every storage inside its
// file. If a storage has a checksum, it is compared before the storage's first element is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/mapped_file.hpp"
#include "actors/storage/safetensors.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

/// A mapped file.
class ForeignFile {
 public:
  /// Throws Error (kUserInput) if the file cannot be read or has not this size.
  ForeignFile(std::filesystem::path path, std::uint64_t size_bytes);

  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return map_.bytes().size(); }
  [[nodiscard]] const MappedFile& map() const noexcept { return map_; }
  /// "[import] FILE: complaint; do this".
  [[nodiscard]] Error error(std::string_view complaint) const;
  /// Throws an error unless a read succeeded and the file still has its size.
  void require_whole(bool read) const;

 private:
  std::filesystem::path path_;
  MappedFile map_;
};

/// The part [begin, begin + size) of a file, which the caller has checked. crc 0: no checksum.
struct ForeignStorage {
  std::shared_ptr<const ForeignFile> file;
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  std::uint32_t crc = 0;
  mutable std::once_flag checked;

  /// Compares the checksum once, a part at a time.
  void check_once() const;
};
/// Each storage of a checkpoint; its pieces share them.
using ForeignStorages = std::vector<ForeignStorage>;

/// The elements at offset, offset + 1, ... of a storage; with a shape those of a strided view.
struct ForeignPiece {
  struct View {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> stride;
  };
  const ForeignStorage* storage = nullptr;
  TensorType type = TensorType::kF32;
  std::int64_t offset = 0;
  std::int64_t numel = 0;
  std::unique_ptr<const View> view;

  /// Returns whether all elements lie inside the storage, and are not many more than it has.
  [[nodiscard]] bool fits() const;
};

/// An array made of pieces that fit, one behind the other. All functions: any thread, several at
/// once.
class ForeignArray {
 public:
  ForeignArray(std::shared_ptr<const ForeignStorages> storages, std::vector<ForeignPiece> pieces);

  [[nodiscard]] std::int64_t numel() const noexcept { return begins_.back(); }
  [[nodiscard]] bool is_of(TensorType type) const noexcept;
  /// Reads elements [begin, end) as fp32; booleans and integers are converted. Throws Error if a
  /// file was changed, or if the type has no fp32 values (complex, float8).
  void read_f32(std::int64_t begin, std::int64_t end, float* out) const;
  /// Reads the same elements as they are stored; all pieces are of one type.
  void read_stored(std::int64_t begin, std::int64_t end, std::span<std::byte> out) const;

 private:
  /// Calls part(piece, first, last) for the elements [first, last) of each piece in [begin, end).
  template <class Part>
  void for_parts(std::int64_t begin, std::int64_t end, const Part& part) const;

  std::shared_ptr<const ForeignStorages> storages_;
  std::vector<ForeignPiece> pieces_;
  std::vector<std::int64_t> begins_;  // of each piece, and the end
};

}  // namespace tandem
