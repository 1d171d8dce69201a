#include "models/adapter_folder.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/storage/file.hpp"
#include "actors/storage/json.hpp"
#include "models/causal_lm.hpp"
#include "models/families/family.hpp"
#include "models/io/adapter_keys.hpp"
#include "models/io/random_init.hpp"
#include "models/transformer/adapters.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kWhere = "adapter";
constexpr std::uint64_t kMostConfigBytes = 4u << 20;
// Under this name PEFT saves an embedding once more that is the head, too.
constexpr std::string_view kTiedHead = "lm_head.weight";
constexpr std::string_view kPeftVersion = "0.21.2";  // whose files these are like

// Initialisations that leave the base's weights alone, and whose B A is zero.
constexpr std::array<std::string_view, 3> kPlainInits = {"gaussian", "eva", "orthogonal"};

bool is_neutral(const JsonValue& value) {
  const simdjson::dom::element raw = value.raw();
  return value.is_null() || (raw.is_bool() && !value.boolean()) ||
         (value.is_array() && value.array().size() == 0) ||
         (value.is_object() && value.object().size() == 0);
}

/// Throws for a member of no list that asks for something; returns the names of those that are
/// false or empty.
std::vector<std::string> refuse_unknown(const JsonValue& root) {
  std::vector<std::string> neutral;
  const auto is_in = [](const auto& keys, std::string_view key) {
    return std::ranges::find(keys, key) != keys.end();
  };
  for (const auto& [key, value] : root.members()) {
    if (is_in(kReadAdapterKeys, key) || is_in(kHarmlessAdapterKeys, key)) {
      continue;
    }
    if (!is_neutral(value)) {
      throw value.error(fmt::format("{} is {}, which is not supported here", key, value.text()));
    }
    if (!value.is_null() && !is_in(kRefusedAdapterKeys, key)) {
      neutral.emplace_back(key);
    }
  }
  return neutral;
}

std::vector<std::string> strings_or_none(const JsonValue& root, std::string_view key) {
  std::vector<std::string> strings;
  if (const auto list = root.find(key)) {
    for (const JsonValue& item : list->items()) {
      strings.emplace_back(item.string());
    }
  }
  return strings;
}

/// The name of a parameter of adapters in the file.
std::string tensor_name(std::string_view parameter) {
  return fmt::format("{}{}", kAdapterPrefix, parameter);
}

/// The name of an embedding that is the head, too; empty where the head is its own.
std::string tied_embedding(const HfConfig& config) {
  const DecoderSpec spec = family_of(config).describe(config);
  return spec.output.empty() ? spec.embedding : std::string();
}

std::string json_list(std::span<const std::string> strings) {
  if (strings.empty()) {
    return "[]";
  }
  std::string text;
  for (const std::string& string : strings) {
    text += fmt::format("{}\n    {}", text.empty() ? "" : ",", json_quote(string));
  }
  return fmt::format("[{}\n  ]", text);
}

}  // namespace

bool is_adapter_folder(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / kAdapterConfigFile, ignored);
}

fs::path resolve_adapter_folder(const std::string& name) {
  const fs::path of_run = fs::path(name) / "adapter";
  return !is_adapter_folder(name) && is_adapter_folder(of_run) ? of_run : fs::path(name);
}

bool has_own_tokenizer(const fs::path& adapters) {
  std::error_code ignored;
  return fs::exists(adapters / "tokenizer.json", ignored);
}

AdapterFolder AdapterFolder::open(const fs::path& folder) {
  if (!is_adapter_folder(folder)) {
    throw user_error(kWhere, "{} holds no {}; give a folder as PEFT's save_pretrained writes it",
                     folder.string(), kAdapterConfigFile);
  }
  if (!fs::exists(folder / kAdapterWeightsFile)) {
    throw user_error(kWhere, "{} holds no {} (pickle files are never read); save it as safetensors",
                     folder.string(), kAdapterWeightsFile);
  }
  AdapterFolder opened(folder, SafetensorsFile::open(folder / kAdapterWeightsFile));
  opened.read_config();
  opened.find_targets();
  return opened;
}

void AdapterFolder::read_config() {
  const JsonDocument document = JsonDocument::load(
      folder_ / kAdapterConfigFile,
      {.where = std::string(kWhere), .advice = "train the adapter without it, or merge it by peft"},
      kMostConfigBytes);
  const JsonValue root = document.root();
  if (root.at("peft_type").string() != "LORA") {
    throw root.at("peft_type").wrong("\"LORA\"");
  }
  if (const std::vector<std::string> unknown = refuse_unknown(root); !unknown.empty()) {
    notes_.push_back(fmt::format("{} has members that nothing reads: {}",
                                 (folder_ / kAdapterConfigFile).string(),
                                 fmt::join(unknown, ", ")));
  }
  const auto beyond = [this](bool is, std::string_view key) {
    if (is && beyond_training_.empty()) {
      beyond_training_ = key;
    }
  };
  if (const auto bias = root.find("bias")) {
    const std::string_view which = bias->string();
    if (which != "none" && which != "all" && which != "lora_only") {
      throw bias->wrong("\"none\", \"all\" or \"lora_only\"");
    }
    beyond(which != "none", "bias");
  }
  targets_ = AdapterTargets(root);
  read_pattern(root, "rank_pattern", ranks_);
  read_pattern(root, "alpha_pattern", alphas_);
  beyond(!ranks_.empty(), "rank_pattern");
  beyond(!alphas_.empty(), "alpha_pattern");
  uses_dora_ = bool_or(root, "use_dora", false);
  has_lora_bias_ = bool_or(root, "lora_bias", false);
  beyond(uses_dora_, "use_dora");
  beyond(has_lora_bias_, "lora_bias");
  if (const auto init = root.find("init_lora_weights")) {
    draws_absent_ = init->raw().is_bool() && !init->boolean();
    if (!init->raw().is_bool() &&
        std::ranges::find(kPlainInits, init->string()) == kPlainInits.end()) {
      throw init->wrong("true, false or \"gaussian\" (others change the base's weights)");
    }
  }
  lora_.rank = root.at("r").integer(1, std::int64_t{1} << 16);
  const auto alpha = root.find("lora_alpha");
  lora_.alpha = alpha ? alpha->number() : 8;
  const auto dropout = root.find("lora_dropout");
  lora_.dropout = dropout ? dropout->number() : 0;
  lora_.rank_stabilised = bool_or(root, "use_rslora", false);
  lora_.modules_to_save = strings_or_none(root, "modules_to_save");
  keeps_tie_ = bool_or(root, "ensure_weight_tying", false);
  if (const auto base = root.find("base_model_name_or_path")) {
    base_model_ = base->string();
    std::error_code ignored;
    if (const fs::path near = folder_ / base_model_;
        !base_model_.empty() && fs::is_directory(near, ignored)) {
      base_model_ = near.lexically_normal().string();
    }
  }
}

bool AdapterFolder::is_trained_whole(std::string_view parameter) const {
  const std::string_view owner = parameter.substr(0, parameter.rfind('.'));
  return std::ranges::any_of(lora_.modules_to_save,
                             [&](const std::string& module) { return owner.ends_with(module); });
}

std::string AdapterFolder::beyond_training(const HfConfig& config) const {
  if (!beyond_training_.empty()) {
    return beyond_training_;
  }
  const DecoderSpec spec = family_of(config).describe(config);
  const std::vector<std::string> adaptable = adaptable_modules(spec);
  for (const auto& [name, module] : modules_) {
    if (std::ranges::find(adaptable, name) == adaptable.end()) {
      return fmt::format("LoRA on {}", name);
    }
  }
  if (spec.output.empty() && !keeps_tie_ && has(spec.embedding)) {
    return fmt::format("{} apart from the head that it is tied to", spec.embedding);
  }
  if (spec.output.empty() && has(kTiedHead) && !has(spec.embedding)) {
    return fmt::format("{} apart from the embedding that it is tied to", kTiedHead);
  }
  return "";
}

void AdapterFolder::find_targets() {
  for (const TensorInfo& tensor : weights_.tensors()) {
    if (!tensor.name.starts_with(kAdapterPrefix) || !is_float(tensor.type) ||
        tensor.size_bytes == 0) {
      throw user_error(kWhere,
                       "{}: tensor \"{}\" ({} {}) is none of an adapter's, which are float, not "
                       "empty and begin with {}; save the adapter again",
                       weights_.path().string(), tensor.name, name_of(tensor.type),
                       shape_text(tensor.shape), kAdapterPrefix);
    }
    place(tensor);
  }
  for (const auto& [name, module] : modules_) {
    lora_.targets.push_back(name);
  }
  lora_.check();
  complete_modules();
}

const TensorInfo* AdapterFolder::find(std::string_view parameter) const {
  if (const TensorInfo* tensor = weights_.find(tensor_name(parameter))) {
    return tensor;
  }
  const std::size_t part = parameter.rfind(".lora_");
  if (part == std::string_view::npos) {
    return nullptr;
  }
  const std::size_t end = std::min(parameter.find('.', part + 1), parameter.size());
  return weights_.find(fmt::format("{}{}{}", tensor_name(parameter.substr(0, end)), kDefaultName,
                                   parameter.substr(end)));
}

bool AdapterFolder::has(std::string_view parameter) const { return find(parameter) != nullptr; }

void AdapterFolder::read_f32(std::string_view parameter, std::int64_t begin, std::int64_t end,
                             float* out) const {
  const TensorInfo* tensor = find(parameter);
  TANDEM_CHECK(tensor != nullptr, "a parameter is asked for that the folder has");
  weights_.read_f32(*tensor, begin, end, out);
}

void AdapterFolder::require_shape(const TensorInfo& tensor,
                                  const std::vector<std::int64_t>& shape) const {
  if (tensor.shape == shape) {
    return;
  }
  const bool has_other_rows = tensor.shape.size() == 2 && shape.size() == 2 &&
                              tensor.shape[1] == shape[1] &&
                              (tensor.name.find("embed") != std::string::npos ||
                               tensor.name.find("lm_head") != std::string::npos ||
                               tensor.name.find("wte") != std::string::npos);
  if (has_other_rows) {
    throw user_error(kWhere,
                     "{}: tensor \"{}\" has {} rows and the base model has {}: it was trained with "
                     "another vocabulary; use the base model with those tokens (train --add_tokens "
                     "makes one)",
                     weights_.path().string(), tensor.name, tensor.shape[0], shape[0]);
  }
  const bool is_low_rank = tensor.name.find(".lora_") != std::string::npos;
  throw user_error(
      kWhere,
      "{}: tensor \"{}\" has shape {}, {} for {}; adapter and base model do not belong "
      "together",
      weights_.path().string(), tensor.name, shape_text(tensor.shape),
      is_low_rank ? "the base model with r and rank_pattern of adapter_config.json asks"
                  : "the base model asks",
      shape_text(shape));
}

void AdapterFolder::require_fits(const Model& model, bool tied) const {
  std::size_t found = 0;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const TensorInfo* tensor = find(parameter.name);
      found += tensor != nullptr ? 1 : 0;
      if (parameter.frozen && tensor == nullptr) {
        continue;
      }
      if (tensor == nullptr) {
        throw user_error(kWhere,
                         "{} has no tensor \"{}\"; adapter and base model do not belong "
                         "together",
                         weights_.path().string(), tensor_name(parameter.name));
      }
      require_shape(*tensor, parameter.shape);
    }
  }
  const std::string& embedding = model.units.front().parameters.front().name;
  if (tied && has(embedding) && !keeps_tie_) {
    throw user_error(
        kWhere,
        "{} has {} trained apart from the head, and this model has one matrix for both "
        "(tie_word_embeddings); train it with ensure_weight_tying",
        weights_.path().string(), embedding);
  }
  found += tied && has(embedding) && has(kTiedHead) ? 1 : 0;
  if (found != weights_.tensors().size()) {
    throw user_error(kWhere,
                     "{} has {} tensors, of which {} are parameters of the base model; adapter and "
                     "base model do not belong together",
                     weights_.path().string(), weights_.tensors().size(), found);
  }
}

void AdapterFolder::require_copies(const Model& model, const ParameterSource& base) const {
  constexpr std::int64_t kPiece = 1 << 20;
  std::vector<float> ours;
  std::vector<float> saved;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (std::int64_t begin = 0;
           parameter.frozen && has(parameter.name) && begin < parameter.numel(); begin += kPiece) {
        const std::int64_t end = std::min(begin + kPiece, parameter.numel());
        ours.resize(static_cast<std::size_t>(end - begin));
        saved.resize(ours.size());
        base(parameter, begin, end, ours.data());
        read_f32(parameter.name, begin, end, saved.data());
        if (ours != saved) {
          throw user_error(kWhere,
                           "{} has other values of {} than the base model, and it is not in "
                           "modules_to_save; merge the adapter and train the merged model",
                           weights_.path().string(), parameter.name);
        }
      }
    }
  }
}

ParameterSource adapter_source(ParameterSource base, std::uint64_t seed,
                               std::shared_ptr<const AdapterFolder> saved) {
  return [base = std::move(base), seed, saved = std::move(saved)](
             const ParameterSpec& parameter, std::int64_t begin, std::int64_t end, float* out) {
    if (saved != nullptr && saved->has(parameter.name)) {
      saved->read_f32(parameter.name, begin, end, out);
    } else if (parameter.name.ends_with(kAdapterA)) {
      // kaiming_uniform_ with a = sqrt(5): sqrt(6 / (1 + 5) / in)
      const double bound = 1 / std::sqrt(static_cast<double>(parameter.shape[1]));
      fill_uniform(parameter.name, seed, bound, begin, end, out);
    } else if (parameter.name.ends_with(kAdapterB)) {
      std::fill(out, out + (end - begin), 0.0F);
    } else {
      base(parameter, begin, end, out);
    }
  };
}

void save_adapters(Engine& engine, const fs::path& folder, TensorType type, const LoraOptions& lora,
                   const HfConfig& config, const std::string& base_model,
                   const FolderDescription& describe) {
  const SavedPart part = {.file = std::string(kAdapterWeightsFile),
                          .names =
                              [embedding = tied_embedding(config)](const ParameterSpec& parameter) {
                                std::vector<std::string> names;
                                if (!parameter.frozen) {
                                  names.push_back(tensor_name(parameter.name));
                                }
                                if (!parameter.frozen && parameter.name == embedding) {
                                  names.push_back(tensor_name(kTiedHead));
                                }
                                return names;
                              },
                          .is_replaced =
                              [](std::string_view name) {
                                return name == kAdapterWeightsFile || name == kAdapterConfigFile ||
                                       name == "generation_config.json";
                              }};
  save_part(engine, folder, type, part, [&](const fs::path& made) {
    write_file(made / kAdapterConfigFile, "save adapters",
               adapter_config_json(lora, config, base_model));
    if (describe) {
      describe(made);
    }
  });
}

std::string adapter_config_json(const LoraOptions& lora, const HfConfig& config,
                                std::string_view base_model) {
  const DecoderSpec spec = family_of(config).describe(config);
  // Without a head of its own the saved embedding is the head, too.
  const bool ties = !lora.modules_to_save.empty() && config.tie_word_embeddings;
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  const std::string whole = lora.modules_to_save.empty() ? "null" : json_list(lora.modules_to_save);
  return fmt::format(
      R"({{
  "alora_invocation_tokens": null,
  "alpha_pattern": {{}},
  "arrow_config": null,
  "auto_mapping": null,
  "base_model_name_or_path": {base},
  "bias": "none",
  "corda_config": null,
  "ensure_weight_tying": {ties},
  "eva_config": null,
  "exclude_modules": null,
  "fan_in_fan_out": {input_major},
  "inference_mode": true,
  "init_lora_weights": true,
  "kasa_config": null,
  "layer_replication": null,
  "layers_pattern": null,
  "layers_to_transform": null,
  "loftq_config": {{}},
  "lora_alpha": {alpha},
  "lora_bias": false,
  "lora_dropout": {dropout},
  "lora_ga_config": null,
  "megatron_config": null,
  "megatron_core": "megatron.core",
  "modules_to_save": {whole},
  "monteclora_config": null,
  "peft_type": "LORA",
  "peft_version": {version},
  "qalora_group_size": 16,
  "r": {rank},
  "rank_pattern": {{}},
  "revision": null,
  "target_modules": {targets},
  "target_parameters": null,
  "task_type": "CAUSAL_LM",
  "trainable_token_indices": null,
  "use_bdlora": null,
  "use_dora": false,
  "use_qalora": false,
  "use_rslora": {stabilised},
  "velora_config": null
}})",
      fmt::arg("base", json_quote(base_model)), fmt::arg("ties", truth(ties)),
      fmt::arg("input_major", truth(spec.block.input_major)), fmt::arg("alpha", lora.alpha),
      fmt::arg("dropout", lora.dropout == 0 ? "0.0" : fmt::format("{}", lora.dropout)),
      fmt::arg("whole", whole), fmt::arg("version", json_quote(kPeftVersion)),
      fmt::arg("rank", lora.rank), fmt::arg("targets", json_list(saved_targets(spec, lora))),
      fmt::arg("stabilised", truth(lora.rank_stabilised)));
}

}  // namespace tandem
