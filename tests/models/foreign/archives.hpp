// tests/models/foreign/archives.hpp — archives and pickles of torch.save, spelt by hand, so that
// every part of them can be wrong.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::test {

template <class Number>
std::string raw(Number value) {
  std::string out(sizeof(value), '\0');
  std::memcpy(out.data(), &value, sizeof(value));
  return out;
}

struct RawEntry {
  std::string name;
  std::string bytes;
  // Mistakes that a test makes on purpose:
  std::uint16_t method = 0;
  std::string local_name = {};  // another than the directory's
  int shift = 0;                // added to the directory's offset
  int grow = 0;                 // added to the directory's size
};

/// A zip archive of stored entries without checksums.
inline std::string archive(const std::vector<RawEntry>& entries) {
  std::string out;
  std::string directory;
  for (const RawEntry& entry : entries) {
    const auto offset = static_cast<std::uint32_t>(static_cast<int>(out.size()) + entry.shift);
    const auto size = static_cast<std::uint32_t>(static_cast<int>(entry.bytes.size()) + entry.grow);
    const std::string& local = entry.local_name.empty() ? entry.name : entry.local_name;
    const std::string fields = raw<std::uint16_t>(20) + raw<std::uint16_t>(0) + raw(entry.method) +
                               raw<std::uint32_t>(0) + raw<std::uint32_t>(0) + raw(size) +
                               raw(size);
    out += "PK\3\4" + fields + raw(static_cast<std::uint16_t>(local.size())) +
           raw<std::uint16_t>(0) + local + entry.bytes;
    directory += "PK\1\2" + raw<std::uint16_t>(20) + fields +
                 raw(static_cast<std::uint16_t>(entry.name.size())) + std::string(12, '\0') +
                 raw(offset) + entry.name;
  }
  const auto begin = static_cast<std::uint32_t>(out.size());
  const auto count = static_cast<std::uint16_t>(entries.size());
  return out + directory + "PK\5\6" + std::string(4, '\0') + raw(count) + raw(count) +
         raw(static_cast<std::uint32_t>(directory.size())) + raw(begin) + raw<std::uint16_t>(0);
}

inline std::string text(std::string_view value) {
  return "X" + raw(static_cast<std::uint32_t>(value.size())) + std::string(value);
}
inline std::string number(std::int64_t value) { return "\x8a\x08" + raw(value); }
inline std::string tuple(const std::vector<std::int64_t>& values) {
  std::string out = "(";
  for (const std::int64_t value : values) {
    out += number(value);
  }
  return out + "t";
}
inline std::string storage(std::string_view key = "0", std::int64_t numel = 4,
                           std::string_view type = "ctorch\nFloatStorage\n") {
  return "(" + text("storage") + std::string(type) + text(key) + text("cpu") + number(numel) + "tQ";
}
inline std::string tensor(const std::string& stored, std::int64_t offset,
                          const std::vector<std::int64_t>& shape,
                          const std::vector<std::int64_t>& stride) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + stored + number(offset) + tuple(shape) +
         tuple(stride) + "\x89" + "ccollections\nOrderedDict\n)RtR";
}
/// {"weight": a tensor of four elements, "other": `value`}
inline std::string pickle(const std::string& value) {
  return "\x80\2}(" + text("weight") + tensor(storage(), 0, {4}, {1}) + text("other") + value +
         "u.";
}

inline std::vector<RawEntry> entries(const std::string& pickle_bytes) {
  return {{.name = "a/data.pkl", .bytes = pickle_bytes},
          {.name = "a/byteorder", .bytes = "little"},
          {.name = "a/data/0", .bytes = std::string(16, '\x3d')},
          {.name = "a/version", .bytes = "3\n"}};
}

}  // namespace tandem::test
