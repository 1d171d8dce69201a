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
  /// Opens the folder's weights and matches them. The names of all versions of Transformers are
  /// understood, in any mixture: without the prefix of a model with a head, of the text part of
  /// another model, experts one by one or stacked, GPT-2's causal masks h.N.attn.bias, gpt-oss's
  /// experts of four bits (NAME_blocks, NAME_scales). Error: a parameter is missing or has another
  /// shape (names it, expected and found), or a tensor is there that the model does not have.
  static CheckpointReader open(const std::filesystem::path& folder, const HfConfig& config);

  /// Elements [begin, end) of a parameter of checkpoint_tensors, by its name there. Any thread.
  void read_f32(std::string_view name, std::int64_t begin, std::int64_t end, float* out) const;
  /// Its type in the files; bf16 where it is packed, F32 for F64.
  [[nodiscard]] TensorType type_of(std::string_view name) const;
  [[nodiscard]] const Checkpoint& checkpoint() const noexcept { return checkpoint_; }

 private:
  /// The position of a parameter in the files.
  struct Stored {
    std::string name;     // packed: without _blocks and _scales
    bool packed = false;  // MXFP4
    std::int64_t in = 0;  // of a packed one's matrices
    std::int64_t out = 0;
    std::int64_t first = 0;  // element of the stored tensor with which it begins
  };

  explicit CheckpointReader(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  /// Both throw user_error if the tensors do not match the parameter, and add the names of the used
  /// tensors to `used`.
  Stored match_whole(const HfConfig& config, const ParameterSpec& tensor,
                     std::set<std::string>& used) const;
  /// Returns the position of an expert's matrix in a tensor with those of all experts; nullopt if
  /// there is no such tensor.
  [[nodiscard]] std::optional<Stored> match_in_stack(const HfConfig& config,
                                                     const ParameterSpec& tensor,
                                                     std::set<std::string>& used) const;
  void expect_floats(const std::string& stored) const;
  Stored match_packed(const ParameterSpec& tensor, std::set<std::string>& used) const;

  Checkpoint checkpoint_;
  std::unordered_map<std::string, Stored> stored_;
};

/// checkpoint_tensors as the plan of a WeightsWriter.
std::vector<TensorPlan> checkpoint_plan(const HfConfig& config, TensorType type);

/// Weights before training: all norm weights have one value, biases are zero, all others are normal
/// with mean 0 and this deviation (models/io/random_init.hpp).
struct FreshWeights {
  double deviation = 0.02;
  double norm = 1;
};
FreshWeights fresh_weights(const HfConfig& config);
/// Elements [begin, end) of such a parameter. Any thread.
void fill_initial(const ParameterSpec& parameter, std::uint64_t seed, const FreshWeights& fresh,
                  std::int64_t begin, std::int64_t end, float* out);

}  // namespace tandem
