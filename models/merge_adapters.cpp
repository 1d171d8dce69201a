#include "models/merge_adapters.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/kernels/finite.hpp"
#include "actors/storage/folder.hpp"
#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "models/io/generation_config.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "models/io/weights_writer.hpp"
#include "models/merged_weights.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kWhere = "merge";
constexpr std::int64_t kPieceElements = 1 << 22;

void append(WeightsWriter& writer, const ParameterSpec& parameter, std::span<const float> values) {
  if (first_not_finite(values.data(), DType::kF32, values.size()) < values.size()) {
    throw user_error(kWhere,
                     "{} with its adapter is not finite; the adapter is damaged or belongs to "
                     "another model",
                     parameter.name);
  }
  writer.append_f32(values);
}

void write_weights(const MergedWeights& merged, const CheckpointReader& base,
                   const fs::path& folder) {
  const std::vector<ParameterSpec> parameters = checkpoint_tensors(merged.config());
  std::vector<TensorPlan> plan;
  plan.reserve(parameters.size());
  for (const ParameterSpec& parameter : parameters) {
    plan.push_back({parameter.name, base.type_of(merged.base_of(parameter.name)), parameter.shape});
  }
  WeightsWriter writer(folder, plan);
  for (const ParameterSpec& parameter : parameters) {
    std::vector<float> values;
    for (std::int64_t begin = 0; begin < parameter.numel(); begin += kPieceElements) {
      const std::int64_t end = std::min(begin + kPieceElements, parameter.numel());
      values.resize(static_cast<std::size_t>(end - begin));
      merged.read(parameter, begin, end, values.data());
      append(writer, parameter, values);
    }
  }
  writer.finish();
}

}  // namespace

MergedAdapters merge_adapters(const AdapterFolder& adapters, const fs::path& base,
                              const fs::path& output) {
  const HfConfig of_base = read_hf_config(base);
  std::string absent = adapters.absent_targets(of_base);
  const auto reader =
      std::make_shared<const CheckpointReader>(CheckpointReader::open(base, of_base));
  const MergedWeights weights(
      {&adapters, [](const AdapterFolder*) {}},  // the caller's
      [reader](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end, float* out) {
        reader->read_f32(parameter.name, begin, end, out);
      },
      of_base);
  const HfConfig& config = weights.config();
  const TensorType type = reader->type_of(checkpoint_tensors(config).front().name);
  AtomicFolder made(output, std::string(kWhere));
  write_hf_config(config, made.temporary(),
                  config.dtype.empty() ? torch_dtype_of(type) : std::string_view(config.dtype));
  // As the adapters were trained: tokens of their own have rows in the merged model.
  const bool splits = has_own_tokenizer(adapters.folder());
  if (splits) {
    check_tokenizer_fits(Tokenizer::load(adapters.folder()), config);
  }
  copy_tokenizer_files(splits ? adapters.folder() : base, made.temporary());
  const bool has_generation = fs::exists(adapters.folder() / "generation_config.json");
  save_generation_config(has_generation ? adapters.folder() : base, made.temporary(),
                         config.eos_token_ids, std::nullopt);
  write_weights(weights, *reader, made.temporary());
  made.commit();
  return {
      .adapted = weights.adapted(), .replaced = weights.replaced(), .absent = std::move(absent)};
}

}  // namespace tandem
