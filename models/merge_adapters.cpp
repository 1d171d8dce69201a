#include "models/merge_adapters.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "actors/kernels/finite.hpp"
#include "actors/storage/folder.hpp"
#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "models/families/family.hpp"
#include "models/io/generation_config.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "models/io/weights_writer.hpp"
#include "models/transformer/adapters.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kWhere = "merge";
constexpr std::int64_t kPieceElements = 1 << 20;

/// The two matrices of one adapter, fp32.
struct LowRank {
  at::Tensor a, b;  // [rank, in], [out, rank]
  double scale = 1;
  bool input_major = false;  // of the weight that they belong to

  static LowRank read(const AdapterFolder& adapters, const std::string& module,
                      const ParameterSpec& weight, bool input_major) {
    const std::int64_t rank = adapters.lora().rank;
    const std::int64_t in = weight.shape[input_major ? 0 : 1];
    const std::int64_t out = weight.shape[input_major ? 1 : 0];
    LowRank low{at::empty({rank, in}), at::empty({out, rank}), adapters.lora().scale(),
                input_major};
    adapters.read_f32(module + std::string(kAdapterA), 0, low.a.numel(), low.a.data_ptr<float>());
    adapters.read_f32(module + std::string(kAdapterB), 0, low.b.numel(), low.b.data_ptr<float>());
    return low;
  }

  /// `values`, rows [begin, begin + rows) of the weight, plus those of scale B A.
  void add_to(std::int64_t begin, const at::Tensor& values) const {
    const std::int64_t rows = values.size(0);
    const at::Tensor product = input_major ? at::mm(a.narrow(1, begin, rows).t(), b.t())
                                           : at::mm(b.narrow(0, begin, rows), a);
    values.add_(product.mul_(scale));
  }
};

void append(WeightsWriter& writer, const ParameterSpec& parameter, std::span<const float> values) {
  if (first_not_finite(values.data(), DType::kF32, values.size()) < values.size()) {
    throw user_error(kWhere,
                     "{} with its adapter is not finite; the adapter is damaged or belongs to "
                     "another model",
                     parameter.name);
  }
  writer.append_f32(values);
}

/// The parameter's values by `read` in pieces of whole rows, which `change` may change.
template <class Read, class Change>
void copy(WeightsWriter& writer, const ParameterSpec& parameter, Read read, Change change) {
  const std::int64_t rows = parameter.shape[0];
  const std::int64_t width = parameter.numel() / rows;
  const std::int64_t step = std::max<std::int64_t>(1, kPieceElements / width);
  for (std::int64_t begin = 0; begin < rows; begin += step) {
    const std::int64_t count = std::min(step, rows - begin);
    const at::Tensor values = at::empty({count, width});
    read(begin * width, (begin + count) * width, values.data_ptr<float>());
    change(begin, values);
    append(writer, parameter, {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())});
  }
}

MergedAdapters write_weights(const AdapterFolder& adapters, const CheckpointReader& base,
                             const HfConfig& config, const fs::path& folder) {
  const bool input_major = family_of(config).describe(config).block.input_major;
  const std::vector<ParameterSpec> parameters = checkpoint_tensors(config);
  std::vector<TensorPlan> plan;
  plan.reserve(parameters.size());
  for (const ParameterSpec& parameter : parameters) {
    plan.push_back({parameter.name, base.type_of(parameter.name), parameter.shape});
  }
  MergedAdapters merged;
  WeightsWriter writer(folder, plan);
  const auto keep = [](std::int64_t, const at::Tensor&) {};
  for (const ParameterSpec& parameter : parameters) {
    const std::string& name = parameter.name;
    const auto from_base = [&](std::int64_t begin, std::int64_t end, float* out) {
      base.read_f32(name, begin, end, out);
    };
    const std::string module = name.substr(0, name.rfind('.'));
    if (adapters.has(name)) {
      copy(
          writer, parameter,
          [&](std::int64_t begin, std::int64_t end, float* out) {
            adapters.read_f32(name, begin, end, out);
          },
          keep);
      ++merged.replaced;
    } else if (name.ends_with(".weight") && adapters.has(module + std::string(kAdapterA))) {
      const LowRank low = LowRank::read(adapters, module, parameter, input_major);
      copy(writer, parameter, from_base,
           [&](std::int64_t begin, const at::Tensor& values) { low.add_to(begin, values); });
      ++merged.adapted;
    } else {
      copy(writer, parameter, from_base, keep);
    }
  }
  writer.finish();
  return merged;
}

}  // namespace

MergedAdapters merge_adapters(const AdapterFolder& adapters, const fs::path& base,
                              const fs::path& output) {
  const at::NoGradGuard no_grad;
  const HfConfig config = read_hf_config(base);
  adapters.require_fits(make_causal_lm(config, {}, 0, {.lora = adapters.lora()}),
                        config.tie_word_embeddings);
  const CheckpointReader reader = CheckpointReader::open(base, config);
  const TensorType type = reader.type_of(checkpoint_tensors(config).front().name);
  AtomicFolder made(output, std::string(kWhere));
  write_hf_config(config, made.temporary(),
                  config.dtype.empty() ? torch_dtype_of(type) : std::string_view(config.dtype));
  copy_tokenizer_files(base, made.temporary());
  const bool has_own = fs::exists(adapters.folder() / "generation_config.json");
  save_generation_config(has_own ? adapters.folder() : base, made.temporary(), config.eos_token_ids,
                         std::nullopt);
  const MergedAdapters merged = write_weights(adapters, reader, config, made.temporary());
  made.commit();
  return merged;
}

}  // namespace tandem
