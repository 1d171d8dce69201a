#include "models/pretrained.hpp"

#include <cstdlib>
#include <utility>

#include "actors/storage/file.hpp"
#include "engine/engine.hpp"
#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "models/save_weights.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

fs::path hub_cache() {
  if (const char* cache = std::getenv("HF_HUB_CACHE")) {
    return cache;
  }
  if (const char* home = std::getenv("HF_HOME")) {
    return fs::path(home) / "hub";
  }
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr ? home : ".") / ".cache" / "huggingface" / "hub";
}

/// The newest snapshot of a hub id in the cache (kind: "models" or "datasets"); empty when there is
/// none.
fs::path newest_snapshot(const std::string& kind, const std::string& id) {
  std::string folder = kind + "--" + id;
  for (std::size_t at = folder.find('/'); at != std::string::npos; at = folder.find('/', at)) {
    folder.replace(at, 1, "--");
  }
  const fs::path snapshots = hub_cache() / folder / "snapshots";
  fs::path newest;
  if (fs::is_directory(snapshots)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(snapshots)) {
      if (newest.empty() || fs::last_write_time(entry) > fs::last_write_time(newest)) {
        newest = entry.path();
      }
    }
  }
  return newest;
}

ParameterSource from_checkpoint(const fs::path& folder, const HfConfig& config) {
  const auto reader =
      std::make_shared<const CheckpointReader>(CheckpointReader::open(folder, config));
  return [reader](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end,
                  float* out) { reader->read_f32(parameter.name, begin, end, out); };
}

void copy_generation_config(const fs::path& from, const fs::path& to) {
  constexpr const char* kName = "generation_config.json";
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;
  std::error_code ignored;
  if (fs::is_regular_file(from / kName, ignored)) {
    write_file(to / kName, "save model", read_file(from / kName, "save model", kMostBytes));
  }
}

bool has_weights(const fs::path& folder) {
  return fs::exists(folder / "model.safetensors") ||
         fs::exists(folder / "model.safetensors.index.json");
}

}  // namespace

fs::path resolve_model_folder(const std::string& name) {
  if (fs::is_directory(name)) {
    return name;
  }
  if (const fs::path snapshot = newest_snapshot("models", name); !snapshot.empty()) {
    return snapshot;
  }
  throw user_error("model",
                   "{} is neither a folder nor in the Hugging Face cache {}; give a folder, or "
                   "download it first (./tandem fetch model {})",
                   name, hub_cache().string(), name);
}

fs::path resolve_dataset_file(const std::string& name) {
  if (fs::is_regular_file(name)) {
    return name;
  }
  if (const fs::path snapshot = newest_snapshot("datasets", name); !snapshot.empty()) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(snapshot)) {
      const std::string extension = entry.path().extension().string();
      if (extension == ".json" || extension == ".jsonl") {
        return entry.path();
      }
    }
    throw user_error("dataset", "the cached {} holds no .json or .jsonl file; convert it to one",
                     name);
  }
  throw user_error("dataset",
                   "{} is neither a .json or .jsonl file nor in the Hugging Face cache {}; give a "
                   "file with instruction, input and output, or download it (./tandem fetch "
                   "dataset {})",
                   name, hub_cache().string(), name);
}

ParameterSource random_weights(const HfConfig& config, std::uint64_t seed) {
  return [seed, deviation = config.initializer_range](
             const ParameterSpec& parameter, std::int64_t begin, std::int64_t end, float* out) {
    fill_initial(parameter, seed, deviation, begin, end, out);
  };
}

Pretrained::Pretrained(fs::path folder, HfConfig config, Tokenizer tokenizer,
                       ParameterSource source, const PretrainedOptions& options)
    : folder_(std::move(folder)),
      config_(std::move(config)),
      tokenizer_(std::move(tokenizer)),
      source_(std::move(source)),
      options_(options) {}

Pretrained Pretrained::open(const std::string& name, const PretrainedOptions& options) {
  const fs::path folder = resolve_model_folder(name);
  HfConfig config = read_hf_config(folder);
  Tokenizer tokenizer = Tokenizer::load(folder);
  check_tokenizer_fits(tokenizer, config);
  ParameterSource source = options.may_lack_weights && !has_weights(folder)
                               ? random_weights(config, options.seed)
                               : from_checkpoint(folder, config);
  return {folder, std::move(config), std::move(tokenizer), std::move(source), options};
}

Model Pretrained::model(std::string_view leaf_module) const {
  Model model = make_causal_lm(config_, leaf_module, options_.seed);
  model.source = source_;
  for (UnitSpec& unit : model.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      parameter.frozen = !options_.trains;  // no gradients and no optimizer state then
    }
  }
  return model;
}

void Pretrained::save(Engine& engine, const fs::path& folder,
                      std::optional<TensorType> type) const {
  const TensorType saved = type.value_or(compute_type(engine));
  save_weights(engine, folder, saved, [&](const fs::path& made) {
    write_hf_config(config_, made, torch_dtype_of(saved));
    copy_tokenizer_files(folder_, made);
    copy_generation_config(folder_, made);
  });
}

}  // namespace tandem
