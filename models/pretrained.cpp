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

/// The folder of a model that is asked for as `name`; where that holds adapters alone it becomes
/// the base model's name, and they go to the options.
fs::path model_folder_of(std::string& name, PretrainedOptions& options) {
  const fs::path adapters = resolve_adapter_folder(name);
  if (!is_adapter_folder(adapters) || fs::exists(fs::path(name) / "config.json") ||
      fs::exists(fs::path(name) / "model" / "config.json")) {
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

void require_no_adapters(const PretrainedOptions& options) {
  if (options.parts.lora.any() || !options.adapters_from.empty()) {
    throw user_error("new tokens",
                     "adapters beside {}'s new rows would not fit the published model, by which "
                     "they are loaded; add the tokens in a run without adapters first",
                     options.add_tokens);
  }
}

}  // namespace

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
  fs::path tokenizer_folder = folder;
  Tokenizer tokenizer = Tokenizer::load(folder);
  const std::vector<std::string> more = tokenizer_config_notes(folder);
  notes.insert(notes.end(), more.begin(), more.end());
  if (!tokenizer.note().empty()) {
    notes.push_back(tokenizer.note());
  }
  check_tokenizer_fits(tokenizer, config);
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
