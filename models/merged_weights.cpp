#include "models/merged_weights.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "models/families/family.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::string_view kWhere = "adapter";
constexpr std::int64_t kPieceElements = 1 << 20;

HfConfig untied(HfConfig config) {
  config.tie_word_embeddings = false;
  config.json = with_json_member(config.json, "tie_word_embeddings", "false");
  return config;
}

std::vector<float> transposed(const std::vector<float>& values, std::int64_t rows,
                              std::int64_t width) {
  std::vector<float> out(values.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < width; ++j) {
      out[static_cast<std::size_t>(j * rows + i)] = values[static_cast<std::size_t>(i * width + j)];
    }
  }
  return out;
}

}  // namespace

MergedWeights::MergedWeights(std::shared_ptr<const AdapterFolder> adapters, ParameterSource base,
                             HfConfig config)
    : adapters_(std::move(adapters)), base_(std::move(base)), config_(std::move(config)) {
  untie();
  for (ParameterSpec& spec : checkpoint_tensors(config_)) {
    specs_.emplace(spec.name, spec);
  }
  take_whole();
  take_modules();
}

/// A tied base stays tied where both ends are the same; else the head is a matrix of its own, which
/// begins as the embedding.
void MergedWeights::untie() {
  const DecoderSpec spec = family_of(config_).describe(config_);
  if (!spec.output.empty()) {
    return;
  }
  HfConfig apart = untied(config_);
  const std::string head = family_of(apart).describe(apart).output;
  const auto module_at = [&](const std::string& weight) {
    return adapters_->modules().contains(weight.substr(0, weight.rfind('.')));
  };
  const auto whole = [&](const std::string& weight) {
    const auto found = adapters_->whole().find(weight);
    return found == adapters_->whole().end() ? nullptr : found->second;
  };
  const TensorInfo* first = whole(spec.embedding);
  const TensorInfo* last = whole(head);
  bool is_apart = module_at(spec.embedding) || module_at(head);
  if (first != nullptr && last != nullptr) {
    is_apart = is_apart || first->shape != last->shape || values_of(*first) != values_of(*last);
  } else if (first != nullptr || last != nullptr) {
    is_apart = is_apart || adapters_->is_trained_whole(first != nullptr ? spec.embedding : head);
  }
  if (adapters_->keeps_tie()) {
    if (is_apart && (module_at(spec.embedding) || module_at(head))) {
      throw user_error(kWhere,
                       "{} has LoRA on the embedding that is the head, too (ensure_weight_tying), "
                       "which is not supported here; merge it by peft",
                       adapters_->folder().string());
    }
    is_apart = first != nullptr && last != nullptr && is_apart;
  }
  if (is_apart) {
    stands_for_[head] = spec.embedding;
    config_ = std::move(apart);
  } else if (first == nullptr && last != nullptr) {
    stands_for_[spec.embedding] = head;  // of what the file has
  }
}

void MergedWeights::take_whole() {
  for (const auto& [name, tensor] : adapters_->whole()) {
    const auto found = specs_.find(name);
    if (found != specs_.end()) {
      adapters_->require_shape(*tensor, found->second.shape);
      ++replaced_;
    } else if (std::ranges::none_of(stands_for_, [&](auto& one) { return one.second == name; }) &&
               !(config_.tie_word_embeddings && name == "lm_head.weight")) {
      throw user_error(kWhere,
                       "{}: tensor \"{}\" is none of the base model's; adapter and base model do "
                       "not belong together",
                       adapters_->file().path().string(), tensor->name);
    }
  }
}

void MergedWeights::take_modules() {
  const bool input_major = family_of(config_).describe(config_).block.input_major;
  for (const auto& [name, module] : adapters_->modules()) {
    const auto weight = specs_.find(name + ".weight");
    if (weight == specs_.end() || weight->second.shape.size() != 2) {
      throw user_error(kWhere,
                       "{} has adapters of {}, which is no matrix of the base model; adapter and "
                       "base model do not belong together",
                       adapters_->file().path().string(), name);
    }
    const bool is_head = weight->first == "lm_head.weight";
    low_ranks_[weight->first] = low_rank_of(module, name, weight->second, input_major && !is_head);
    if (module.bias == nullptr) {
      continue;
    }
    const auto bias = specs_.find(name + ".bias");
    if (bias == specs_.end()) {
      throw user_error(kWhere,
                       "{} has a bias of lora_B for {} (lora_bias), which has none in the base "
                       "model; the sum has no place there",
                       adapters_->file().path().string(), name);
    }
    adapters_->require_shape(*module.bias, bias->second.shape);
    biases_[bias->first] = {module.scale, values_of(*module.bias)};
  }
}

std::vector<float> MergedWeights::values_of(const TensorInfo& tensor) const {
  std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
  adapters_->file().read_f32(tensor, 0, tensor.numel(), values.data());
  return values;
}

MergedWeights::LowRank MergedWeights::low_rank_of(const AdapterModule& module,
                                                  const std::string& name,
                                                  const ParameterSpec& weight,
                                                  bool input_major) const {
  const std::int64_t rows = weight.shape[0];
  const std::int64_t width = weight.shape[1];
  const bool is_turned = module.on_embedding || input_major;  // A goes with rows
  adapters_->require_shape(*module.a, {module.rank, is_turned ? rows : width});
  adapters_->require_shape(*module.b, {is_turned ? width : rows, module.rank});
  LowRank low{.rank = module.rank, .width = width, .scale = module.scale};
  low.left = values_of(is_turned ? *module.a : *module.b);
  low.right = values_of(is_turned ? *module.b : *module.a);
  if (is_turned) {
    low.left = transposed(low.left, module.rank, rows);
    low.right = transposed(low.right, width, module.rank);
  }
  if (module.magnitude != nullptr) {
    if (module.magnitude->numel() != (is_turned ? width : rows)) {
      throw user_error(kWhere,
                       "{}: tensor \"{}\" has shape {}, and {} needs {} lengths; adapter and base "
                       "model do not belong together",
                       adapters_->file().path().string(), module.magnitude->name,
                       shape_text(module.magnitude->shape), name, is_turned ? width : rows);
    }
    low.by_rows = !is_turned;
    add_magnitudes(low, module, weight);
  }
  return low;
}

/// DoRA: an output's weights are brought to its magnitude. Where outputs are columns their lengths
/// need the whole matrix once.
void MergedWeights::add_magnitudes(LowRank& low, const AdapterModule& module,
                                   const ParameterSpec& weight) const {
  const std::vector<float> magnitudes = values_of(*module.magnitude);
  if (!low.by_rows) {
    std::vector<double> squares(static_cast<std::size_t>(low.width));
    const std::int64_t step = std::max<std::int64_t>(1, kPieceElements / low.width);
    std::vector<float> rows;
    for (std::int64_t begin = 0; begin < weight.shape[0]; begin += step) {
      const std::int64_t end = std::min(begin + step, weight.shape[0]);
      rows.resize(static_cast<std::size_t>((end - begin) * low.width));
      read_rows(low, weight.name, begin, end, rows.data());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        squares[i % squares.size()] += static_cast<double>(rows[i]) * rows[i];
      }
    }
    for (const double square : squares) {
      low.lengths.push_back(std::sqrt(square));
    }
  }
  low.magnitudes.assign(magnitudes.begin(), magnitudes.end());
}

const std::string& MergedWeights::base_of(const std::string& parameter) const {
  const auto found = stands_for_.find(parameter);
  return found != stands_for_.end() && !config_.tie_word_embeddings ? found->second : parameter;
}

void MergedWeights::read_own(const std::string& parameter, std::int64_t begin, std::int64_t end,
                             float* out) const {
  const auto& whole = adapters_->whole();
  auto found = whole.find(parameter);
  const auto other = stands_for_.find(parameter);
  if (found == whole.end() && other != stands_for_.end() && config_.tie_word_embeddings) {
    found = whole.find(other->second);
  }
  if (found != whole.end()) {
    adapters_->file().read_f32(*found->second, begin, end, out);
    return;
  }
  ParameterSpec spec = specs_.at(parameter);
  spec.name = base_of(parameter);
  base_(spec, begin, end, out);
}

void MergedWeights::bring_to_magnitude(const LowRank& low, std::int64_t row,
                                       std::span<float> values) {
  double square = 0;
  for (const float value : values) {
    square += static_cast<double>(value) * value;
  }
  for (std::size_t j = 0; j < values.size(); ++j) {
    const double factor = low.by_rows
                              ? low.magnitudes[static_cast<std::size_t>(row)] / std::sqrt(square)
                              : low.magnitudes[j] / low.lengths[j];
    values[j] = static_cast<float>(factor * static_cast<double>(values[j]));
  }
}

void MergedWeights::read_rows(const LowRank& low, const std::string& parameter, std::int64_t first,
                              std::int64_t last, float* out) const {
  read_own(parameter, first * low.width, last * low.width, out);
  const auto width = static_cast<std::size_t>(low.width);
  const auto rank = static_cast<std::size_t>(low.rank);
  std::vector<float> sum(width);
  for (std::int64_t row = first; row < last; ++row) {
    std::ranges::fill(sum, 0.0F);
    for (std::size_t k = 0; k < rank; ++k) {
      const float left = low.left[static_cast<std::size_t>(row) * rank + k];
      const float* right = low.right.data() + k * width;
      for (std::size_t j = 0; j < width; ++j) {
        sum[j] += left * right[j];
      }
    }
    float* const values = out + static_cast<std::size_t>(row - first) * width;
    const auto scale = static_cast<float>(low.scale);
    for (std::size_t j = 0; j < width; ++j) {
      values[j] += scale * sum[j];
    }
    if (!low.magnitudes.empty()) {
      bring_to_magnitude(low, row, std::span(values, width));
    }
  }
}

void MergedWeights::read(const ParameterSpec& parameter, std::int64_t begin, std::int64_t end,
                         float* out) const {
  if (const auto found = low_ranks_.find(parameter.name); found != low_ranks_.end()) {
    const LowRank& low = found->second;
    const std::int64_t first = begin / low.width;
    const std::int64_t last = (end + low.width - 1) / low.width;
    const std::int64_t step = std::max<std::int64_t>(1, kPieceElements / low.width);
    std::vector<float> rows;
    for (std::int64_t row = first; row < last; row += step) {
      const std::int64_t behind = std::min(row + step, last);
      rows.resize(static_cast<std::size_t>((behind - row) * low.width));
      read_rows(low, parameter.name, row, behind, rows.data());
      const std::int64_t from = std::max(begin, row * low.width);
      const std::int64_t to = std::min(end, behind * low.width);
      std::copy_n(rows.data() + (from - row * low.width), to - from, out + (from - begin));
    }
    return;
  }
  read_own(parameter.name, begin, end, out);
  if (const auto found = biases_.find(parameter.name); found != biases_.end()) {
    for (std::int64_t i = begin; i < end; ++i) {
      out[i - begin] += static_cast<float>(found->second.scale) *
                        found->second.values[static_cast<std::size_t>(i)];
    }
  }
}

ParameterSource source_of(std::shared_ptr<const MergedWeights> merged) {
  return [merged = std::move(merged)](const ParameterSpec& parameter, std::int64_t begin,
                                      std::int64_t end,
                                      float* out) { merged->read(parameter, begin, end, out); };
}

}  // namespace tandem
