#include "actors/storage/manifest.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "actors/kernels/finite.hpp"
#include "actors/storage/manifest_text.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr std::string_view kFormat = "tandem checkpoint";
constexpr std::int64_t kVersion = 1;

std::optional<DType> floats_of(TensorType type) noexcept {
  switch (type) {
    case TensorType::kF32:
      return DType::kF32;
    case TensorType::kBF16:
      return DType::kBF16;
    case TensorType::kF16:
      return DType::kF16;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string first_not_finite(const std::vector<ManifestFile>& files) {
  for (const ManifestFile& file : files) {
    const auto found = std::ranges::find(file.tensors, false, &ManifestTensor::is_finite);
    if (found != file.tensors.end()) {
      return fmt::format("{}: tensor \"{}\"", file.name, found->name);
    }
  }
  return "";
}

std::string Manifest::json() const {
  std::string text = begin_hashed(kFormat, kVersion);
  text += fmt::format("  \"step\": {},\n", step);
  write_file_entries(text, files);
  end_hashed(text);
  return text;
}

Manifest Manifest::parse(const std::string& text, const std::string& path) {
  const JsonDocument document = parse_hashed(text, path, kFormat, kVersion);
  const JsonValue root = document.root();
  check_members(root, 5);
  return {.step = root.at("step").integer(0), .files = read_file_entries(root.at("files"))};
}

void FileHasher::add(std::span<const std::byte> bytes) {
  TANDEM_CHECK(bytes.size() <= file_.size_bytes - position_, "no more bytes than the file has");
  while (!bytes.empty()) {
    finish_tensors();
    std::uint64_t next = file_.size_bytes;
    bool in_tensor = false;
    if (tensor_ < file_.tensors.size()) {
      const ManifestTensor& tensor = file_.tensors[tensor_];
      in_tensor = position_ >= tensor.begin_byte;
      next = in_tensor ? tensor.begin_byte + tensor.size_bytes : tensor.begin_byte;
    }
    const auto piece =
        bytes.first(std::min<std::uint64_t>({bytes.size(), next - position_, kPieceBytes}));
    of_file_.add(piece);
    if (in_tensor) {
      of_tensor_.add(piece);
      look_at_values(file_.tensors[tensor_], piece);
    }
    position_ += piece.size();
    bytes = bytes.subspan(piece.size());
  }
}

/// Those that end where the file has got to; one without elements ends where it begins.
void FileHasher::finish_tensors() {
  for (; tensor_ < file_.tensors.size(); ++tensor_) {
    ManifestTensor& tensor = file_.tensors[tensor_];
    if (position_ != tensor.begin_byte + tensor.size_bytes) {
      return;
    }
    tensor.hash = of_tensor_.result();
    of_tensor_.reset();
    tensor.is_finite = std::exchange(is_finite_, true);
    begun_bytes_ = 0;
  }
}

/// Pieces may end within a value.
void FileHasher::look_at_values(const ManifestTensor& tensor, std::span<const std::byte> bytes) {
  const std::optional<DType> type = floats_of(tensor.type);
  if (!type || !is_finite_) {
    return;
  }
  const std::size_t size = bytes_of(*type);
  if (begun_bytes_ > 0) {
    const auto rest = bytes.first(std::min(bytes.size(), size - begun_bytes_));
    std::ranges::copy(rest, begun_value_.begin() + static_cast<std::ptrdiff_t>(begun_bytes_));
    begun_bytes_ += rest.size();
    bytes = bytes.subspan(rest.size());
    if (begun_bytes_ < size) {
      return;
    }
    begun_bytes_ = 0;
    is_finite_ = first_not_finite(begun_value_.data(), *type, 1) == 1;
  }
  const std::size_t whole = bytes.size() / size;
  is_finite_ = is_finite_ && first_not_finite(bytes.data(), *type, whole) == whole;
  const auto begun = bytes.subspan(whole * size);
  std::ranges::copy(begun, begun_value_.begin());
  begun_bytes_ = begun.size();
}

ManifestFile FileHasher::result() {
  finish_tensors();
  TANDEM_CHECK(position_ == file_.size_bytes && tensor_ == file_.tensors.size(),
               "every byte of the file went by");
  file_.hash = of_file_.result();
  return std::move(file_);
}

}  // namespace tandem
