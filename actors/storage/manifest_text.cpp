#include "actors/storage/manifest_text.hpp"

#include <algorithm>
#include <unordered_set>

#include "runtime/util/json_writer.hpp"

namespace tandem {

void check_members(const JsonValue& value, std::size_t count) {
  if (value.object().size() != count) {
    throw value.error(fmt::format("has {} members, not {}", value.object().size(), count));
  }
}

namespace {

constexpr std::string_view kWhere = "checkpoint";
constexpr std::string_view kAdvice = "the checkpoint is damaged, use an older one";
constexpr std::size_t kMostNameBytes = 255;  // of a file system
constexpr std::size_t kMostRank = 32;

// The text ends with its own hash, which is that of everything before the digits.
constexpr std::string_view kBeforeHash = ",\n  \"content_hash\": \"";
constexpr std::string_view kAfterHash = "\"\n}\n";
constexpr std::size_t kHashDigits = 32;

ContentHash hash_of(std::string_view text) {
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(text)));
  return hasher.result();
}

std::uint64_t size_in(const JsonValue& value, std::string_view key) {
  const JsonValue size = value.at(key);
  if (!size.raw().is_int64()) {
    throw size.wrong("an integer of at least 0");
  }
  return static_cast<std::uint64_t>(size.integer(0));
}

ContentHash hash_in(const JsonValue& value) {
  const JsonValue text = value.at("xxh3_128");
  const auto hash = ContentHash::parse(text.string());
  if (!hash) {
    throw text.wrong("a hash of 32 hex digits");
  }
  return *hash;
}

std::string file_name_in(const JsonValue& value) {
  const JsonValue name = value.at("name");
  const std::string_view text = name.string();
  const bool control = std::ranges::any_of(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
  if (text.empty() || text.size() > kMostNameBytes || text.starts_with('.') || control ||
      text.find('/') != std::string_view::npos || text == kManifestName ||
      text == kEarlierSlicesName) {
    throw name.wrong("the name of a file in the checkpoint's folder");
  }
  return std::string(text);
}

TensorType type_in(const JsonValue& value) {
  const JsonValue type = value.at("dtype");
  const auto known = type_named(type.string());
  if (!known) {
    throw type.wrong("a type of safetensors");
  }
  return *known;
}

ManifestTensor read_tensor(const JsonValue& value) {
  ManifestTensor tensor;
  if (const auto finite = value.find("finite")) {  // only where it is false
    if (!finite->raw().is_bool() || finite->raw().get_bool().value_unsafe()) {
      throw finite->wrong("false, or left out");
    }
    tensor.is_finite = false;
  }
  check_members(value, tensor.is_finite ? 6 : 7);
  tensor.name = value.at("name").string();
  tensor.type = type_in(value);
  const JsonValue shape = value.at("shape");
  for (const JsonValue& size : shape.items()) {
    tensor.shape.push_back(size.integer(0));
  }
  if (tensor.shape.size() > kMostRank) {
    throw shape.error(fmt::format("has {} dimensions, at most {}", tensor.shape.size(), kMostRank));
  }
  tensor.begin_byte = size_in(value, "begin_byte");
  tensor.size_bytes = size_in(value, "size_bytes");
  tensor.hash = hash_in(value);
  if (checked_size_bytes(tensor.shape, tensor.type) != tensor.size_bytes) {
    throw value.error(fmt::format("{} elements of {} do not take {} bytes",
                                  shape_text(tensor.shape), name_of(tensor.type),
                                  tensor.size_bytes));
  }
  return tensor;
}

void check_cover(const ManifestFile& file, const JsonValue& value) {
  std::unordered_set<std::string_view> names;
  std::uint64_t end = file.tensors.empty() ? file.size_bytes : file.tensors.front().begin_byte;
  for (const ManifestTensor& tensor : file.tensors) {
    if (!names.insert(tensor.name).second) {
      throw value.error(fmt::format("tensor \"{}\" occurs twice", tensor.name));
    }
    if (tensor.begin_byte != end) {
      throw value.error(fmt::format("tensor \"{}\" begins at byte {}, the one before ends at {}",
                                    tensor.name, tensor.begin_byte, end));
    }
    end += tensor.size_bytes;  // both below 2^63
    if (end > file.size_bytes) {
      break;
    }
  }
  if (end != file.size_bytes) {
    throw value.error(
        fmt::format("its tensors end at byte {}, the file at {}", end, file.size_bytes));
  }
}

ManifestFile read_file_entry(const JsonValue& value) {
  check_members(value, 4);
  ManifestFile file;
  file.name = file_name_in(value);
  file.size_bytes = size_in(value, "size_bytes");
  file.hash = hash_in(value);
  const JsonValue tensors = value.at("tensors");
  std::size_t index = 0;
  for (const simdjson::dom::element tensor : tensors.array()) {
    file.tensors.push_back(read_tensor(tensors.child(tensor, index++)));
  }
  check_cover(file, value);
  return file;
}

TensorPlan read_planned_tensor(const JsonValue& value) {
  check_members(value, 3);
  TensorPlan tensor{.name = std::string(value.at("name").string()), .type = type_in(value)};
  for (const JsonValue& size : value.at("shape").items()) {
    tensor.shape.push_back(size.integer(0));
  }
  if (!checked_size_bytes(tensor.shape, tensor.type)) {
    throw value.error("is larger than a file can be");
  }
  return tensor;
}

void write_tensor(JsonWriter& out, const ManifestTensor& tensor) {
  out.begin_object();
  out.field("name", tensor.name).field("dtype", name_of(tensor.type)).field("shape", tensor.shape);
  out.field("begin_byte", tensor.begin_byte).field("size_bytes", tensor.size_bytes);
  out.field("xxh3_128", tensor.hash.text());
  if (!tensor.is_finite) {
    out.field("finite", false);
  }
  out.end_object();
}

void write_file_entry(std::string& text, const ManifestFile& file) {
  // One line for a file and one for each tensor: a person reads it, and a diff of two shows where
  // they differ.
  text +=
      fmt::format("\n    {{\"name\": {}, \"size_bytes\": {}, \"xxh3_128\": \"{}\", \"tensors\": [",
                  json_quote(file.name), file.size_bytes, file.hash.text());
  for (const ManifestTensor& tensor : file.tensors) {
    JsonWriter line;
    write_tensor(line, tensor);
    text += (&tensor == file.tensors.data() ? "\n      " : ",\n      ") + line.take();
  }
  text += "]}";
}

void check_own_hash(std::string_view text, const std::string& path) {
  const std::size_t tail = kHashDigits + kAfterHash.size();
  const std::string_view before = text.substr(0, text.size() - std::min(tail, text.size()));
  const auto hash = ContentHash::parse(text.substr(before.size(), kHashDigits));
  if (!before.ends_with(kBeforeHash) || !text.ends_with(kAfterHash) || !hash) {
    throw user_error(kWhere, "{} does not end with its content hash; {}", path, kAdvice);
  }
  if (const ContentHash found = hash_of(before); found != *hash) {
    throw user_error(kWhere, "{} has the content hash {}, not {} as it says; {}", path,
                     found.text(), hash->text(), kAdvice);
  }
}

}  // namespace

JsonDocument parse_hashed(const std::string& text, const std::string& path, std::string_view format,
                          std::int64_t version) {
  check_own_hash(text, path);
  JsonDocument document = JsonDocument::parse(
      text, {.where = std::string(kWhere), .file = path, .advice = std::string(kAdvice)});
  const JsonValue root = document.root();
  if (const JsonValue found = root.at("format"); found.string() != format) {
    throw found.wrong(fmt::format("\"{}\"", format));
  }
  if (const JsonValue found = root.at("version"); found.integer() != version) {
    throw found.wrong(fmt::format("version {}", version));
  }
  return document;
}

std::string begin_hashed(std::string_view format, std::int64_t version) {
  return fmt::format("{{\n  \"format\": \"{}\",\n  \"version\": {},\n", format, version);
}

void end_hashed(std::string& text) {
  text += kBeforeHash;
  text += hash_of(text).text();
  text += kAfterHash;
}

std::vector<ManifestFile> read_file_entries(const JsonValue& list) {
  std::vector<ManifestFile> files;
  std::unordered_set<std::string> names;
  for (const JsonValue& file : list.items()) {
    files.push_back(read_file_entry(file));
    if (!names.insert(files.back().name).second) {
      throw file.error(fmt::format("the file {} occurs twice", files.back().name));
    }
  }
  return files;
}

void write_file_entries(std::string& text, const std::vector<ManifestFile>& files) {
  text += "  \"files\": [";
  for (const ManifestFile& file : files) {
    text += &file == files.data() ? "" : ",";
    write_file_entry(text, file);
  }
  text += "]";
}

PlannedFile read_planned_file(const JsonValue& value) {
  check_members(value, 2);
  PlannedFile file{.name = std::string(value.at("name").string())};
  std::unordered_set<std::string> names;
  const JsonValue tensors = value.at("tensors");
  std::size_t index = 0;
  for (const simdjson::dom::element tensor : tensors.array()) {
    file.tensors.push_back(read_planned_tensor(tensors.child(tensor, index++)));
    if (!names.insert(file.tensors.back().name).second) {
      throw value.error(fmt::format("tensor \"{}\" occurs twice", file.tensors.back().name));
    }
  }
  return file;
}

void write_planned_file(std::string& text, const PlannedFile& file) {
  text += fmt::format("\n    {{\"name\": {}, \"tensors\": [", json_quote(file.name));
  for (const TensorPlan& tensor : file.tensors) {
    JsonWriter line;
    line.begin_object();
    line.field("name", tensor.name).field("dtype", name_of(tensor.type));
    line.field("shape", tensor.shape).end_object();
    text += (&tensor == file.tensors.data() ? "\n      " : ",\n      ") + line.take();
  }
  text += "]}";
}

}  // namespace tandem
