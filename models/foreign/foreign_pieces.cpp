#include "models/foreign/foreign_pieces.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <zlib.h>

#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "import";
constexpr std::uint64_t kCheckBytes = 16u << 20;
// A tensor that repeats elements of a small storage may have this many; without a limit, a file of
// 1 kB would ask for any amount of memory.
constexpr std::int64_t kMostRepeated = 1 << 24;

template <class Number>
void convert(std::span<const std::byte> bytes, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Number value = 0;
    std::memcpy(&value, bytes.data() + i * sizeof(Number), sizeof(Number));
    out[i] = static_cast<float>(value);
  }
}

/// The conversion of integers and booleans to fp32; nullptr for any other type.
auto conversion_of(TensorType type) -> void (*)(std::span<const std::byte>, std::span<float>) {
  switch (type) {
    case TensorType::kBool:
    case TensorType::kU8:
      return convert<std::uint8_t>;
    case TensorType::kI8:
      return convert<std::int8_t>;
    case TensorType::kU16:
      return convert<std::uint16_t>;
    case TensorType::kI16:
      return convert<std::int16_t>;
    case TensorType::kU32:
      return convert<std::uint32_t>;
    case TensorType::kI32:
      return convert<std::int32_t>;
    case TensorType::kU64:
      return convert<std::uint64_t>;
    case TensorType::kI64:
      return convert<std::int64_t>;
    default:
      return nullptr;
  }
}

/// Copies elements [begin, end) of a strided view. Their places in the storage are counted like an
/// odometer.
void copy_view(const ForeignPiece& piece, std::int64_t begin, std::int64_t end, std::byte* out) {
  const ForeignStorage& storage = *piece.storage;
  const auto& [shape, stride] = *piece.view;
  const std::size_t width = bytes_of(piece.type);
  std::vector<std::int64_t> index(shape.size());
  std::int64_t rest = begin;
  std::int64_t place = piece.offset;
  for (std::size_t i = index.size(); i-- > 0;) {
    index[i] = rest % shape[i];
    rest /= shape[i];
    place += index[i] * stride[i];
  }
  const std::byte* const bytes = storage.file->map().bytes().data() + storage.begin;
  storage.file->require_whole(MappedFile::survives([&] {
    for (std::int64_t e = 0; e < end - begin; ++e) {
      std::memcpy(out + static_cast<std::size_t>(e) * width,
                  bytes + static_cast<std::size_t>(place) * width, width);
      for (std::size_t i = index.size(); i-- > 0;) {
        place += stride[i];
        if (++index[i] < shape[i]) {
          break;
        }
        place -= stride[i] * shape[i];
        index[i] = 0;
      }
    }
  }));
}

/// Calls copy(bytes) with elements [begin, end) of a piece without a view.
template <class Copy>
void read_plain(const ForeignPiece& piece, std::int64_t begin, std::int64_t end, const Copy& copy) {
  const std::uint64_t width = bytes_of(piece.type);
  const ForeignStorage& storage = *piece.storage;
  const auto first = static_cast<std::uint64_t>(piece.offset + begin);
  storage.file->require_whole(storage.file->map().read(
      storage.begin + first * width, static_cast<std::uint64_t>(end - begin) * width, copy));
}

}  // namespace

ForeignFile::ForeignFile(std::filesystem::path path, std::uint64_t size_bytes)
    : path_(std::move(path)) {
  const FileHandle file = FileHandle::open_read(path_, kWhere);
  if (file.size_bytes(path_, kWhere) != size_bytes || size_bytes == 0) {
    throw error("it was changed while it was opened");
  }
  map_ = MappedFile(file, size_bytes, path_, kWhere);
}

Error ForeignFile::error(std::string_view complaint) const {
  return user_error(kWhere, "{}: {}; copy the checkpoint again, or save it anew with torch.save",
                    path_.string(), complaint);
}

void ForeignFile::require_whole(bool read) const {
  std::error_code ignored;
  if (!read || std::filesystem::file_size(path_, ignored) < size_bytes()) {
    throw error("it was shortened while in use");
  }
}

void ForeignStorage::check_once() const {
  if (crc == 0) {
    return;
  }
  std::call_once(checked, [&] {
    uLong sum = ::crc32(0, nullptr, 0);
    for (std::uint64_t at = 0; at < size; at += kCheckBytes) {
      const std::uint64_t count = std::min(kCheckBytes, size - at);
      file->require_whole(file->map().read(begin + at, count, [&](std::span<const std::byte> part) {
        sum = ::crc32(sum, reinterpret_cast<const Bytef*>(part.data()),
                      static_cast<uInt>(part.size()));
      }));
    }
    if (sum != crc) {
      throw file->error(fmt::format("its storage at byte {} does not fit its checksum", begin));
    }
  });
}

bool ForeignPiece::fits() const {
  const auto available = static_cast<std::int64_t>(storage->size / bytes_of(type));
  std::int64_t end = 0;
  if (offset < 0 || numel <= 0 || numel > std::max(available, kMostRepeated)) {
    return false;
  }
  if (!view) {
    return !__builtin_add_overflow(offset, numel, &end) && end <= available;
  }
  std::int64_t count = 1;
  std::int64_t last = offset;
  for (std::size_t i = 0; i < view->shape.size(); ++i) {
    std::int64_t step = 0;
    if (view->shape[i] <= 0 || view->stride[i] < 0 ||
        __builtin_mul_overflow(count, view->shape[i], &count) ||
        __builtin_mul_overflow(view->shape[i] - 1, view->stride[i], &step) ||
        __builtin_add_overflow(last, step, &last)) {
      return false;
    }
  }
  return count == numel && last < available;
}

ForeignArray::ForeignArray(std::shared_ptr<const ForeignStorages> storages,
                           std::vector<ForeignPiece> pieces)
    : storages_(std::move(storages)), pieces_(std::move(pieces)), begins_{0} {
  for (const ForeignPiece& piece : pieces_) {
    begins_.push_back(begins_.back() + piece.numel);
  }
}

bool ForeignArray::is_of(TensorType type) const noexcept {
  return std::ranges::all_of(pieces_, [&](const ForeignPiece& p) { return p.type == type; });
}

template <class Part>
void ForeignArray::for_parts(std::int64_t begin, std::int64_t end, const Part& part) const {
  TANDEM_CHECK(0 <= begin && begin <= end && end <= numel(), "elements of this array");
  auto at =
      static_cast<std::size_t>(std::ranges::upper_bound(begins_, begin) - begins_.begin()) - 1;
  for (; begin < end; ++at) {
    const std::int64_t last = std::min(end, begins_[at + 1]);
    pieces_[at].storage->check_once();
    part(pieces_[at], begin - begins_[at], last - begins_[at]);
    begin = last;
  }
}

void ForeignArray::read_stored(std::int64_t begin, std::int64_t end,
                               std::span<std::byte> out) const {
  std::byte* to = out.data();
  for_parts(begin, end, [&](const ForeignPiece& piece, std::int64_t first, std::int64_t last) {
    if (piece.view) {
      copy_view(piece, first, last, to);
    } else {
      read_plain(piece, first, last, [&](std::span<const std::byte> bytes) {
        std::memcpy(to, bytes.data(), bytes.size());
      });
    }
    to += static_cast<std::size_t>(last - first) * bytes_of(piece.type);
  });
}

void ForeignArray::read_f32(std::int64_t begin, std::int64_t end, float* out) const {
  for_parts(begin, end, [&](const ForeignPiece& piece, std::int64_t first, std::int64_t last) {
    const std::span<float> target(out, static_cast<std::size_t>(last - first));
    out += last - first;
    const auto conversion = conversion_of(piece.type);
    if (conversion == nullptr && !is_float(piece.type)) {
      throw piece.storage->file->error(
          fmt::format("a tensor of type {} has no fp32 values", name_of(piece.type)));
    }
    const auto fill = [&](std::span<const std::byte> bytes) {
      conversion == nullptr ? convert_to_f32(piece.type, bytes, target) : conversion(bytes, target);
    };
    if (piece.view) {
      std::vector<std::byte> stored(target.size() * bytes_of(piece.type));
      copy_view(piece, first, last, stored.data());
      fill(stored);
    } else {
      read_plain(piece, first, last, fill);
    }
  });
}

}  // namespace tandem
