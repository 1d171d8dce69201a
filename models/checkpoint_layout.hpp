// models/checkpoint_layout.hpp — the list of a model's tensors, with the names and shapes of its
// Hugging Face checkpoint.
//
// Loading (with checks for missing tensors and other shapes), saving, random initialisation and
// counting all use this list.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/types/model.hpp"
#include "models/io/checkpoint.hpp"
#include "models/io/hf_config.hpp"
#include "models/io/weights_writer.hpp"

namespace tandem {

/// Returns every parameter of the model once, in the order of use (embedding, layers, final norm,
/// head), named as Transformers' save_pretrained does. A tied head is not in the list. GPT-2's
/// linear weights are [in, out].
std::vector<ParameterSpec> checkpoint_tensors(const HfConfig& config);

/// Sum of numel over checkpoint_tensors.
std::int64_t parameter_count(const HfConfig& config);

/// If the files of a tied model have a head with other values than the embedding, changes `config`
/// and its JSON to untied and adds a note. Ignores a folder whose weights cannot be opened; reading
/// them reports the error.
void untie_if_stored_apart(HfConfig& config, const std::filesystem::path& folder);

/// A checkpoint matched with a config: every parameter was found with the right shape and a float
/// type.
class CheckpointReader {
 public:
  /// Opens the folder's weights and matches them with the config. It understands the names of all
  /// versions of Transformers, in any mixture: names without the prefix of a model with a head,
  /// names of the text part of a larger model, experts one by one or stacked, and gpt-oss's experts
  /// of four bits (NAME_blocks, NAME_scales). Tensors that are no parameters, as GPT-2's causal
  /// masks h.N.attn.bias, are ignored. Throws Error if a parameter is missing or has another shape
  /// (the message has its name, the expected and the found shape), or if there is a tensor that the
  /// model does not have.
  static CheckpointReader open(const std::filesystem::path& folder, const HfConfig& config);

  /// Reads elements [begin, end) of the parameter that checkpoint_tensors() calls `name`. Any
  /// thread.
  void read_f32(std::string_view name, std::int64_t begin, std::int64_t end, float* out) const;
  /// Returns the parameter's type in the files; bf16 if it is packed there, F32 for F64.
  [[nodiscard]] TensorType type_of(std::string_view name) const;
  [[nodiscard]] const Checkpoint& checkpoint() const noexcept { return checkpoint_; }

 private:
  /// The position of a parameter in the files.
  struct Stored {
    std::string name;     // packed: without _blocks and _scales
    bool packed = false;  // MXFP4
    std::int64_t in = 0;  // of each packed matrix
    std::int64_t out = 0;
    std::int64_t first = 0;  // the parameter's first element in the stored tensor
  };

  explicit CheckpointReader(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  /// Both throw user_error if the tensors do not match the parameter, and add the names of the used
  /// tensors to `used`.
  Stored match_whole(const HfConfig& config, const ParameterSpec& tensor,
                     std::set<std::string>& used) const;
  /// Returns the position of an expert's matrix in the tensor that stacks all experts' matrices;
  /// nullopt if the files have no stacked tensor.
  [[nodiscard]] std::optional<Stored> match_in_stack(const HfConfig& config,
                                                     const ParameterSpec& tensor,
                                                     std::set<std::string>& used) const;
  void expect_floats(const std::string& stored) const;
  Stored match_packed(const HfConfig& config, const ParameterSpec& tensor,
                      std::set<std::string>& used) const;

  Checkpoint checkpoint_;
  std::unordered_map<std::string, Stored> stored_;
};

/// Returns checkpoint_tensors() as the plan of a WeightsWriter.
std::vector<TensorPlan> checkpoint_plan(const HfConfig& config, TensorType type);

/// Weights before training: all norm weights have one value, biases are zero, all others are normal
/// with mean 0 and this deviation (models/io/random_init.hpp).
struct FreshWeights {
  double deviation = 0.02;
  double norm = 1;
};
FreshWeights fresh_weights(const HfConfig& config);
/// Fills `out` with elements [begin, end) of a fresh parameter. Any thread.
void fill_initial(const ParameterSpec& parameter, std::uint64_t seed, const FreshWeights& fresh,
                  std::int64_t begin, std::int64_t end, float* out);

}  // namespace tandem
