#include "models/pretrained.hpp"

#include <algorithm>
#include <utility>

#include "engine/engine.hpp"
#include "models/adapter_folder.hpp"
#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "models/grown_vocabulary.hpp"
#include "models/hub/hub_paths.hpp"
#include "models/io/folder_members.hpp"
#include "models/io/generation_config.hpp"
#include "models/merged_weights.hpp"
#include "models/save_weights.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

ParameterSource from_checkpoint(const fs::path& folder, const HfConfig& config,
                                std::vector<std::string>& notes) {
  const auto reader =
      std::make_shared<const CheckpointReader>(CheckpointReader::open(folder, config));
  const std::vector<std::string>& more = reader->checkpoint().notes();
  notes.insert(notes.end(), more.begin(), more.end());
  return [reader](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end,
                  float* out) { reader->read_f32(parameter.name, begin, end, out); };
}

bool has_weights(const fs::path& folder) {
  return fs::exists(folder / "model.safetensors") ||
         fs::exists(folder / "model.safetensors.index.json");
}

}  // namespace

ParameterSource random_weights(const HfConfig& config, std::uint64_t seed) {
  return [seed, fresh = fresh_weights(config)](const ParameterSpec& parameter, std::int64_t begin,
                                               std::int64_t end, float* out) {
    fill_initial(parameter, seed, fresh, begin, end, out);
  };
}

namespace {

/// The folder of adapters that is asked for as `name`; empty where that is a model.
fs::path adapters_alone(const std::string& name) {
  const fs::path adapters = resolve_adapter_folder(name);
  const bool has_model = fs::exists(fs::path(name) / "config.json") ||
                         fs::exists(fs::path(name) / "model" / "config.json");
  return has_model || !is_adapter_folder(adapters) ? fs::path() : adapters;
}

/// The folder of a model that is asked for as `name`; where that holds adapters alone it becomes
/// the base model's name, and they go to the options.
fs::path model_folder_of(std::string& name, PretrainedOptions& options) {
  const fs::path adapters = adapters_alone(name);
  if (adapters.empty()) {
    return resolve_model_folder(name);
  }
  const std::string base = AdapterFolder::open(adapters).base_model();
  if (options.trains || base.empty()) {
    throw user_error(
        "model",
        "{} holds adapters without their model; name that, and --lora_from {} to train "
        "them on (or merge them: ./tandem merge {} --into {} --output DIR)",
        adapters.string(), adapters.string(), adapters.string(), base.empty() ? "MODEL" : base);
  }
  options.adapters_from = adapters.string();
  name = base;
  return resolve_model_folder(name);
}

/// Whether both have the same token for each id.
bool split_alike(const Tokenizer& a, const Tokenizer& b) {
  bool same = a.vocab_size() == b.vocab_size();
  for (std::int32_t id = 0; same && id < a.vocab_size(); ++id) {
    same = a.decode({{id}}) == b.decode({{id}});
  }
  return same;
}

/// Returns the folder of the tokenizer: the adapters' own one where they were asked for by name, as
/// AutoTokenizer and ./tandem prepare do; else the model's, with which that of adapters that are
/// trained on (`by_flag`) must agree.
fs::path tokenizer_folder_of(const fs::path& base, const std::string& adapters_name, bool by_flag,
                             std::vector<std::string>& notes) {
  const fs::path adapters =
      adapters_name.empty() ? fs::path() : resolve_adapter_folder(adapters_name);
  if (adapters.empty() || !has_own_tokenizer(adapters)) {
    return base;
  }
  const Tokenizer own = Tokenizer::load(adapters);
  const Tokenizer of_base = Tokenizer::load(base);
  const bool alike = split_alike(own, of_base);
  const std::string sizes =
      fmt::format("{} tokens, and the model's {}", own.vocab_size(), of_base.vocab_size());
  if (by_flag && !alike) {
    throw user_error("adapter",
                     "the tokenizer of {} has {}; merge the adapters (./tandem merge {} --into {} "
                     "--output DIR) and train the merged model, which gets that tokenizer",
                     adapters.string(), sizes, adapters.string(), base.string());
  }
  if (!alike) {
    notes.push_back(
        fmt::format("the tokenizer is that of {}: it has {}", adapters.string(), sizes));
  }
  return by_flag ? base : adapters;
}

void require_no_adapters(const PretrainedOptions& options) {
  if (options.parts.lora.any() || !options.adapters_from.empty()) {
    throw user_error("new tokens",
                     "adapters beside {}'s new rows would not fit the published model, by which "
                     "they are loaded; add the tokens in a run without adapters first",
                     options.add_tokens);
  }
}

}  // namespace

fs::path resolve_tokenizer_folder(const std::string& name) {
  const fs::path adapters = adapters_alone(name);
  if (adapters.empty()) {
    return resolve_model_folder(name);
  }
  return has_own_tokenizer(adapters)
             ? adapters
             : resolve_model_folder(AdapterFolder::open(adapters).base_model());
}

Pretrained::Pretrained(std::string name, fs::path folder, fs::path tokenizer_folder,
                       HfConfig config, Tokenizer tokenizer, ParameterSource source,
                       PretrainedOptions options, std::vector<std::string> notes)
    : name_(std::move(name)),
      folder_(std::move(folder)),
      tokenizer_folder_(std::move(tokenizer_folder)),
      config_(std::move(config)),
      tokenizer_(std::move(tokenizer)),
      source_(std::move(source)),
      options_(std::move(options)),
      notes_(std::move(notes)) {
  if (!options_.adapters_from.empty()) {
    adapters_ = std::make_shared<const AdapterFolder>(
        AdapterFolder::open(resolve_adapter_folder(options_.adapters_from)));
    notes_.insert(notes_.end(), adapters_->notes().begin(), adapters_->notes().end());
    if (std::string absent = adapters_->absent_targets(config_); !absent.empty()) {
      notes_.push_back(std::move(absent));
    }
    use_adapters();
  }
  check_tokenizer_fits(tokenizer_, config_);
}

/// Adapters of all kinds give merged weights; those that can be trained here are a part of the
/// model.
void Pretrained::use_adapters() {
  const std::string beyond = adapters_->beyond_training(config_);
  if (beyond.empty()) {
    options_.parts.lora = adapters_->lora();
    return;
  }
  if (options_.trains) {
    throw user_error("adapter",
                     "{} has {}, which is not trained here; merge it (./tandem merge {} --into {} "
                     "--output DIR) and train the merged model",
                     adapters_->folder().string(), beyond, adapters_->folder().string(), name_);
  }
  merged_ = std::make_shared<const MergedWeights>(adapters_, source_, config_);
  config_ = merged_->config();
  source_ = source_of(merged_);
}

Pretrained Pretrained::open(const std::string& name, const PretrainedOptions& given) {
  PretrainedOptions options = given;
  std::string model_name = name;
  const fs::path folder = model_folder_of(model_name, options);
  std::vector<std::string> notes;
  if (fs::is_directory(model_name)) {
    model_name = fs::absolute(folder).lexically_normal().string();
  } else {
    notes.push_back(resolved_text(model_name, folder));
  }
  HfConfig config = read_hf_config(folder);
  notes.insert(notes.end(), config.notes.begin(), config.notes.end());
  fs::path tokenizer_folder =
      tokenizer_folder_of(folder, options.adapters_from, !given.adapters_from.empty(), notes);
  Tokenizer tokenizer = Tokenizer::load(tokenizer_folder);
  const std::vector<std::string> more = tokenizer_config_notes(tokenizer_folder);
  notes.insert(notes.end(), more.begin(), more.end());
  if (!tokenizer.note().empty()) {
    notes.push_back(tokenizer.note());
  }
  ParameterSource source = options.may_lack_weights && !has_weights(folder)
                               ? random_weights(config, options.seed)
                               : from_checkpoint(folder, config, notes);
  if (!options.add_tokens.empty()) {
    require_no_adapters(options);
    const std::vector<std::string> tokens = read_new_tokens(options.add_tokens);
    const GrownVocabulary vocabulary = {.tokens = tokenizer.vocab_size(),
                                        .new_tokens = std::ssize(tokens),
                                        .rows = config.vocab_size};
    tokenizer_folder = tokenizer_with(folder, tokens);
    tokenizer = Tokenizer::load(tokenizer_folder);
    source = with_new_rows(std::move(source), config, vocabulary);
    grow(config, vocabulary);
  }
  return {std::move(model_name),       folder,
          std::move(tokenizer_folder), std::move(config),
          std::move(tokenizer),        std::move(source),
          std::move(options),          std::move(notes)};
}

Model Pretrained::model(std::string_view leaf_module) const {
  Model model = make_causal_lm(config_, leaf_module, options_.seed, options_.parts);
  model.source = lora().any() ? adapter_source(source_, options_.seed, adapters_) : source_;
  if (adapters_ != nullptr && merged_ == nullptr) {
    adapters_->require_fits(model, config_.tie_word_embeddings);
    if (options_.trains) {
      adapters_->require_copies(model, source_);
    }
  }
  for (UnitSpec& unit : model.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      // no gradients and no optimizer state then
      parameter.frozen = parameter.frozen || !options_.trains;
    }
  }
  return model;
}

std::vector<fs::path> Pretrained::weight_files() const {
  std::vector<fs::path> folders = {folder_};
  if (adapters_ != nullptr) {
    folders.push_back(adapters_->folder());
  }
  std::vector<fs::path> files;
  for (const fs::path& folder : folders) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.is_regular_file() && entry.path().extension() == ".safetensors") {
        files.push_back(entry.path());
      }
    }
  }
  return files;
}

void Pretrained::check_saves_elsewhere(const fs::path& folder) const {
  const fs::path saved = fs::weakly_canonical(folder);
  std::vector<std::pair<fs::path, std::string_view>> sources = {{folder_, "model"}};
  if (adapters_ != nullptr) {
    sources.emplace_back(adapters_->folder(), "adapters");
  }
  for (const auto& [source, what] : sources) {
    // Whether `saved` is the source's folder or one around it.
    if (std::ranges::mismatch(saved, fs::weakly_canonical(source)).in1 == saved.end()) {
      throw user_error("output",
                       "{} would be replaced by the trained {}, and the source {} lies in {}; "
                       "give another output folder",
                       folder.string(), what, what, source.string());
    }
  }
}

void Pretrained::save(Engine& engine, const fs::path& folder, std::optional<TensorType> type,
                      std::optional<std::int32_t> end_token) const {
  const TensorType saved = type.value_or(compute_type(engine));
  if (lora().any()) {
    return save_adapters(engine, folder, saved, lora(), config_, name_, [&](const fs::path& made) {
      save_generation_config(folder_, made, config_.eos_token_ids, end_token);
    });
  }
  save_weights(engine, folder, saved, [&](const fs::path& made) {
    write_hf_config(config_, made, torch_dtype_of(saved));
    copy_tokenizer_files(tokenizer_folder_, made);
    save_generation_config(folder_, made, config_.eos_token_ids, end_token);
  });
}

}  // namespace tandem
