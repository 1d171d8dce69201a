#include "actors/checkpoint/slices.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "actors/storage/manifest_text.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {
namespace {

constexpr std::string_view kFormat = "tandem slices";
constexpr std::int64_t kVersion = 1;
constexpr std::size_t kMostDisks = 1 << 16;

/// A number as it is written, and nothing else.
std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t value = -1;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool all = read.ec == std::errc() && read.ptr == text.data() + text.size();
  return all && value >= 0 && std::to_string(value) == text ? std::optional(value) : std::nullopt;
}

TensorPlan read_tensor(const JsonValue& value) {
  check_members(value, 3);
  TensorPlan tensor{.name = std::string(value.at("name").string())};
  const JsonValue type = value.at("dtype");
  const auto known = type_named(type.string());
  if (!known) {
    throw type.wrong("a type of safetensors");
  }
  tensor.type = *known;
  for (const JsonValue& size : value.at("shape").items()) {
    tensor.shape.push_back(size.integer(0));
  }
  if (!checked_size_bytes(tensor.shape, tensor.type)) {
    throw value.error("is larger than a file can be");
  }
  return tensor;
}

PlannedFile read_planned(const JsonValue& value) {
  check_members(value, 2);
  PlannedFile file{.name = std::string(value.at("name").string())};
  std::unordered_set<std::string> names;
  const JsonValue tensors = value.at("tensors");
  std::size_t index = 0;
  for (const simdjson::dom::element tensor : tensors.array()) {
    file.tensors.push_back(read_tensor(tensors.child(tensor, index++)));
    if (!names.insert(file.tensors.back().name).second) {
      throw value.error(fmt::format("tensor \"{}\" occurs twice", file.tensors.back().name));
    }
  }
  return file;
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

void write_planned(std::string& text, const PlannedFile& file) {
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

std::string Slices::json() const {
  std::string text = begin_hashed(kFormat, kVersion);
  text += fmt::format("  \"step\": {},\n  \"save\": \"{}\",\n  \"disk\": {},\n  \"hosts\": [", step,
                      plan.save, plan.disk);
  for (const std::string& host : plan.hosts) {
    text += (&host == plan.hosts.data() ? "" : ", ") + json_quote(host);
  }
  text += "],\n";
  write_file_entries(text, files);
  text += ",\n  \"whole\": [";
  for (const PlannedFile& file : plan.whole) {
    text += &file == plan.whole.data() ? "" : ",";
    write_planned(text, file);
  }
  text += "]";
  end_hashed(text);
  return text;
}

Slices Slices::parse(const std::string& text, const std::string& path) {
  const JsonDocument document = parse_hashed(text, path, kFormat, kVersion);
  const JsonValue root = document.root();
  check_members(root, 9);
  Slices slices{.step = root.at("step").integer(0)};
  const JsonValue save = root.at("save");
  if (!ContentHash::parse(save.string())) {
    throw save.wrong("32 hex digits");
  }
  slices.plan.save = save.string();
  const JsonValue hosts = root.at("hosts");
  if (hosts.array().size() > kMostDisks) {
    throw hosts.error(fmt::format("has more than {} disks", kMostDisks));
  }
  for (const JsonValue& host : hosts.items()) {
    slices.plan.hosts.emplace_back(host.string());
  }
  slices.plan.disk = static_cast<std::uint32_t>(
      root.at("disk").integer(0, static_cast<std::int64_t>(slices.plan.hosts.size()) - 1));
  std::map<std::string, std::size_t> by_name;
  for (const JsonValue& file : root.at("whole").items()) {
    slices.plan.whole.push_back(read_planned(file));
    if (!by_name.emplace(slices.plan.whole.back().name, by_name.size()).second) {
      throw file.error(fmt::format("the file {} occurs twice", slices.plan.whole.back().name));
    }
  }
  const JsonValue files = root.at("files");
  slices.files = read_file_entries(files);
  for (const ManifestFile& file : slices.files) {
    const auto found = by_name.find(file.name);
    check_runs(file, found == by_name.end() ? nullptr : &slices.plan.whole[found->second], files);
  }
  return slices;
}

}  // namespace tandem
