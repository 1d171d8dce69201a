#include "models/io/checkpoint_layout.hpp"

#include <array>
#include <map>
#include <set>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "checkpoint";
constexpr std::string_view kGpt2Prefix = "transformer.";

class TensorList {
 public:
  void add(std::string name, std::vector<std::int64_t> shape, TensorInit init) {
    tensors.push_back({std::move(name), std::move(shape), init});
  }
  std::vector<CheckpointTensor> tensors;
};

void add_qwen3_block(TensorList& list, const HfConfig& c, std::int64_t layer) {
  const std::string block = fmt::format("model.layers.{}.", layer);
  const auto linear = [&](std::string_view name, std::int64_t out, std::int64_t in, bool bias) {
    list.add(fmt::format("{}{}.weight", block, name), {out, in}, TensorInit::kNormal);
    if (bias) {
      list.add(fmt::format("{}{}.bias", block, name), {out}, TensorInit::kZeros);
    }
  };
  const std::int64_t hidden = c.hidden_size;
  list.add(block + "input_layernorm.weight", {hidden}, TensorInit::kOnes);
  linear("self_attn.q_proj", c.attention_size(), hidden, c.attention_bias);
  linear("self_attn.k_proj", c.key_value_size(), hidden, c.attention_bias);
  linear("self_attn.v_proj", c.key_value_size(), hidden, c.attention_bias);
  linear("self_attn.o_proj", hidden, c.attention_size(), c.attention_bias);
  list.add(block + "self_attn.q_norm.weight", {c.head_dim}, TensorInit::kOnes);
  list.add(block + "self_attn.k_norm.weight", {c.head_dim}, TensorInit::kOnes);
  list.add(block + "post_attention_layernorm.weight", {hidden}, TensorInit::kOnes);
  linear("mlp.gate_proj", c.intermediate_size, hidden, false);
  linear("mlp.up_proj", c.intermediate_size, hidden, false);
  linear("mlp.down_proj", hidden, c.intermediate_size, false);
}

std::vector<CheckpointTensor> qwen3_tensors(const HfConfig& c) {
  TensorList list;
  list.add("model.embed_tokens.weight", {c.vocab_size, c.hidden_size}, TensorInit::kNormal);
  for (std::int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    add_qwen3_block(list, c, layer);
  }
  list.add("model.norm.weight", {c.hidden_size}, TensorInit::kOnes);
  if (!c.tie_word_embeddings) {
    list.add("lm_head.weight", {c.vocab_size, c.hidden_size}, TensorInit::kNormal);
  }
  return std::move(list.tensors);
}

void add_gpt2_block(TensorList& list, const HfConfig& c, std::int64_t layer) {
  const std::string block = fmt::format("transformer.h.{}.", layer);
  const auto norm = [&](std::string_view name) {
    list.add(fmt::format("{}{}.weight", block, name), {c.hidden_size}, TensorInit::kOnes);
    list.add(fmt::format("{}{}.bias", block, name), {c.hidden_size}, TensorInit::kZeros);
  };
  const auto linear = [&](std::string_view name, std::int64_t in, std::int64_t out) {
    list.add(fmt::format("{}{}.weight", block, name), {in, out}, TensorInit::kNormal);
    list.add(fmt::format("{}{}.bias", block, name), {out}, TensorInit::kZeros);
  };
  norm("ln_1");
  linear("attn.c_attn", c.hidden_size, 3 * c.hidden_size);
  linear("attn.c_proj", c.hidden_size, c.hidden_size);
  norm("ln_2");
  linear("mlp.c_fc", c.hidden_size, c.intermediate_size);
  linear("mlp.c_proj", c.intermediate_size, c.hidden_size);
}

std::vector<CheckpointTensor> gpt2_tensors(const HfConfig& c) {
  TensorList list;
  list.add("transformer.wte.weight", {c.vocab_size, c.hidden_size}, TensorInit::kNormal);
  list.add("transformer.wpe.weight", {c.max_position_embeddings, c.hidden_size},
           TensorInit::kNormal);
  for (std::int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    add_gpt2_block(list, c, layer);
  }
  list.add("transformer.ln_f.weight", {c.hidden_size}, TensorInit::kOnes);
  list.add("transformer.ln_f.bias", {c.hidden_size}, TensorInit::kZeros);
  if (!c.tie_word_embeddings) {
    list.add("lm_head.weight", {c.vocab_size, c.hidden_size}, TensorInit::kNormal);
  }
  return std::move(list.tensors);
}

/// The name under which the checkpoint holds a parameter; empty if it does not.
std::string stored_name(const Checkpoint& checkpoint, const HfConfig& config,
                        const std::string& name) {
  if (checkpoint.find(name) != nullptr) {
    return name;
  }
  if (config.family == ModelFamily::kGpt2 && name.starts_with(kGpt2Prefix)) {
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
  if (config.family == ModelFamily::kGpt2) {
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
  TANDEM_CHECK(config.family != ModelFamily::kDescribed, "weights are of families that are built");
  return config.family == ModelFamily::kQwen3 ? qwen3_tensors(config) : gpt2_tensors(config);
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
