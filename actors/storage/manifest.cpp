#include "actors/storage/manifest.hpp"

#include <algorithm>

#include "actors/storage/manifest_text.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr std::string_view kFormat = "tandem checkpoint";
constexpr std::int64_t kVersion = 1;

}  // namespace

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
  }
}

ManifestFile FileHasher::result() {
  finish_tensors();
  TANDEM_CHECK(position_ == file_.size_bytes && tensor_ == file_.tensors.size(),
               "every byte of the file went by");
  file_.hash = of_file_.result();
  return std::move(file_);
}

}  // namespace tandem
