#include "models/pretrained.hpp"

#include <algorithm>
#include <utility>

#include "engine/engine.hpp"
#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "models/hub_paths.hpp"
#include "models/io/generation_config.hpp"
#include "models/save_weights.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

ParameterSource from_checkpoint(const fs::path& folder, const HfConfig& config) {
  const auto reader =
      std::make_shared<const CheckpointReader>(CheckpointReader::open(folder, config));
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

void Pretrained::check_saves_elsewhere(const fs::path& folder) const {
  const fs::path source = fs::weakly_canonical(folder_);
  const fs::path saved = fs::weakly_canonical(folder);
  // Whether `saved` is the source's folder or one around it.
  if (std::ranges::mismatch(saved, source).in1 == saved.end()) {
    throw user_error("output",
                     "{} would be replaced by the trained model, and the source model lies in {}; "
                     "give another output folder",
                     folder.string(), folder_.string());
  }
}

void Pretrained::save(Engine& engine, const fs::path& folder, std::optional<TensorType> type,
                      std::optional<std::int32_t> end_token) const {
  const TensorType saved = type.value_or(compute_type(engine));
  save_weights(engine, folder, saved, [&](const fs::path& made) {
    write_hf_config(config_, made, torch_dtype_of(saved));
    copy_tokenizer_files(folder_, made);
    save_generation_config(folder_, made, config_.eos_token_ids, end_token);
  });
}

}  // namespace tandem
