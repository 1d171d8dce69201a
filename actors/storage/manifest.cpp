#include "actors/storage/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "actors/kernels/finite.hpp"
#include "actors/storage/manifest_text.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {
namespace {

constexpr std::string_view kFormat = "tandem checkpoint";
constexpr std::string_view kEarlierFormat = "tandem slices";
constexpr std::int64_t kVersion = 1;
constexpr std::size_t kMostDisks = 1 << 16;

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

// ---- slices

namespace {

/// A number as it is written, and nothing else.
std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t value = -1;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool all = read.ec == std::errc() && read.ptr == text.data() + text.size();
  return all && value >= 0 && std::to_string(value) == text ? std::optional(value) : std::nullopt;
}

/// Every tensor of `file` is a run of one that the whole file has.
void check_runs(const ManifestFile& file, const PlannedFile* whole, const JsonValue& at) {
  if (file.tensors.empty()) {
    return;
  }
  if (whole == nullptr) {
    throw at.error(
        fmt::format("{} holds tensors and is no file of the whole checkpoint", file.name));
  }
  std::unordered_map<std::string_view, const TensorPlan*> known;
  for (const TensorPlan& tensor : whole->tensors) {
    known[tensor.name] = &tensor;
  }
  for (const ManifestTensor& tensor : file.tensors) {
    const auto run = TensorRun::parse(tensor.name);
    const auto found = run ? known.find(run->tensor) : known.end();
    if (found == known.end() || tensor.type != found->second->type ||
        run->end > found->second->numel() ||
        tensor.shape != std::vector<std::int64_t>{run->end - run->begin}) {
      throw at.error(fmt::format("\"{}\" in {} is no run of a tensor of the whole checkpoint",
                                 tensor.name, file.name));
    }
  }
}

/// The members of `block` about the slices whose files are `files`.
ManifestSlices read_slices(const JsonValue& block, const std::vector<ManifestFile>& files) {
  ManifestSlices slices;
  const JsonValue save = block.at("save");
  if (!ContentHash::parse(save.string())) {
    throw save.wrong("32 hex digits");
  }
  slices.save = save.string();
  const JsonValue hosts = block.at("hosts");
  if (hosts.array().size() > kMostDisks) {
    throw hosts.error(fmt::format("has more than {} disks", kMostDisks));
  }
  for (const JsonValue& host : hosts.items()) {
    slices.hosts.emplace_back(host.string());
  }
  slices.disk = static_cast<std::uint32_t>(
      block.at("disk").integer(0, static_cast<std::int64_t>(slices.hosts.size()) - 1));
  std::map<std::string, std::size_t> by_name;
  for (const JsonValue& file : block.at("whole").items()) {
    slices.whole.push_back(read_planned_file(file));
    if (!by_name.emplace(slices.whole.back().name, by_name.size()).second) {
      throw file.error(fmt::format("the file {} occurs twice", slices.whole.back().name));
    }
  }
  for (const ManifestFile& file : files) {
    const auto found = by_name.find(file.name);
    check_runs(file, found == by_name.end() ? nullptr : &slices.whole[found->second], block);
  }
  return slices;
}

void write_slices(std::string& text, const ManifestSlices& slices) {
  text += fmt::format(",\n  \"slices\": {{\"save\": \"{}\", \"disk\": {}, \"hosts\": [",
                      slices.save, slices.disk);
  for (const std::string& host : slices.hosts) {
    text += (&host == slices.hosts.data() ? "" : ", ") + json_quote(host);
  }
  text += "], \"whole\": [";
  for (const PlannedFile& file : slices.whole) {
    text += &file == slices.whole.data() ? "" : ",";
    write_planned_file(text, file);
  }
  text += "]}";
}

}  // namespace

std::string TensorRun::name() const { return fmt::format("{}[{}:{}]", tensor, begin, end); }

std::optional<TensorRun> TensorRun::parse(std::string_view name) {
  const std::size_t open = name.rfind('[');
  if (open == std::string_view::npos || !name.ends_with(']')) {
    return std::nullopt;
  }
  const std::string_view numbers = name.substr(open + 1, name.size() - open - 2);
  const std::size_t colon = std::min(numbers.find(':'), numbers.size());
  const auto begin = number_of(numbers.substr(0, colon));
  const auto end = number_of(numbers.substr(std::min(colon + 1, numbers.size())));
  if (!begin || !end || *begin >= *end) {
    return std::nullopt;
  }
  return TensorRun{.tensor = std::string(name.substr(0, open)), .begin = *begin, .end = *end};
}

// ---- the text

std::string Manifest::json() const {
  std::string text = begin_hashed(kFormat, kVersion);
  text += fmt::format("  \"step\": {},\n", step);
  write_file_entries(text, files);
  if (slices) {
    write_slices(text, *slices);
  }
  end_hashed(text);
  return text;
}

std::string_view Manifest::name_of(std::string_view text) {
  return text.starts_with(begin_hashed(kEarlierFormat, kVersion)) ? kEarlierSlicesName
                                                                  : kManifestName;
}

Manifest Manifest::parse(const std::string& text, const std::string& path) {
  const bool earlier = name_of(text) == kEarlierSlicesName;
  const JsonDocument document =
      parse_hashed(text, path, earlier ? kEarlierFormat : kFormat, kVersion);
  const JsonValue root = document.root();
  Manifest manifest{.step = root.at("step").integer(0),
                    .files = read_file_entries(root.at("files"))};
  if (earlier) {
    check_members(root, 9);
    manifest.slices = read_slices(root, manifest.files);
  } else if (const auto block = root.find("slices")) {
    check_members(root, 6);
    check_members(*block, 4);
    manifest.slices = read_slices(*block, manifest.files);
  } else {
    check_members(root, 5);
  }
  return manifest;
}

// ---- hashes

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
