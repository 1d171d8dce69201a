#include "models/foreign/torch_writer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include <zlib.h>

#include "actors/storage/file.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "convert";
constexpr std::int64_t kPieceElements = 1 << 20;
constexpr std::uint64_t kAlignment = 64;  // of storages, as torch.save has it
constexpr std::uint32_t kIn64 = 0xFFFFFFFF;
constexpr std::uint16_t kVersion64 = 45;
// The checksum and the sizes stand behind the data; names are UTF-8.
constexpr std::uint16_t kFlags = 0x0808;

template <class Number>
void put(std::string& out, Number value) {
  char bytes[sizeof(Number)];
  std::memcpy(bytes, &value, sizeof(value));
  out.append(bytes, sizeof(value));
}

std::int64_t numel_of(const TensorSource& source) {
  return std::accumulate(source.shape.begin(), source.shape.end(), std::int64_t{1},
                         std::multiplies<>());
}

std::string_view storage_class(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return "FloatStorage";
    case TensorType::kBF16:
      return "BFloat16Storage";
    case TensorType::kF16:
      return "HalfStorage";
    case TensorType::kF64:
      return "DoubleStorage";
    case TensorType::kI64:
      return "LongStorage";
    case TensorType::kI32:
      return "IntStorage";
    case TensorType::kI16:
      return "ShortStorage";
    case TensorType::kI8:
      return "CharStorage";
    case TensorType::kU8:
      return "ByteStorage";
    case TensorType::kBool:
      return "BoolStorage";
    default:
      throw user_error(kWhere, "tensors of type {} have no storage class in torch; leave them out",
                       name_of(type));
  }
}

/// An archive of stored entries, always with the fields of 64 bits.
class ZipWriter {
 public:
  explicit ZipWriter(const std::filesystem::path& path) : file_(path, std::string(kWhere)) {}

  void begin(std::string name, std::uint64_t alignment) {
    entry_ = {.name = std::move(name), .offset = at_};
    constexpr std::uint64_t kHeaderBytes = 30;
    constexpr std::uint64_t kExtraBytes = 20 + 4;  // sizes of 64 bits, head of the padding
    const std::uint64_t data = at_ + kHeaderBytes + entry_.name.size() + kExtraBytes;
    const std::uint64_t padding = (alignment - data % alignment) % alignment;
    std::string head = "PK\3\4";
    put<std::uint16_t>(head, kVersion64);
    put(head, kFlags);
    put<std::uint16_t>(head, 0);  // stored
    put<std::uint32_t>(head, 0);  // no time
    put<std::uint32_t>(head, 0);  // checksum: later
    put(head, kIn64);
    put(head, kIn64);
    put(head, static_cast<std::uint16_t>(entry_.name.size()));
    put(head, static_cast<std::uint16_t>(kExtraBytes + padding));
    head += entry_.name;
    put<std::uint16_t>(head, 1);
    put<std::uint16_t>(head, 16);
    put<std::uint64_t>(head, 0);
    put<std::uint64_t>(head, 0);
    head += "FB";
    put(head, static_cast<std::uint16_t>(padding));
    head.append(padding, 'Z');
    append(std::as_bytes(std::span(head)));
  }

  void data(std::span<const std::byte> bytes) {
    entry_.crc = static_cast<std::uint32_t>(
        ::crc32_z(entry_.crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
    entry_.size += bytes.size();
    append(bytes);
  }

  void end() {
    std::string tail = "PK\7\x08";
    put(tail, entry_.crc);
    put(tail, entry_.size);
    put(tail, entry_.size);
    append(std::as_bytes(std::span(tail)));
    entries_.push_back(std::move(entry_));
  }

  void entry(std::string name, std::string_view bytes) {
    begin(std::move(name), 1);
    data(std::as_bytes(std::span(bytes)));
    end();
  }

  void commit() {
    const std::uint64_t begin = at_;
    std::string out;
    for (const Entry& entry : entries_) {
      append_central(out, entry);
    }
    const std::uint64_t size = out.size();
    const std::uint64_t end = begin + size;
    const auto count = static_cast<std::uint64_t>(entries_.size());
    out += "PK\6\6";
    put<std::uint64_t>(out, 44);
    put(out, kVersion64);
    put(out, kVersion64);
    put<std::uint64_t>(out, 0);  // one disk
    for (const std::uint64_t value : {count, count, size, begin}) {
      put(out, value);
    }
    out += "PK\6\7";
    put<std::uint32_t>(out, 0);
    put(out, end);
    put<std::uint32_t>(out, 1);
    out += "PK\5\6";
    put<std::uint32_t>(out, 0);
    out.append(12, '\xFF');  // entries, size and place stand above
    put<std::uint16_t>(out, 0);
    append(std::as_bytes(std::span(out)));
    file_.commit();
  }

 private:
  struct Entry {
    std::string name;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    std::uint32_t crc = 0;
  };

  void append(std::span<const std::byte> bytes) {
    file_.append(bytes);
    at_ += bytes.size();
  }

  static void append_central(std::string& out, const Entry& entry) {
    out += "PK\1\2";
    put(out, kVersion64);
    put(out, kVersion64);
    put(out, kFlags);
    put<std::uint16_t>(out, 0);
    put<std::uint32_t>(out, 0);
    put(out, entry.crc);
    put(out, kIn64);
    put(out, kIn64);
    put(out, static_cast<std::uint16_t>(entry.name.size()));
    put<std::uint16_t>(out, 28);
    out.append(10, '\0');  // no comment, first disk, no attributes
    put(out, kIn64);
    out += entry.name;
    put<std::uint16_t>(out, 1);
    put<std::uint16_t>(out, 24);
    put(out, entry.size);
    put(out, entry.size);
    put(out, entry.offset);
  }

  AtomicFile file_;
  std::uint64_t at_ = 0;
  Entry entry_;
  std::vector<Entry> entries_;
};

}  // namespace

TensorSource f32_source(std::vector<std::int64_t> shape, ImportedTensor::ReadF32 read) {
  return {.shape = std::move(shape),
          .read = [read = std::move(read)](std::int64_t begin, std::int64_t end,
                                           std::span<std::byte> out) {
            // The buffers of write_torch_file() are aligned for floats.
            read(begin, end, reinterpret_cast<float*>(out.data()));
          }};
}

TensorSource stored_source(const ImportedTensor& tensor) {
  if (tensor.stored) {
    return {.type = tensor.type, .shape = tensor.shape, .read = tensor.stored};
  }
  return {.type = tensor.type,
          .shape = tensor.shape,
          .read = [read = tensor.master, type = tensor.type](std::int64_t begin, std::int64_t end,
                                                             std::span<std::byte> out) {
            std::vector<float> values(static_cast<std::size_t>(end - begin));
            read(begin, end, values.data());
            convert_from_f32(type, values, out);
          }};
}

void PickleText::integer(std::int64_t value) {
  if (value >= 0 && value < 256) {
    text_ += 'K';
    text_ += static_cast<char>(value);
  } else {
    text_ += "\x8a\x08";
    put(text_, value);
  }
}

void PickleText::real(double value) {
  text_ += 'G';
  put(text_, __builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
}

void PickleText::text(std::string_view value) {
  text_ += 'X';
  put(text_, static_cast<std::uint32_t>(value.size()));
  text_ += value;
}

void PickleText::tuple(std::span<const std::int64_t> values) {
  text_ += '(';
  for (const std::int64_t value : values) {
    integer(value);
  }
  text_ += 't';
}

void PickleText::size(std::span<const std::int64_t> shape) {
  text_ += "ctorch\nSize\n";
  tuple(shape);
  text_ += "\x85R";
}

void PickleText::json(const JsonValue& value) {
  if (value.is_null()) {
    none();
  } else if (value.is_object()) {
    begin_dict();
    for (const auto& [key, member] : value.members()) {
      text(key);
      json(member);
    }
    end_dict();
  } else if (value.is_array()) {
    begin_list();
    for (const JsonValue& item : value.items()) {
      json(item);
    }
    end_list();
  } else if (value.raw().is_bool()) {
    boolean(value.boolean());
  } else if (value.raw().is_string()) {
    text(value.string());
  } else if (value.raw().is_int64()) {
    integer(value.integer());
  } else {
    real(value.number());
  }
}

void PickleText::tensor(TensorSource source) {
  const std::int64_t numel = numel_of(source);
  std::vector<std::int64_t> stride(source.shape.size(), 1);
  for (std::size_t i = stride.size(); i-- > 1;) {
    stride[i - 1] = stride[i] * std::max<std::int64_t>(source.shape[i], 1);
  }
  text_ += "ctorch._utils\n_rebuild_tensor_v2\n((";
  text("storage");
  text_ += fmt::format("ctorch\n{}\n", storage_class(source.type));
  text(std::to_string(sources_.size()));
  text("cpu");
  integer(numel);
  text_ += "tQK";
  text_ += '\0';
  tuple(source.shape);
  tuple(stride);
  text_ += "\x89";
  begin_ordered_dict();
  end_dict();
  text_ += "tR";
  sources_.push_back(std::move(source));
}

void write_torch_file(const std::filesystem::path& path, const PickleText& pickle) {
  ZipWriter zip(path);
  zip.entry("archive/data.pkl", pickle.pickle());
  zip.entry("archive/byteorder", "little");
  std::vector<std::uint64_t> buffer;  // aligned for any element
  for (std::size_t i = 0; i < pickle.sources().size(); ++i) {
    const TensorSource& source = pickle.sources()[i];
    const std::int64_t numel = numel_of(source);
    zip.begin(fmt::format("archive/data/{}", i), kAlignment);
    for (std::int64_t begin = 0; begin < numel; begin += kPieceElements) {
      const std::int64_t end = std::min(begin + kPieceElements, numel);
      const std::size_t size = static_cast<std::size_t>(end - begin) * bytes_of(source.type);
      buffer.resize(size / sizeof(std::uint64_t) + 1);
      const auto bytes = std::as_writable_bytes(std::span(buffer)).first(size);
      source.read(begin, end, bytes);
      zip.data(bytes);
    }
    zip.end();
  }
  zip.entry("archive/version", "3\n");
  zip.commit();
}

}  // namespace tandem
