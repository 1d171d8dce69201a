#include "actors/storage/safetensors.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <tuple>

#include <fmt/ranges.h>

#include "actors/kernels/finite.hpp"
#include "actors/kernels/reduce.hpp"
#include "actors/storage/json.hpp"
#include "actors/storage/known_content.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "safetensors";
constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::uint64_t kMostRank = 32;

std::string known_types() {
  std::vector<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(TensorType::kC64); ++i) {
    names.push_back(name_of(static_cast<TensorType>(i)));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Throws for a file that is known to be another.
void refuse_other_content(const FileHandle& file, std::uint64_t file_bytes,
                          const std::filesystem::path& path) {
  std::string first(std::min<std::uint64_t>(file_bytes, kTellingBytes), '\0');
  read_exactly(file, 0, std::as_writable_bytes(std::span(first)), path, kWhere);
  if (const std::string_view is = known_content(first); !is.empty()) {
    throw user_error(kWhere, "{} {}", path.string(), is);
  }
}

std::uint64_t header_length(const FileHandle& file, std::uint64_t file_bytes,
                            const std::filesystem::path& path) {
  if (file_bytes < kLengthBytes) {
    throw user_error(kWhere, "{} has {} bytes, too short for a header; copy the file again",
                     path.string(), file_bytes);
  }
  std::array<std::byte, kLengthBytes> raw{};
  read_exactly(file, 0, raw, path, kWhere);
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    length = (length << 8) | std::to_integer<std::uint64_t>(raw[i]);
  }
  if (length > kMostHeaderBytes || length > file_bytes - kLengthBytes) {
    refuse_other_content(file, file_bytes, path);
  }
  if (length > kMostHeaderBytes) {
    throw user_error(kWhere,
                     "{} announces a header of {} bytes, the limit is {}; this is not a "
                     "safetensors file, or a damaged one",
                     path.string(), length, kMostHeaderBytes);
  }
  if (length > file_bytes - kLengthBytes) {
    throw user_error(kWhere,
                     "{} announces a header of {} bytes, but only {} follow; the file is "
                     "truncated, copy it again",
                     path.string(), length, file_bytes - kLengthBytes);
  }
  return length;
}

/// Like JsonValue::integer, but 4.0 is not an integer here: the format's own reader refuses it.
std::int64_t count_of(const JsonValue& value) {
  if (!value.raw().is_int64()) {
    throw value.wrong("an integer of at least 0");
  }
  return value.integer(0);
}

/// A sign outside of strings: what is left of one after count_of() is -0, which the format's own
/// reader takes for a fraction.
bool has_sign(std::string_view json) noexcept {
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && c == '-') {
      return true;
    }
  }
  return false;
}

TensorInfo read_tensor(const JsonValue& value, std::string_view name, std::uint64_t data_bytes) {
  TensorInfo tensor;
  tensor.name = std::string(name);
  const JsonValue type = value.at("dtype");
  const auto known = type_named(type.string());
  if (!known) {
    throw type.wrong(fmt::format("a known type ({})", known_types()));
  }
  tensor.type = *known;
  const JsonValue shape = value.at("shape");
  for (const JsonValue& size : shape.items()) {
    tensor.shape.push_back(count_of(size));
  }
  if (tensor.shape.size() > kMostRank) {
    throw shape.error(
        fmt::format("has {} dimensions, the limit is {}", tensor.shape.size(), kMostRank));
  }
  const JsonValue offsets = value.at("data_offsets");
  const auto pair = offsets.items();
  if (pair.size() != 2) {
    throw offsets.wrong("a pair [begin, end]");
  }
  const auto begin = static_cast<std::uint64_t>(count_of(pair[0]));
  const auto end = static_cast<std::uint64_t>(count_of(pair[1]));
  if (begin > end || end > data_bytes) {
    throw offsets.error(
        fmt::format("[{}, {}] lies outside the file's {} bytes of data", begin, end, data_bytes));
  }
  const auto needed = checked_size_bytes(tensor.shape, tensor.type);
  if (!needed) {
    throw shape.error(fmt::format("{} elements of {} overflow 63 bits", shape_text(tensor.shape),
                                  name_of(tensor.type)));
  }
  if (*needed != end - begin) {
    throw value.error(fmt::format("{} elements of {} take {} bytes, data_offsets give {}",
                                  shape_text(tensor.shape), name_of(tensor.type), *needed,
                                  end - begin));
  }
  tensor.begin_byte = begin;
  tensor.size_bytes = end - begin;
  return tensor;
}

/// The tensors in the order of the data; Error unless they cover it without gap or overlap.
void check_cover(std::vector<TensorInfo>& tensors, std::uint64_t data_bytes,
                 const std::filesystem::path& path) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin_byte, a.size_bytes, a.name) <
           std::tie(b.begin_byte, b.size_bytes, b.name);
  });
  std::uint64_t expected = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin_byte != expected) {
      throw user_error(kWhere,
                       "{}: tensor \"{}\" begins at byte {} of the data, the one before ends at "
                       "{} ({}); the file is damaged, copy it again",
                       path.string(), tensor.name, tensor.begin_byte, expected,
                       tensor.begin_byte < expected ? "they overlap" : "a gap");
    }
    expected += tensor.size_bytes;
  }
  if (expected != data_bytes) {
    throw user_error(kWhere,
                     "{} has {} bytes of data, its tensors end at {}; the file is damaged or "
                     "truncated, copy it again",
                     path.string(), data_bytes, expected);
  }
}

/// The index of the first NaN or infinity, behind whose block nothing is converted; or out.size().
/// A block is looked at and then converted while it lies in a core's cache: memory is read once.
std::size_t convert_finite(TensorType type, std::span<const std::byte> bytes,
                           std::span<float> out) {
  constexpr std::size_t kBlock = std::size_t{1} << 15;
  constexpr std::size_t kPastCachesElements = std::size_t{1} << 18;  // as convert_to_f32 does
  if (type == TensorType::kF64) {  // looked at as what it becomes, since fp32 has less range
    convert_to_f32(type, bytes, out);
    return first_not_finite(out.data(), DType::kF32, out.size());
  }
  const DType stored = type == TensorType::kBF16  ? DType::kBF16
                       : type == TensorType::kF16 ? DType::kF16
                                                  : DType::kF32;
  for (std::size_t begin = 0; begin < out.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, out.size() - begin);
    const auto from = bytes.subspan(begin * bytes_of(type), count * bytes_of(type));
    const std::size_t bad = first_not_finite(from.data(), stored, count);
    if (bad < count) {
      return begin + bad;
    }
    if (out.size() >= kPastCachesElements) {
      widen_past_caches(from.data(), stored, out.data() + begin, count);
    } else {
      convert_to_f32(type, from, out.subspan(begin, count));
    }
  }
  return out.size();
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile out;
  out.path_ = path;
  out.file_ = FileHandle::open_read(path, kWhere);
  const std::uint64_t file_bytes = out.file_.size_bytes(path, kWhere);
  const std::uint64_t length = header_length(out.file_, file_bytes, path);
  const std::uint64_t data_begin = kLengthBytes + length;
  const std::uint64_t data_bytes = file_bytes - data_begin;

  std::string header(length, '\0');
  read_exactly(out.file_, kLengthBytes, std::as_writable_bytes(std::span(header)), path, kWhere);
  if (!header.starts_with('{')) {
    throw user_error(kWhere,
                     "{}: the header does not begin with '{{'; this is not a safetensors file",
                     path.string());
  }
  const JsonDocument document =
      JsonDocument::parse(header, {.where = std::string(kWhere),
                                   .file = path.string() + " (header)",
                                   .advice = "the file is damaged, copy it again"});
  for (const auto& [name, value] : document.root().members()) {
    if (name == "__metadata__" && value.is_null()) {
      continue;
    }
    if (name == "__metadata__") {
      for (const auto& [key, text] : value.members()) {
        out.metadata_.emplace(key, text.string());
      }
    } else {
      out.tensors_.push_back(read_tensor(value, name, data_bytes));
    }
  }
  if (has_sign(header)) {
    throw user_error(kWhere,
                     "{}: a shape or an offset is -0, not an integer of at least 0; the file is "
                     "damaged, copy it again",
                     path.string());
  }
  check_cover(out.tensors_, data_bytes, path);
  for (std::size_t i = 0; i < out.tensors_.size(); ++i) {
    out.tensors_[i].begin_byte += data_begin;
    out.index_.emplace(out.tensors_[i].name, i);
  }
  out.map_ = MappedFile(out.file_, file_bytes, path, kWhere);
  return out;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const TensorInfo& SafetensorsFile::at(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) {
    throw user_error(kWhere, "{} has no tensor \"{}\"; is it the right file?", path_.string(),
                     name);
  }
  return *tensor;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& tensor) const noexcept {
  return map_.bytes().subspan(tensor.begin_byte, tensor.size_bytes);
}

void SafetensorsFile::read_f32(const TensorInfo& tensor, std::int64_t begin, std::int64_t end,
                               float* out) const {
  TANDEM_CHECK(0 <= begin && begin <= end && end <= tensor.numel(), "elements of this tensor");
  if (!is_float(tensor.type)) {
    throw user_error(kWhere,
                     "{}: tensor \"{}\" has type {}, weights must be F32, BF16, F16 or F64; "
                     "convert the checkpoint",
                     path_.string(), tensor.name, name_of(tensor.type));
  }
  const std::span<float> target(out, static_cast<std::size_t>(end - begin));
  const std::uint64_t size = target.size() * bytes_of(tensor.type);
  const std::uint64_t offset =
      tensor.begin_byte + static_cast<std::uint64_t>(begin) * bytes_of(tensor.type);
  std::size_t bad = target.size();
  const auto convert = [&](std::span<const std::byte> bytes) {
    bad = convert_finite(tensor.type, bytes, target);
  };
  if (!map_.read(offset, size, convert) || file_.size_bytes(path_, kWhere) < offset + size) {
    std::vector<std::byte> bytes(size);
    read_exactly(file_, offset, bytes, path_, kWhere);  // says why the mapping could not be read
    convert(bytes);
  }
  if (bad < target.size()) {
    throw user_error(kWhere,
                     "{}: tensor \"{}\" is NaN or infinite at element {}; weights must be finite: "
                     "use another checkpoint",
                     path_.string(), tensor.name, begin + static_cast<std::int64_t>(bad));
  }
}

}  // namespace tandem
