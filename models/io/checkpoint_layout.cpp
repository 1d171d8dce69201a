#include "models/io/checkpoint_layout.hpp"

#include <array>
#include <map>
#include <set>

#include "models/causal_lm.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "checkpoint";
constexpr std::string_view kGpt2Prefix = "transformer.";

/// Norms begin as one, biases as zero, everything else is drawn.
TensorInit init_of(const std::string& name) {
  if (name.ends_with(".bias") || name.ends_with("_bias")) {
    return TensorInit::kZeros;
  }
  const std::string_view owner = std::string_view(name).substr(0, name.rfind('.'));
  const std::string_view last = owner.substr(owner.rfind('.') + 1);
  const bool is_norm = last.ends_with("norm") || last.starts_with("ln_");
  return is_norm ? TensorInit::kOnes : TensorInit::kNormal;
}

/// The name under which the checkpoint holds a parameter; empty if it does not.
std::string stored_name(const Checkpoint& checkpoint, const HfConfig& config,
                        const std::string& name) {
  if (checkpoint.find(name) != nullptr) {
    return name;
  }
  if (config.model_type == "gpt2" && name.starts_with(kGpt2Prefix)) {
    std::string bare = name.substr(kGpt2Prefix.size());
    if (checkpoint.find(bare) != nullptr) {
      return bare;
    }
  }
  return {};
}

/// Tensors that checkpoints carry although they are no parameters: causal masks, a copy of a tied head, frequencies.
bool is_extra(const HfConfig& config, std::string_view name) {
  if (config.tie_word_embeddings && name == "lm_head.weight") {
    return true;
  }
  if (config.model_type == "gpt2") {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  }
  return name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace

std::int64_t CheckpointTensor::numel() const noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    count *= size;
  }
  return count;
}

std::vector<CheckpointTensor> checkpoint_tensors(const HfConfig& config) {
  std::vector<CheckpointTensor> tensors;
  for (const UnitSpec& unit : describe_causal_lm(config).units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      tensors.push_back({parameter.name, parameter.shape, init_of(parameter.name)});
    }
  }
  return tensors;
}

std::int64_t parameter_count(const HfConfig& config) {
  std::int64_t count = 0;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
    count += tensor.numel();
  }
  return count;
}

CheckpointReader CheckpointReader::open(const std::filesystem::path& folder,
                                        const HfConfig& config) {
  CheckpointReader out(Checkpoint::open(folder));
  std::set<std::string> used;
  std::map<TensorType, std::int64_t> elements_of;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
    const std::string stored = stored_name(out.checkpoint_, config, tensor.name);
    if (stored.empty()) {
      throw user_error(kWhere,
                       "{} has no tensor \"{}\" (expected shape {}); config.json and weights do "
                       "not belong together",
                       folder.string(), tensor.name, shape_text(tensor.shape));
    }
    const TensorInfo& found = out.checkpoint_.at(stored);
    if (found.shape != tensor.shape) {
      throw user_error(kWhere,
                       "{}: tensor \"{}\" has shape {}, config.json asks for {}; config.json and "
                       "weights do not belong together",
                       folder.string(), stored, shape_text(found.shape), shape_text(tensor.shape));
    }
    if (!is_float(found.type)) {
      throw user_error(kWhere,
                       "{}: tensor \"{}\" has type {}, weights must be F32, BF16, F16 or F64; take "
                       "the full-size weights",
                       folder.string(), stored, name_of(found.type));
    }
    elements_of[found.type] += tensor.numel();
    used.insert(stored);
    out.stored_name_.emplace(tensor.name, stored);
  }
  for (const std::string& name : out.checkpoint_.names()) {
    if (!used.contains(name) && !is_extra(config, name)) {
      throw user_error(kWhere,
                       "{} has a tensor \"{}\" {} that a {} model with this config.json does not "
                       "have; config.json and weights do not belong together",
                       folder.string(), name, shape_text(out.checkpoint_.at(name).shape),
                       config.model_type);
    }
  }
  std::int64_t most = -1;
  for (const auto& [type, elements] : elements_of) {
    if (elements > most) {
      most = elements;
      out.stored_type_ = type;
    }
  }
  return out;
}

void CheckpointReader::read_f32(std::string_view name, std::int64_t begin, std::int64_t end,
                                float* out) const {
  const auto stored = stored_name_.find(std::string(name));
  TANDEM_CHECK(stored != stored_name_.end(), "only parameters of checkpoint_tensors are read");
  checkpoint_.read_f32(stored->second, begin, end, out);
}

std::vector<TensorPlan> checkpoint_plan(const HfConfig& config, TensorType type) {
  std::vector<TensorPlan> plan;
  for (CheckpointTensor& tensor : checkpoint_tensors(config)) {
    plan.push_back(
        {.name = std::move(tensor.name), .type = type, .shape = std::move(tensor.shape)});
  }
  return plan;
}

TensorType tensor_type_of(std::string_view torch_dtype) {
  for (const TensorType type : {TensorType::kF32, TensorType::kBF16, TensorType::kF16}) {
    if (torch_dtype_of(type) == torch_dtype) {
      return type;
    }
  }
  throw user_error(kWhere, "unknown type \"{}\"; weights are float32, bfloat16 or float16",
                   torch_dtype);
}

std::string_view torch_dtype_of(TensorType type) {
  switch (type) {
    case TensorType::kBF16:
      return "bfloat16";
    case TensorType::kF16:
      return "float16";
    default:
      return "float32";
  }
}

}  // namespace tandem
