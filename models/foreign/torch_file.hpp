// models/foreign/torch_file.hpp — a file of torch.save, zip or the older form, read without torch:
// the restricted pickle reader reads its values, and tensors' elements come from the mapped file.
//
// Invariant: after open() every tensor's storage lies in the file with exactly the size that its
// tensors need. If the file has a checksum of a storage, it is compared before the storage's first
// element is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/storage/mapped_file.hpp"
#include "models/foreign/torch_rules.hpp"
#include "models/foreign/zip_directory.hpp"

namespace tandem {

class TorchFile {
 public:
  /// Throws Error (kUserInput) if the file is not of torch.save, is damaged, or if its pickle holds
  /// an object that is not read.
  static std::shared_ptr<const TorchFile> open(const std::filesystem::path& path);

  TorchFile(const TorchFile&) = delete;
  TorchFile& operator=(const TorchFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Returns the object that was saved; valid while this file object lives.
  [[nodiscard]] const PickleValue& root() const noexcept { return *root_; }
  /// Returns the tensor that a value of this file stands for; nullptr for any other value.
  [[nodiscard]] const TorchTensor* tensor(const PickleValue& value) const noexcept;

  /// Reads elements [begin, end) of a tensor of this file, row-major, as fp32; booleans and
  /// integers are converted. Throws Error if the file was changed, or if the type has no fp32
  /// values (complex, float8). Any thread, several at once.
  void read_f32(const TorchTensor& tensor, std::int64_t begin, std::int64_t end, float* out) const;
  /// Reads the same elements as they are stored; `out` has the size of the elements.
  void read_stored(const TorchTensor& tensor, std::int64_t begin, std::int64_t end,
                   std::span<std::byte> out) const;

  /// "[import] FILE: complaint; do this".
  [[nodiscard]] Error error(std::string_view complaint) const;

 private:
  struct Extent {
    std::uint64_t begin = 0;
    std::uint64_t size = 0;
    std::uint32_t crc = 0;
    mutable std::once_flag checked;
  };

  explicit TorchFile(std::filesystem::path path) : path_(std::move(path)) {}
  void read_zip(const FileHandle& file, std::uint64_t size_bytes);
  void read_legacy(const FileHandle& file, std::uint64_t size_bytes);
  void start_reader();
  void place_storages(const std::vector<ZipEntry>& entries, const std::string& prefix);
  void place_legacy_storages(const FileHandle& file, const PickleValue& keys,
                             std::uint64_t size_bytes);
  void check_once(std::size_t storage) const;
  void require_whole(bool read) const;
  /// Calls copy(bytes) with the bytes of elements [begin, end) of a contiguous tensor.
  template <class Copy>
  void read_part(const TorchTensor& tensor, std::int64_t begin, std::int64_t end,
                 const Copy& copy) const;

  std::filesystem::path path_;
  std::uint64_t size_bytes_ = 0;
  std::string pickle_;
  TorchRules rules_;
  std::optional<PickleReader> reader_;
  const PickleValue* root_ = nullptr;
  MappedFile map_;
  std::vector<Extent> extents_;  // of the storages
};

}  // namespace tandem
