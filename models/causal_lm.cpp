#include "models/causal_lm.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/ranges.h>

#include "actors/storage/file.hpp"
#include "actors/storage/json.hpp"
#include "models/checkpoint_layout.hpp"
#include "models/families/family.hpp"
#include "models/io/checkpoint.hpp"
#include "models/io/hf_fields.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::uint64_t kMostConfigBytes = 4u << 20;

#define TANDEM_FAMILY_ADDRESS(name) &(name),
constexpr std::array kFamilies = {TANDEM_FAMILIES(TANDEM_FAMILY_ADDRESS)};
#undef TANDEM_FAMILY_ADDRESS

const Family* find_family(std::string_view model_type) {
  const auto* found = std::ranges::find(kFamilies, model_type, &Family::model_type);
  return found == kFamilies.end() ? nullptr : *found;
}

const Family* find_whole(std::string_view model_type) {
  const auto* found = std::ranges::find(kFamilies, model_type, &Family::whole_type);
  return found == kFamilies.end() || model_type.empty() ? nullptr : *found;
}

/// The config.json of the text model that another model holds, whole.
std::string part_of(const JsonValue& whole, const Family& family) {
  const JsonValue part = whole.at("text_config");
  std::string json = simdjson::minify(part.object());
  const auto add = [&](std::string_view key, const std::string& value) {
    if (part.object().at_key(key).error() != simdjson::SUCCESS) {
      json = with_json_member(json, key, value);
    }
  };
  const std::string braced = fmt::format("{{{}}}", family.part_defaults);
  const JsonDocument defaults = JsonDocument::parse(braced, {.where = "model config"});
  for (const auto& [key, value] : defaults.root().members()) {
    add(key, simdjson::minify(value.raw()));
  }
  for (const std::string_view key : {"torch_dtype", "dtype", "eos_token_id", "bos_token_id",
                                     "pad_token_id", "initializer_range"}) {
    if (const auto value = whole.find(key)) {
      add(key, simdjson::minify(value->raw()));
    }
  }
  return with_json_member(json, "model_type", json_quote(family.model_type));
}

LeafModule leaf_of(const HfConfig& config, std::string_view module) {
  const auto leaves = family_of(config).leaves;
  const auto found = std::ranges::find(leaves, module, &LeafName::module);
  if (found != leaves.end()) {
    return found->leaf;
  }
  if (leaves.empty()) {
    throw user_error("model", "leaf module \"{}\": a {} model has no experts; leave it out", module,
                     config.model_type);
  }
  std::vector<std::string_view> known(leaves.size());
  std::ranges::transform(leaves, known.begin(), &LeafName::module);
  throw user_error("model", "leaf module \"{}\" is none of a {} model; use {}", module,
                   config.model_type, fmt::join(known, ", "));
}

}  // namespace

HfConfig parse_hf_config(std::string_view json, std::string_view file) {
  const JsonDocument document = JsonDocument::parse(
      json, {.where = "model config", .file = std::string(file), .advice = "correct config.json"});
  const JsonValue root = document.root();
  const JsonValue model_type = root.at("model_type");
  if (const Family* part = find_whole(model_type.string())) {
    return parse_hf_config(part_of(root, *part), fmt::format("{} text_config", file));
  }
  const Family* family = find_family(model_type.string());
  if (family == nullptr) {
    std::vector<std::string_view> known(kFamilies.size());
    std::ranges::transform(kFamilies, known.begin(), &Family::model_type);
    throw user_error("model config",
                     "{}: model_type \"{}\" is not supported; those that are: {} "
                     "(docs/models.md says how one is added)",
                     file, model_type.string(), fmt::join(known, ", "));
  }
  HfConfig config;
  config.model_type = family->model_type;
  config.json = json;
  const JsonDocument whole = JsonDocument::parse(
      completed_config(json, file, *family, config.notes),
      {.where = "model config",
       .file = std::string(file),
       .advice = fmt::format("correct config.json (model_type {})", family->model_type)});
  family->read_config(whole.root(), config);
  read_common_fields(whole.root(), config);
  return config;
}

std::span<const Family* const> known_families() { return kFamilies; }

HfConfig read_hf_config(const std::filesystem::path& path) {
  const std::filesystem::path file =
      std::filesystem::is_directory(path) ? path / "config.json" : path;
  if (std::error_code ignored; file != path && !std::filesystem::exists(file, ignored)) {
    if (const std::string told = told_by_entries(path); !told.empty()) {
      throw user_error("model config", "there is no config.json, and {}", told);
    }
  }
  HfConfig config =
      parse_hf_config(read_file(file, "model config", kMostConfigBytes), file.string());
  if (file != path) {
    untie_if_stored_apart(config, path);
  }
  return config;
}

const Family& family_of(const HfConfig& config) {
  const Family* family = find_family(config.model_type);
  TANDEM_CHECK(family != nullptr, "a config is read only of a family that is known");
  return *family;
}

Model make_causal_lm(const HfConfig& config, std::string_view leaf_module, std::uint64_t seed,
                     const TrainedParts& parts) {
  DecoderSpec spec = family_of(config).describe(config);
  spec.block.dropout.seed = seed;
  if (!leaf_module.empty()) {
    spec.leaf = leaf_of(config, leaf_module);
  }
  parts.apply(spec, config.model_type);
  return make_decoder(spec);
}

}  // namespace tandem
