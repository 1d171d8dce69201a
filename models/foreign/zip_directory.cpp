#include "models/foreign/zip_directory.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "models/io/pickle.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "import";
constexpr std::uint64_t kMostDirectoryBytes = 256u << 20;
constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kEnd64Bytes = 56;
constexpr std::uint64_t kLocatorBytes = 20;
constexpr std::uint64_t kCentralBytes = 46;
constexpr std::uint64_t kLocalBytes = 30;
constexpr std::uint32_t kIn64 = 0xFFFFFFFF;  // the value stands in the zip64 field
constexpr std::uint16_t kIn64Short = 0xFFFF;
constexpr std::uint16_t kEncrypted = 1;
constexpr std::uint16_t kDescriptorFollows = 8;  // sizes and checksum stand behind the data

/// Little-endian fields of a part of the file.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint16_t u16(std::size_t at) const { return get<std::uint16_t>(at); }
  [[nodiscard]] std::uint32_t u32(std::size_t at) const { return get<std::uint32_t>(at); }
  [[nodiscard]] std::uint64_t u64(std::size_t at) const { return get<std::uint64_t>(at); }

 private:
  template <class Number>
  [[nodiscard]] Number get(std::size_t at) const {
    Number value = 0;
    std::memcpy(&value, bytes_.data() + at, sizeof(value));
    return value;
  }
  std::string_view bytes_;
};

/// Part of the file that the directory fills.
struct Span {
  std::uint64_t entries = 0;
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  std::uint64_t limit = 0;  // where the records behind the directory begin
};

class DirectoryReader {
 public:
  DirectoryReader(const FileHandle& file, std::uint64_t size_bytes,
                  const std::filesystem::path& path)
      : file_(file), size_(size_bytes), path_(path) {}

  std::vector<ZipEntry> read() {
    const Span span = find_directory();
    const std::string bytes = part(span.begin, span.size);
    std::vector<ZipEntry> entries;
    entries.reserve(span.entries);
    std::uint64_t at = 0;
    for (std::uint64_t i = 0; i < span.entries; ++i) {
      entries.push_back(read_entry(bytes, at));
    }
    if (at != bytes.size()) {
      throw damaged("its directory is longer than its entries");
    }
    check_names(entries);
    find_data(entries, span.begin);
    return entries;
  }

 private:
  struct Place {
    std::uint64_t begin;  // of the local header
    std::uint64_t end;    // of the data
  };

  [[nodiscard]] Error damaged(std::string_view reason) const {
    return user_error(kWhere, "{} is no zip archive of torch.save: {}; copy the file again",
                      path_.string(), reason);
  }

  std::string part(std::uint64_t begin, std::uint64_t size) const {
    if (begin > size_ || size > size_ - begin) {
      throw damaged("a part of it lies outside of the file");
    }
    std::string bytes(size, '\0');
    read_exactly(file_, begin, std::as_writable_bytes(std::span(bytes)), path_, kWhere);
    return bytes;
  }

  /// The record that ends the file; torch.save writes no comment behind it.
  Span find_directory() const {
    if (size_ < kEndBytes) {
      throw damaged("it is cut short");
    }
    const std::uint64_t end_at = size_ - kEndBytes;
    const std::string end = part(end_at, kEndBytes);
    const Fields fields(end);
    if (!end.starts_with("PK\5\6") || fields.u16(20) != 0) {
      throw damaged("it does not end with the archive's directory (cut short, or more follows)");
    }
    Span span{.entries = fields.u16(10),
              .begin = fields.u32(16),
              .size = fields.u32(12),
              .limit = end_at};
    const bool whole = fields.u16(4) == 0 && fields.u16(6) == 0 && fields.u16(8) == fields.u16(10);
    if (!whole) {
      throw damaged("it is one of several parts");
    }
    if (const auto span64 = find_directory64(end_at)) {
      const auto agrees = [](std::uint64_t value, std::uint64_t full, std::uint64_t ones) {
        return value == full || value == ones;
      };
      if (!agrees(span.entries, span64->entries, kIn64Short) ||
          !agrees(span.begin, span64->begin, kIn64) || !agrees(span.size, span64->size, kIn64)) {
        throw damaged("its two directories disagree");
      }
      span = *span64;
    }
    if (span.begin > span.limit || span.size != span.limit - span.begin ||
        span.size > kMostDirectoryBytes || span.entries > span.size / kCentralBytes) {
      throw damaged("its directory does not lie where it says");
    }
    return span;
  }

  /// The record with 64 bits, which torch.save writes for small files, too.
  std::optional<Span> find_directory64(std::uint64_t end_at) const {
    if (end_at < kLocatorBytes + kEnd64Bytes) {
      return std::nullopt;
    }
    const std::string locator = part(end_at - kLocatorBytes, kLocatorBytes);
    if (!locator.starts_with("PK\6\7")) {
      return std::nullopt;
    }
    const std::uint64_t at = Fields(locator).u64(8);
    if (at != end_at - kLocatorBytes - kEnd64Bytes) {
      throw damaged("its zip64 directory does not lie where it says");
    }
    const std::string end = part(at, kEnd64Bytes);
    const Fields fields(end);
    if (!end.starts_with("PK\6\6") || fields.u32(16) != 0 || fields.u32(20) != 0 ||
        fields.u64(24) != fields.u64(32)) {
      throw damaged("its zip64 directory is damaged");
    }
    return Span{
        .entries = fields.u64(32), .begin = fields.u64(48), .size = fields.u64(40), .limit = at};
  }

  ZipEntry read_entry(std::string_view directory, std::uint64_t& at) {
    if (directory.size() - at < kCentralBytes || !directory.substr(at).starts_with("PK\1\2")) {
      throw damaged("its directory is damaged");
    }
    const Fields fields(directory.substr(at));
    const std::uint64_t name_bytes = fields.u16(28);
    const std::uint64_t extra_bytes = fields.u16(30);
    const std::uint64_t total = kCentralBytes + name_bytes + extra_bytes + fields.u16(32);
    if (total > directory.size() - at) {
      throw damaged("its directory is cut short");
    }
    ZipEntry entry{.name = std::string(directory.substr(at + kCentralBytes, name_bytes)),
                   .begin = fields.u32(42),
                   .size = fields.u32(24),
                   .crc = fields.u32(16)};
    std::uint64_t packed = fields.u32(20);
    read_extra64(directory.substr(at + kCentralBytes + name_bytes, extra_bytes), entry, packed);
    if (fields.u16(10) != 0 || packed != entry.size || (fields.u16(8) & kEncrypted) != 0) {
      throw damaged(
          fmt::format("its entry {} is packed or encrypted; torch.save stores entries "
                      "as they are",
                      printable(entry.name)));
    }
    at += total;
    return entry;
  }

  /// The fields of 64 bits stand, in this order, for those that are full of ones.
  void read_extra64(std::string_view extra, ZipEntry& entry, std::uint64_t& packed) const {
    while (extra.size() >= 4) {
      const Fields head(extra);
      const std::size_t size = head.u16(2);
      if (size > extra.size() - 4) {
        break;
      }
      if (head.u16(0) == 1) {
        std::size_t at = 4;
        for (std::uint64_t* value : {&entry.size, &packed, &entry.begin}) {
          if (*value == kIn64) {
            if (at + 8 > size + 4) {
              throw damaged("its zip64 sizes are damaged");
            }
            *value = head.u64(at);
            at += 8;
          }
        }
        return;
      }
      extra.remove_prefix(size + 4);
    }
  }

  void check_names(const std::vector<ZipEntry>& entries) const {
    std::unordered_set<std::string_view> seen;
    for (const ZipEntry& entry : entries) {
      const std::string_view name = entry.name;
      const bool plain = !name.empty() && name.front() != '/' &&
                         name.find('\\') == std::string_view::npos &&
                         name.find('\0') == std::string_view::npos &&
                         fmt::format("/{}/", name).find("/../") == std::string::npos;
      if (!plain) {
        throw damaged(
            fmt::format("its entry \"{}\" leads out of the archive", printable(entry.name)));
      }
      if (!seen.insert(name).second) {
        throw damaged(fmt::format("its entry {} occurs twice", printable(entry.name)));
      }
    }
  }

  /// From the local headers to the data behind them.
  void find_data(std::vector<ZipEntry>& entries, std::uint64_t limit) const {
    std::vector<Place> places;
    for (ZipEntry& entry : entries) {
      const std::string local = part(entry.begin, kLocalBytes);
      const Fields fields(local);
      const std::uint64_t name_bytes = fields.u16(26);
      const std::uint64_t header = entry.begin;
      if (!local.starts_with("PK\3\4") || name_bytes != entry.name.size() ||
          part(header + kLocalBytes, name_bytes) != entry.name || fields.u16(8) != 0 ||
          !sizes_agree(fields, entry)) {
        throw damaged(
            fmt::format("its entry {} and the directory disagree", printable(entry.name)));
      }
      entry.begin = header + kLocalBytes + name_bytes + fields.u16(28);
      if (entry.begin > limit || entry.size > limit - entry.begin) {
        throw damaged(fmt::format("its entry {} lies outside of the file", printable(entry.name)));
      }
      places.push_back({header, entry.begin + entry.size});
    }
    std::ranges::sort(places, {}, &Place::begin);
    for (std::size_t i = 1; i < places.size(); ++i) {
      if (places[i].begin < places[i - 1].end) {
        throw damaged("its entries overlap");
      }
    }
  }

  static bool sizes_agree(const Fields& local, const ZipEntry& entry) {
    const std::uint32_t size = local.u32(22);
    const bool later = (local.u16(6) & kDescriptorFollows) != 0;
    return size == kIn64 || size == entry.size || (later && size == 0);
  }

  const FileHandle& file_;
  std::uint64_t size_;
  const std::filesystem::path& path_;
};

}  // namespace

std::vector<ZipEntry> read_zip_directory(const FileHandle& file, std::uint64_t size_bytes,
                                         const std::filesystem::path& path) {
  return DirectoryReader(file, size_bytes, path).read();
}

}  // namespace tandem
