#include "models/io/generation_config.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "actors/storage/file.hpp"
#include "actors/storage/json.hpp"
#include "models/io/hf_fields.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr const char* kName = "generation_config.json";
constexpr const char* kEnds = "eos_token_id";
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;

std::optional<JsonDocument> load(const fs::path& folder) {
  const fs::path file = folder / kName;
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) {
    return std::nullopt;
  }
  return JsonDocument::load(file, {"generate", file.string(), "correct the file or remove it"},
                            kMostBytes);
}

/// The file's members, with these end tokens.
std::string with_ends(const std::optional<JsonDocument>& document,
                      std::span<const std::int64_t> ends) {
  JsonWriter json(2);
  json.begin_object();
  if (document) {
    for (const auto& [key, value] : document->root().members()) {
      if (key != kEnds) {
        json.key(key).raw(simdjson::minify(value.raw()));
      }
    }
  }
  json.field(kEnds, ends).end_object();
  return json.take() + "\n";
}

}  // namespace

std::vector<std::int64_t> generation_end_tokens(const fs::path& folder) {
  const auto document = load(folder);
  return document ? token_ids(document->root(), kEnds, kMostTokens) : std::vector<std::int64_t>();
}

void save_generation_config(const fs::path& from, const fs::path& to,
                            std::span<const std::int64_t> config_ends,
                            std::optional<std::int32_t> end_token) {
  std::vector<std::int64_t> ends = generation_end_tokens(from);
  if (ends.empty()) {
    ends.assign(config_ends.begin(), config_ends.end());
  }
  if (end_token && std::ranges::find(ends, *end_token) == ends.end()) {
    ends.push_back(*end_token);
    write_file(to / kName, "save model", with_ends(load(from), ends));
  } else if (fs::is_regular_file(from / kName)) {
    write_file(to / kName, "save model", read_file(from / kName, "save model", kMostBytes));
  }
}

}  // namespace tandem
