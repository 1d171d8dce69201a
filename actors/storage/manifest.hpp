// actors/storage/manifest.hpp — manifest.json of a checkpoint: it lists the files and their
// tensors, with the hash of each.
//
// If hosts have disks of their own, a save makes one folder on each disk. The folder has the slices
// that this disk's ranks keep, in files of the same names as in the whole checkpoint, and its
// manifest has a block about them (ManifestSlices). A tensor in such a file is a run of elements of
// one of the checkpoint's tensors, and is named after it: "layer.weight[0:512]". The folder is not
// a checkpoint unless it has every element. Invariant: parse() accepts only texts that json() has
// written, bit for bit (the text contains its own hash), and slices.json of earlier versions, in
// which the manifest of slices was. The files lie directly in the checkpoint's folder, and a file's
// tensors follow one another without gap or overlap up to the file's end. Every tensor of slices is
// a run of a tensor of the whole checkpoint's file of that name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/content_hash.hpp"
#include "actors/storage/safetensors_header.hpp"

namespace tandem {

inline constexpr std::string_view kManifestName = "manifest.json";
// The manifest of slices, as earlier versions called it; it is only read.
inline constexpr std::string_view kEarlierSlicesName = "slices.json";

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

/// Elements [begin, end) of a tensor, row-major.
struct TensorRun {
  std::string tensor;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  /// "layer.weight[0:512]"
  [[nodiscard]] std::string name() const;
  /// Returns the run of such a name; nullopt for any other name.
  [[nodiscard]] static std::optional<TensorRun> parse(std::string_view name);
};

/// One disk's part in a save, the same on its ranks.
struct ManifestSlices {
  std::string save;                // 32 hex digits that identify the save, the same on its disks
  std::uint32_t disk = 0;          // number of this disk
  std::vector<std::string> hosts;  // [disk] the name of a host that has it
  std::vector<PlannedFile> whole;  // the files of the whole checkpoint, the same on all disks
};

struct Manifest {
  std::int64_t step = 0;
  std::vector<ManifestFile> files;       // in this folder
  std::optional<ManifestSlices> slices;  // nullopt: the folder has the whole checkpoint

  /// Returns the text to write.
  [[nodiscard]] std::string json() const;
  /// Error (user input, one line with `path` and the fault) for anything that json() would not
  /// write: another format or version, a changed bit, a name with '/', sizes that do not fit, ...
  static Manifest parse(const std::string& text, const std::string& path);
  /// Returns the name of the file with this text: kManifestName, unless an earlier version wrote
  /// it.
  [[nodiscard]] static std::string_view name_of(std::string_view text);
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
