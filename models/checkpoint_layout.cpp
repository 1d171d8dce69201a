#include "models/checkpoint_layout.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "actors/kernels/finite.hpp"
#include "actors/storage/json.hpp"
#include "models/causal_lm.hpp"
#include "models/families/family.hpp"
#include "models/io/mxfp4.hpp"
#include "models/io/random_init.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "checkpoint";
// Behind the name of a parameter that is packed in four bits.
constexpr std::string_view kBlocks = "_blocks";
constexpr std::string_view kScales = "_scales";

constexpr std::string_view kHead = "lm_head.weight";
// Modules that other tasks put on a model: values of tokens, rewards, classes.
constexpr std::array<std::string_view, 7> kOtherHeads = {
    "v_head.",     "value_head.",          "score.", "reward_head.", "classifier.",
    "qa_outputs.", "multiple_choice_head."};
// Tensors that some programs save beside the parameters, which follow from them or from a run:
// scales of a cache of keys and values, tables of positions and of masks.
constexpr std::array<std::string_view, 6> kNoParameters = {
    ".k_scale", ".v_scale", ".kv_scale", ".inv_freq", ".position_ids", ".masked_bias"};
// Parts of quantized matrices, by GPTQ, AWQ, MLX, compressed-tensors, FP8 and bitsandbytes.
constexpr std::array<std::string_view, 9> kQuantized = {
    ".qweight",          ".qzeros",       ".scales", ".weight_packed", ".weight_scale",
    ".weight_scale_inv", ".weight_shape", ".SCB",    ".absmax"};
// The members of config.json from which shapes follow.
constexpr auto kShapeMembers = std::to_array<std::string_view>({"vocab_size",
                                                                "hidden_size",
                                                                "intermediate_size",
                                                                "num_attention_heads",
                                                                "head_dim",
                                                                "num_key_value_heads",
                                                                "max_position_embeddings",
                                                                "num_experts",
                                                                "num_local_experts",
                                                                "moe_intermediate_size",
                                                                "n_embd",
                                                                "n_inner",
                                                                "n_head",
                                                                "n_positions",
                                                                "n_ctx",
                                                                "num_hidden_layers",
                                                                "n_layer",
                                                                "attention_bias",
                                                                "attention_out_bias",
                                                                "mlp_bias",
                                                                "decoder_sparse_step",
                                                                "mlp_only_layers"});
constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

/// The names that checkpoints may have for a parameter; its own comes first.
std::vector<std::string> spellings_of(const Family& family, const std::string& name) {
  std::vector<std::string> names = {name, std::string(family.part_prefix) + name};
  for (const OtherSpelling& spelling : family.spellings) {
    if (const std::size_t at = name.find(spelling.part); at != std::string::npos) {
      std::string other = name;
      names.push_back(other.replace(at, spelling.part.size(), spelling.other));
    }
  }
  for (std::size_t i = names.size(); i-- > 0;) {
    if (names[i].starts_with(family.optional_prefix)) {
      names.push_back(names[i].substr(family.optional_prefix.size()));
    }
  }
  return names;
}

/// The name under which the checkpoint holds a parameter; empty if it does not. A tied model may
/// hold its head in the embedding's place.
std::string stored_name(const Checkpoint& checkpoint, const HfConfig& config,
                        const std::string& name) {
  const Family& family = family_of(config);
  for (std::string& spelling : spellings_of(family, name)) {
    if (checkpoint.find(spelling) != nullptr) {
      return std::move(spelling);
    }
  }
  if (config.tie_word_embeddings && name == family.describe(config).embedding) {
    for (std::string& spelling : spellings_of(family, std::string(kHead))) {
      if (checkpoint.find(spelling) != nullptr) {
        return std::move(spelling);
      }
    }
  }
  return {};
}

bool same_values(const Checkpoint& checkpoint, const std::string& one, const std::string& other) {
  const TensorInfo& info = checkpoint.at(one);
  if (info.shape != checkpoint.at(other).shape) {
    return false;
  }
  std::vector<float> a(static_cast<std::size_t>(std::min(kPieceElements, info.numel())));
  std::vector<float> b(a.size());
  for (std::int64_t begin = 0; begin < info.numel(); begin += kPieceElements) {
    const std::int64_t end = std::min(begin + kPieceElements, info.numel());
    checkpoint.read_f32(one, begin, end, a.data());
    checkpoint.read_f32(other, begin, end, b.data());
    if (!std::equal(a.begin(), a.begin() + (end - begin), b.begin())) {
      return false;
    }
  }
  return true;
}

/// Whether the files hold an embedding and a head of other values.
bool head_is_apart(const Checkpoint& checkpoint, const HfConfig& config) {
  const std::string embedding =
      stored_name(checkpoint, config, family_of(config).describe(config).embedding);
  const std::string head = stored_name(checkpoint, config, std::string(kHead));
  return !embedding.empty() && !head.empty() && !same_values(checkpoint, embedding, head);
}

/// "model.layers.0.mlp.experts.7.up_proj.weight" taken apart, in Qwen's names or Mixtral's.
struct ExpertMatrix {
  std::string experts;  // "model.layers.0.mlp.experts."
  std::int64_t number = 0;
  bool is_down = false;
  bool is_up = false;
};

std::optional<ExpertMatrix> expert_matrix(const std::string& name) {
  constexpr std::string_view kExperts = ".experts.";
  const std::size_t at = name.find(kExperts);
  if (at == std::string::npos) {
    return std::nullopt;
  }
  ExpertMatrix found{.experts = name.substr(0, at + kExperts.size())};
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + found.experts.size(), end, found.number);
  const std::string_view matrix(rest, end);
  found.is_down = matrix == ".down_proj.weight" || matrix == ".w2.weight";
  found.is_up = matrix == ".up_proj.weight" || matrix == ".w3.weight";
  const bool is_gate = matrix == ".gate_proj.weight" || matrix == ".w1.weight";
  const bool known = error == std::errc{} && (found.is_down || found.is_up || is_gate);
  return known ? std::optional(std::move(found)) : std::nullopt;
}

/// Tensors that checkpoints carry although they are no parameters: a copy of a tied head, and the
/// family's.
bool is_extra(const HfConfig& config, std::string_view name) {
  const Family& family = family_of(config);
  const std::string_view own =
      name.starts_with(family.part_prefix) ? name.substr(family.part_prefix.size()) : name;
  return (config.tie_word_embeddings && own == kHead) ||
         std::ranges::any_of(family.extras,
                             [&](std::string_view ending) { return name.ends_with(ending); }) ||
         std::ranges::any_of(family.other_parts,
                             [&](std::string_view part) { return name.starts_with(part); });
}

template <std::size_t kCount>
bool ends_with_any(std::string_view name, const std::array<std::string_view, kCount>& endings) {
  return std::ranges::any_of(endings, [&](auto ending) { return name.ends_with(ending); });
}

void require_not_quantized(const Checkpoint& checkpoint) {
  for (const std::string& name : checkpoint.names()) {
    if (ends_with_any(name, kQuantized)) {
      throw user_error(kWhere,
                       "{} holds quantized weights ({}), which are not read; give the model that "
                       "they were made of, in 16 or 32 bits",
                       checkpoint.folder().string(), name);
    }
  }
}

/// Returns what stands before the name of each tensor where a wrapped model was saved ("module.");
/// empty: no name ends as this one.
std::string beginning_before(const Checkpoint& checkpoint, const std::string& name) {
  for (const std::string& stored : checkpoint.names()) {
    if (stored.ends_with("." + name)) {
      return stored.substr(0, stored.size() - name.size());
    }
  }
  return "";
}

/// The members from which tensors and their shapes follow, with their values.
std::string sizes_of(const HfConfig& config) {
  const JsonDocument document = JsonDocument::parse(config.json, {.where = std::string(kWhere)});
  std::vector<std::string> sizes;
  for (const auto& [key, value] : document.root().members()) {
    const bool counts = value.raw().is_int64() || value.raw().is_bool() || value.raw().is_array();
    if (counts && std::ranges::find(kShapeMembers, key) != kShapeMembers.end()) {
      sizes.push_back(fmt::format("{} {}", key, value.text()));
    }
  }
  return fmt::format("{}", fmt::join(sizes, ", "));
}

void expect_shape(const Checkpoint& checkpoint, const HfConfig& config, const TensorInfo& found,
                  const std::vector<std::int64_t>& shape) {
  if (found.shape != shape) {
    throw user_error(kWhere,
                     "{}: tensor \"{}\" has shape {}, config.json asks for {} by {}; config.json "
                     "and weights do not belong together",
                     checkpoint.folder().string(), found.name, shape_text(found.shape),
                     shape_text(shape), sizes_of(config));
  }
}

}  // namespace

std::vector<ParameterSpec> checkpoint_tensors(const HfConfig& config) {
  std::vector<ParameterSpec> tensors;
  for (const UnitSpec& unit : make_causal_lm(config).units) {
    tensors.insert(tensors.end(), unit.parameters.begin(), unit.parameters.end());
  }
  return tensors;
}

std::int64_t parameter_count(const HfConfig& config) {
  std::int64_t count = 0;
  for (const ParameterSpec& tensor : checkpoint_tensors(config)) {
    count += tensor.numel();
  }
  return count;
}

void untie_if_stored_apart(HfConfig& config, const std::filesystem::path& folder) {
  if (!config.tie_word_embeddings) {
    return;
  }
  try {
    if (!head_is_apart(Checkpoint::open(folder), config)) {
      return;
    }
  } catch (const Error&) {
    return;
  }
  config.tie_word_embeddings = false;
  config.json = with_json_member(config.json, "tie_word_embeddings", "false");
  config.notes.push_back(
      "config.json says that the head is the embedding (tie_word_embeddings), but the weights hold "
      "two different matrices: they are kept apart, and saved so");
}

void CheckpointReader::expect_floats(const std::string& stored) const {
  if (const TensorType type = checkpoint_.at(stored).type; !is_float(type)) {
    throw user_error(kWhere,
                     "{}: tensor \"{}\" has type {}, weights must be F32, BF16, F16 or F64; take "
                     "the full-size weights",
                     checkpoint_.folder().string(), stored, name_of(type));
  }
}

std::optional<CheckpointReader::Stored> CheckpointReader::match_in_stack(
    const HfConfig& config, const ParameterSpec& tensor, std::set<std::string>& used) const {
  const std::optional<ExpertMatrix> matrix = expert_matrix(tensor.name);
  if (!matrix) {
    return std::nullopt;
  }
  const std::string stored = stored_name(
      checkpoint_, config, matrix->experts + (matrix->is_down ? "down_proj" : "gate_up_proj"));
  if (stored.empty()) {
    return std::nullopt;
  }
  const std::int64_t matrices = matrix->is_down ? 1 : 2;
  expect_shape(checkpoint_, config, checkpoint_.at(stored),
               {config.experts, matrices * tensor.shape[0], tensor.shape[1]});
  expect_floats(stored);
  used.insert(stored);
  return Stored{.name = stored,
                .first = (matrix->number * matrices + (matrix->is_up ? 1 : 0)) * tensor.numel()};
}

CheckpointReader::Stored CheckpointReader::match_whole(const HfConfig& config,
                                                       const ParameterSpec& tensor,
                                                       std::set<std::string>& used) const {
  const std::string stored = stored_name(checkpoint_, config, tensor.name);
  if (stored.empty()) {
    if (const auto in_stack = match_in_stack(config, tensor, used)) {
      return *in_stack;
    }
    if (const std::string begin = beginning_before(checkpoint_, tensor.name); !begin.empty()) {
      throw user_error(kWhere,
                       "{}: its tensors begin with \"{}\" ({}{}), as those of a wrapped model "
                       "(DDP, torch.compile, PEFT); save the model within by save_pretrained",
                       checkpoint_.folder().string(), begin, begin, tensor.name);
    }
    throw user_error(kWhere, "{} has no tensor \"{}\" (expected shape {}); {}",
                     checkpoint_.folder().string(), tensor.name, shape_text(tensor.shape),
                     tensor.name == kHead
                         ? std::string("if the head is the embedding, set tie_word_embeddings to "
                                       "true in config.json")
                         : fmt::format("config.json (model_type {}) asks for it by {}; config.json "
                                       "and weights do not belong together",
                                       config.model_type, sizes_of(config)));
  }
  const TensorInfo& found = checkpoint_.at(stored);
  expect_shape(checkpoint_, config, found, tensor.shape);
  expect_floats(stored);
  used.insert(stored);
  return {.name = stored};
}

CheckpointReader::Stored CheckpointReader::match_packed(const HfConfig& config,
                                                        const ParameterSpec& tensor,
                                                        std::set<std::string>& used) const {
  TANDEM_CHECK(tensor.shape.size() == 3, "only experts' matrices are packed");
  const std::int64_t in = tensor.shape[1];
  const std::int64_t out = tensor.shape[2];
  if (in % kMxfp4Group != 0) {
    throw user_error(
        kWhere,
        "{}: \"{}{}\" cannot be, its matrices have {} rows, not a multiple of {}, by {}; "
        "config.json and weights do not belong together",
        checkpoint_.folder().string(), tensor.name, kBlocks, in, kMxfp4Group, sizes_of(config));
  }
  const std::int64_t groups = in / kMxfp4Group;
  for (const std::string_view ending : {kBlocks, kScales}) {
    const std::string name = tensor.name + std::string(ending);
    const TensorInfo* found = checkpoint_.find(name);
    if (found == nullptr) {
      throw user_error(kWhere, "{} has \"{}{}\" but no \"{}\"; download the checkpoint again",
                       checkpoint_.folder().string(), tensor.name,
                       ending == kBlocks ? kScales : kBlocks, name);
    }
    std::vector<std::int64_t> shape = {tensor.shape[0], out, groups};
    if (ending == kBlocks) {
      shape.push_back(kMxfp4Group / 2);
    }
    expect_shape(checkpoint_, config, *found, shape);
    if (found->type != TensorType::kU8) {
      throw user_error(kWhere,
                       "{}: tensor \"{}\" has type {}, packed weights are U8; download the "
                       "checkpoint again",
                       checkpoint_.folder().string(), name, name_of(found->type));
    }
    used.insert(name);
  }
  return {.name = tensor.name, .packed = true, .in = in, .out = out};
}

CheckpointReader CheckpointReader::open(const std::filesystem::path& folder,
                                        const HfConfig& config) {
  CheckpointReader out(Checkpoint::open(folder));
  require_not_quantized(out.checkpoint_);
  std::set<std::string> used;
  if (config.tie_word_embeddings && head_is_apart(out.checkpoint_, config)) {
    throw user_error(kWhere,
                     "{}: lm_head.weight has other values than the embedding, and this "
                     "config.json says tie_word_embeddings; set it to false",
                     folder.string());
  }
  for (const ParameterSpec& tensor : checkpoint_tensors(config)) {
    const bool packed = out.checkpoint_.find(tensor.name + std::string(kBlocks)) != nullptr ||
                        out.checkpoint_.find(tensor.name + std::string(kScales)) != nullptr;
    out.stored_.emplace(tensor.name, packed ? out.match_packed(config, tensor, used)
                                            : out.match_whole(config, tensor, used));
  }
  std::vector<std::string> beside;
  for (const std::string& name : out.checkpoint_.names()) {
    if (used.contains(name) || is_extra(config, name)) {
      continue;
    }
    if (ends_with_any(name, kNoParameters)) {
      beside.push_back(name);
      continue;
    }
    if (std::ranges::any_of(kOtherHeads, [&](auto head) { return name.starts_with(head); })) {
      out.checkpoint_.add_note(
          fmt::format("{} is of a head for another task; it is not read, and not saved", name));
      continue;
    }
    throw user_error(
        kWhere,
        "{} has a tensor \"{}\" {} that a model of model_type {} with this config.json ({}) does "
        "not have; config.json and weights do not belong together",
        folder.string(), name, shape_text(out.checkpoint_.at(name).shape), config.model_type,
        sizes_of(config));
  }
  if (!beside.empty()) {
    out.checkpoint_.add_note(
        fmt::format("tensors that are no parameters are not read, and not saved: {} of them, {} "
                    "the first",
                    beside.size(), beside.front()));
  }
  return out;
}

void CheckpointReader::read_f32(std::string_view name, std::int64_t begin, std::int64_t end,
                                float* out) const {
  const auto found = stored_.find(std::string(name));
  TANDEM_CHECK(found != stored_.end(), "only parameters of checkpoint_tensors are read");
  const Stored& stored = found->second;
  if (stored.packed) {
    const Mxfp4Matrices packed = {.blocks = checkpoint_.bytes(stored.name + std::string(kBlocks)),
                                  .scales = checkpoint_.bytes(stored.name + std::string(kScales)),
                                  .in = stored.in,
                                  .out = stored.out};
    if (!MappedFile::survives([&] { unpack_mxfp4(packed, begin, end, out); })) {
      throw user_error(
          kWhere,
          "the tensors of \"{}\" can no longer be read (their file was shortened while "
          "in use, or its disk fails); copy the file again",
          name);
    }
    const auto count = static_cast<std::size_t>(end - begin);
    if (const std::size_t bad = first_not_finite(out, DType::kF32, count); bad < count) {
      throw user_error(kWhere,
                       "the tensors of \"{}\" give a value that is NaN or infinite at element {}; "
                       "weights must be finite: use another checkpoint",
                       name, begin + static_cast<std::int64_t>(bad));
    }
    return;
  }
  checkpoint_.read_f32(stored.name, stored.first + begin, stored.first + end, out);
}

TensorType CheckpointReader::type_of(std::string_view name) const {
  const auto found = stored_.find(std::string(name));
  TANDEM_CHECK(found != stored_.end(), "only parameters of checkpoint_tensors have a type");
  if (found->second.packed) {
    return TensorType::kBF16;
  }
  const TensorType type = checkpoint_.at(found->second.name).type;
  return type == TensorType::kF64 ? TensorType::kF32 : type;
}

std::vector<TensorPlan> checkpoint_plan(const HfConfig& config, TensorType type) {
  std::vector<TensorPlan> plan;
  for (ParameterSpec& tensor : checkpoint_tensors(config)) {
    plan.push_back(
        {.name = std::move(tensor.name), .type = type, .shape = std::move(tensor.shape)});
  }
  return plan;
}

FreshWeights fresh_weights(const HfConfig& config) {
  return {.deviation = config.initializer_range, .norm = family_of(config).fresh_norm};
}

void fill_initial(const ParameterSpec& parameter, std::uint64_t seed, const FreshWeights& fresh,
                  std::int64_t begin, std::int64_t end, float* out) {
  TANDEM_CHECK(0 <= begin && begin <= end && end <= parameter.numel(), "elements of this tensor");
  const std::string_view name = parameter.name;
  const std::string_view owner = name.substr(0, name.rfind('.'));
  const std::string_view last = owner.substr(owner.rfind('.') + 1);
  if (name.ends_with(".bias") || name.ends_with("_bias")) {
    std::fill(out, out + (end - begin), 0.0F);
  } else if (last.ends_with("norm") || last.starts_with("ln_")) {
    std::fill(out, out + (end - begin), static_cast<float>(fresh.norm));
  } else {
    fill_normal(name, seed, fresh.deviation, begin, end, out);
  }
}

}  // namespace tandem
