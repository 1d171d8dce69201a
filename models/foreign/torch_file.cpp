#include "models/foreign/torch_file.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <zlib.h>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kWhere = "import";
constexpr std::uint64_t kMostPickleBytes = 64u << 20;
constexpr std::size_t kMostValues = std::size_t{1} << 22;
constexpr std::uint64_t kCheckBytes = 16u << 20;
// The first pickle of the older form: an integer of ten bytes.
constexpr std::string_view kLegacyMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
constexpr std::int64_t kLegacyProtocol = 1001;

/// Folder of the archive in which everything lies; empty if there is none.
std::string prefix_of(const std::vector<ZipEntry>& entries) {
  constexpr std::string_view kPickle = "/data.pkl";
  for (const ZipEntry& entry : entries) {
    if (entry.name.ends_with(kPickle) &&
        entry.name.find('/') == entry.name.size() - kPickle.size()) {
      return entry.name.substr(0, entry.name.find('/') + 1);
    }
  }
  return {};
}

const ZipEntry* find_entry(const std::vector<ZipEntry>& entries, std::string_view name) {
  const auto found = std::ranges::find(entries, name, &ZipEntry::name);
  return found == entries.end() ? nullptr : &*found;
}

template <class Number>
void convert(std::span<const std::byte> bytes, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Number value = 0;
    std::memcpy(&value, bytes.data() + i * sizeof(Number), sizeof(Number));
    out[i] = static_cast<float>(value);
  }
}

/// False for the types without an fp32 value of their own.
bool convert_any(TensorType type, std::span<const std::byte> bytes, std::span<float> out) {
  switch (type) {
    case TensorType::kBool:
    case TensorType::kU8:
      convert<std::uint8_t>(bytes, out);
      return true;
    case TensorType::kI8:
      convert<std::int8_t>(bytes, out);
      return true;
    case TensorType::kU16:
      convert<std::uint16_t>(bytes, out);
      return true;
    case TensorType::kI16:
      convert<std::int16_t>(bytes, out);
      return true;
    case TensorType::kU32:
      convert<std::uint32_t>(bytes, out);
      return true;
    case TensorType::kI32:
      convert<std::int32_t>(bytes, out);
      return true;
    case TensorType::kU64:
      convert<std::uint64_t>(bytes, out);
      return true;
    case TensorType::kI64:
      convert<std::int64_t>(bytes, out);
      return true;
    default:
      if (!is_float(type)) {
        return false;
      }
      convert_to_f32(type, bytes, out);
      return true;
  }
}

}  // namespace

Error TorchFile::error(std::string_view complaint) const {
  return user_error(kWhere, "{}: {}; copy the checkpoint again, or save it anew with torch.save",
                    path_.string(), complaint);
}

std::shared_ptr<const TorchFile> TorchFile::open(const std::filesystem::path& path) {
  std::shared_ptr<TorchFile> out(new TorchFile(path));
  const FileHandle file = FileHandle::open_read(path, kWhere);
  out->size_bytes_ = file.size_bytes(path, kWhere);
  std::string start(std::min<std::uint64_t>(out->size_bytes_, 2), '\0');
  read_exactly(file, 0, std::as_writable_bytes(std::span(start)), path, kWhere);
  if (start == "PK") {
    out->read_zip(file, out->size_bytes_);
  } else if (start.starts_with('\x80')) {
    out->read_legacy(file, out->size_bytes_);
  } else {
    throw out->error("this is no file of torch.save");
  }
  out->map_ = MappedFile(file, out->size_bytes_, path, kWhere);
  return out;
}

void TorchFile::start_reader() {
  reader_.emplace(pickle_, rules_,
                  PickleReader::Options{
                      .where = std::string(kWhere),
                      .file = path_.string(),
                      .complaint = "is refused",
                      .advice = "nothing in it was executed; if you trust its origin, load it in "
                                "Python and save plain tensors",
                      .max_values = kMostValues});
}

void TorchFile::read_zip(const FileHandle& file, std::uint64_t size_bytes) {
  const std::vector<ZipEntry> entries = read_zip_directory(file, size_bytes, path_);
  const std::string prefix = prefix_of(entries);
  for (const ZipEntry& entry : entries) {
    if (prefix.empty() || !entry.name.starts_with(prefix)) {
      throw error(fmt::format("its entry {} is none of torch.save's", printable(entry.name)));
    }
  }
  const auto text_of = [&](const ZipEntry& entry, std::uint64_t limit) {
    if (entry.size > limit) {
      throw error(fmt::format("its entry {} has {} bytes, the limit is {}", printable(entry.name),
                              entry.size, limit));
    }
    std::string text(entry.size, '\0');
    read_exactly(file, entry.begin, std::as_writable_bytes(std::span(text)), path_, kWhere);
    return text;
  };
  if (const ZipEntry* order = find_entry(entries, prefix + "byteorder");
      order != nullptr && text_of(*order, 16) != "little") {
    throw error("it was written on a big-endian machine");
  }
  const ZipEntry* pickle = find_entry(entries, prefix + "data.pkl");
  if (pickle == nullptr) {
    throw error("it holds no data.pkl");
  }
  pickle_ = text_of(*pickle, kMostPickleBytes);
  const auto* bytes = reinterpret_cast<const Bytef*>(pickle_.data());
  if (pickle->crc != 0 && ::crc32(0, bytes, static_cast<uInt>(pickle_.size())) != pickle->crc) {
    throw error("its data.pkl does not fit its checksum");
  }
  start_reader();
  root_ = &reader_->read();
  if (reader_->position() != pickle_.size()) {
    throw reader_->refused("more follows behind its end");
  }
  place_storages(entries, prefix);
}

void TorchFile::place_storages(const std::vector<ZipEntry>& entries, const std::string& prefix) {
  std::unordered_map<std::string_view, const ZipEntry*> by_name;
  for (const ZipEntry& entry : entries) {
    by_name.emplace(entry.name, &entry);
  }
  extents_ = std::vector<Extent>(rules_.storages().size());
  for (std::size_t i = 0; i < extents_.size(); ++i) {
    const TorchStorage& storage = rules_.storages()[i];
    const std::string name = fmt::format("{}data/{}", prefix, storage.key);
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      throw error(fmt::format("its entry {} is missing", printable(name)));
    }
    const ZipEntry& entry = *found->second;
    if (entry.size != storage.size_bytes()) {
      throw error(fmt::format("its entry {} has {} bytes, and its tensors need {}", printable(name),
                              entry.size, storage.size_bytes()));
    }
    extents_[i].begin = entry.begin;
    extents_[i].size = entry.size;
    extents_[i].crc = entry.crc;
  }
}

/// Five pickles (magic number, version, machine, object, keys of the storages), then each storage:
/// eight bytes of length, its elements.
void TorchFile::read_legacy(const FileHandle& file, std::uint64_t size_bytes) {
  pickle_.resize(std::min(size_bytes, kMostPickleBytes));
  read_exactly(file, 0, std::as_writable_bytes(std::span(pickle_)), path_, kWhere);
  start_reader();
  const PickleValue& magic = reader_->read();
  if (!magic.is(Kind::kLong) || magic.text != kLegacyMagic) {
    throw reader_->refused("it is a pickle, and none of torch.save's");
  }
  if (const PickleValue& version = reader_->read(); version.number != kLegacyProtocol) {
    throw reader_->refused("its version is not 1001");
  }
  const PickleValue* order = reader_->read().find("little_endian");
  if (order == nullptr || order->number != 1) {
    throw reader_->refused("it was written on a big-endian machine");
  }
  root_ = &reader_->read();
  place_legacy_storages(file, reader_->read(), size_bytes);
}

void TorchFile::place_legacy_storages(const FileHandle& file, const PickleValue& keys,
                                      std::uint64_t size_bytes) {
  std::unordered_map<std::string_view, std::size_t> by_key;
  for (std::size_t i = 0; i < rules_.storages().size(); ++i) {
    by_key.emplace(rules_.storages()[i].key, i);
  }
  extents_ = std::vector<Extent>(by_key.size());
  std::uint64_t at = reader_->position();
  for (const PickleValue* key : keys.items) {
    const auto found = by_key.find(key->text);
    std::uint64_t numel = 0;
    if (!keys.is(Kind::kList) || found == by_key.end() || size_bytes - at < sizeof(numel)) {
      throw reader_->refused("its storages do not fit its tensors");
    }
    read_exactly(file, at, std::as_writable_bytes(std::span(&numel, 1)), path_, kWhere);
    at += sizeof(numel);
    const TorchStorage& storage = rules_.storages()[found->second];
    if (numel != static_cast<std::uint64_t>(storage.numel) ||
        storage.size_bytes() > size_bytes - at) {
      throw error(
          fmt::format("its storage {} is cut short, or has another size than its tensors "
                      "need",
                      printable(storage.key)));
    }
    extents_[found->second].begin = at;
    extents_[found->second].size = storage.size_bytes();
    at += storage.size_bytes();
    by_key.erase(found);
  }
  if (!by_key.empty() || at != size_bytes) {
    throw error("it holds other storages than its tensors need");
  }
}

const TorchTensor* TorchFile::tensor(const PickleValue& value) const noexcept {
  const bool is_tensor = value.is(Kind::kObject) && value.text == kTorchTensorObject;
  return is_tensor ? &rules_.tensors()[static_cast<std::size_t>(value.number)] : nullptr;
}

void TorchFile::require_whole(bool read) const {
  std::error_code ignored;
  if (!read || std::filesystem::file_size(path_, ignored) < size_bytes_) {
    throw error("it was shortened while in use");
  }
}

/// The checksum of a whole storage, a piece at a time.
void TorchFile::check_once(std::size_t storage) const {
  const Extent& extent = extents_[storage];
  if (extent.crc == 0) {
    return;
  }
  std::call_once(extent.checked, [&] {
    uLong crc = ::crc32(0, nullptr, 0);
    for (std::uint64_t at = 0; at < extent.size; at += kCheckBytes) {
      const std::uint64_t size = std::min(kCheckBytes, extent.size - at);
      require_whole(map_.read(extent.begin + at, size, [&](std::span<const std::byte> bytes) {
        crc = ::crc32(crc, reinterpret_cast<const Bytef*>(bytes.data()),
                      static_cast<uInt>(bytes.size()));
      }));
    }
    if (crc != extent.crc) {
      throw error(fmt::format("its storage {} does not fit its checksum",
                              printable(rules_.storages()[storage].key)));
    }
  });
}

template <class Copy>
void TorchFile::read_part(const TorchTensor& tensor, std::int64_t begin, std::int64_t end,
                          const Copy& copy) const {
  check_once(tensor.storage);
  const std::uint64_t width = bytes_of(tensor.type);
  const auto first = static_cast<std::uint64_t>(tensor.offset + begin);
  require_whole(map_.read(extents_[tensor.storage].begin + first * width,
                          static_cast<std::uint64_t>(end - begin) * width, copy));
}

void TorchFile::read_stored(const TorchTensor& tensor, std::int64_t begin, std::int64_t end,
                            std::span<std::byte> out) const {
  TANDEM_CHECK(0 <= begin && begin <= end && end <= tensor.numel, "elements of this tensor");
  if (begin == end) {
    return;
  }
  const std::size_t width = bytes_of(tensor.type);
  if (tensor.contiguous) {
    read_part(tensor, begin, end, [&](std::span<const std::byte> bytes) {
      std::memcpy(out.data(), bytes.data(), bytes.size());
    });
    return;
  }
  // The elements' places in the storage, counted like an odometer.
  std::vector<std::int64_t> index(tensor.shape.size());
  std::int64_t rest = begin;
  std::int64_t place = tensor.offset;
  for (std::size_t i = index.size(); i-- > 0;) {
    index[i] = rest % tensor.shape[i];
    rest /= tensor.shape[i];
    place += index[i] * tensor.stride[i];
  }
  check_once(tensor.storage);
  const std::byte* const storage = map_.bytes().data() + extents_[tensor.storage].begin;
  const bool whole = MappedFile::survives([&] {
    for (std::int64_t e = 0; e < end - begin; ++e) {
      std::memcpy(out.data() + static_cast<std::size_t>(e) * width,
                  storage + static_cast<std::size_t>(place) * width, width);
      for (std::size_t i = index.size(); i-- > 0;) {
        place += tensor.stride[i];
        if (++index[i] < tensor.shape[i]) {
          break;
        }
        place -= tensor.stride[i] * tensor.shape[i];
        index[i] = 0;
      }
    }
  });
  require_whole(whole);
}

void TorchFile::read_f32(const TorchTensor& tensor, std::int64_t begin, std::int64_t end,
                         float* out) const {
  TANDEM_CHECK(0 <= begin && begin <= end && end <= tensor.numel, "elements of this tensor");
  const std::span<float> target(out, static_cast<std::size_t>(end - begin));
  bool known = true;
  if (tensor.contiguous && !target.empty()) {
    read_part(tensor, begin, end, [&](std::span<const std::byte> bytes) {
      known = convert_any(tensor.type, bytes, target);
    });
  } else if (!target.empty()) {
    std::vector<std::byte> stored(target.size() * bytes_of(tensor.type));
    read_stored(tensor, begin, end, stored);
    known = convert_any(tensor.type, stored, target);
  }
  if (!known) {
    throw error(fmt::format("a tensor of type {} has no fp32 values", name_of(tensor.type)));
  }
}

}  // namespace tandem
