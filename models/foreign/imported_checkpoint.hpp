// models/foreign/imported_checkpoint.hpp — checkpoints of other programs: DeepSpeed's of any ZeRO
// stage and any number of ranks, its universal form, and pytorch_model.bin.
//
// Tensors are read in pieces from mapped files, so a model may be larger than memory. Python reads
// the files' pickles (tools/convert/) by torch's restricted unpickler, so nothing is executed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/storage/safetensors.hpp"
#include "engine/types/loss_scale_state.hpp"

namespace tandem {

/// One tensor of a foreign checkpoint. Its functions read elements [begin, end), row-major, of the
/// whole tensor, on any thread and several at once. They keep the files open, and throw Error if a
/// file was changed meanwhile.
struct ImportedTensor {
  using ReadF32 = std::function<void(std::int64_t begin, std::int64_t end, float* out)>;

  std::string name;
  std::vector<std::int64_t> shape;
  TensorType type = TensorType::kF32;  // of the values that `master` reads
  bool frozen = false;                 // not trained: no optimizer state
  bool buffer = false;                 // frozen, and no parameter of the module
  ReadF32 master;
  std::array<ReadF32, 2> moments;  // exp_avg, exp_avg_sq; empty: none
  /// The elements as the file stores them, in `type`; empty: fp32 holds them, too.
  std::function<void(std::int64_t begin, std::int64_t end, std::span<std::byte> out)> stored;

  [[nodiscard]] std::int64_t numel() const noexcept;
};

struct ImportedCheckpoint {
  std::string kind;  // "deepspeed", "universal", "pytorch"
  std::string path;  // of the folder that was read: the tag's, where there are tags
  std::vector<ImportedTensor> tensors;      // tied ones once
  std::map<std::string, std::string> tied;  // other name -> name in `tensors`
  std::int64_t global_steps = 0;
  std::int64_t skipped_steps = 0;
  std::int64_t optimizer_steps = 0;  // Adam's `step`; at stage 0 in 16 bits one more than taken
  std::int64_t global_samples = 0;
  std::optional<LossScaleState> scaler;       // absent: the loss was not scaled
  std::optional<std::int64_t> schedule_step;  // last_batch_iteration of the scheduler
  int zero_stage = -1;
  int world_size = 0;
  std::string ds_version;
  std::string ds_config_json;
  /// The client state, whose keys DeepSpeed mixes with its own, as one JSON object.
  std::string client_state_json;
  std::vector<std::string> notes;  // one line each: what was left out, and why

  [[nodiscard]] const ImportedTensor* find(std::string_view name) const noexcept;
};

/// Returns whether the path looks like a checkpoint of these kinds: a save folder of DeepSpeed with
/// `latest` or `latest_universal`, a tag's folder in it, a folder with pytorch_model.bin (or its
/// index) and no safetensors, or one file of torch.save. It is also true for DeepSpeed's tags
/// without `latest`, and for a sharded checkpoint of torch: opening them throws an error that says
/// what to do.
bool is_foreign_checkpoint(const std::filesystem::path& path);

/// Opens a checkpoint: a Python process reads the pickles, but no tensor. Throws an Error
/// (kUserInput) of one line that names the file and its fault: it is damaged, incomplete, refused,
/// or of a kind that is not read (tensor or pipeline parallelism, experts); or that says which
/// Python has no torch. Blocks.
ImportedCheckpoint open_foreign_checkpoint(const std::filesystem::path& path);

/// Writes DeepSpeed's universal checkpoint (version 0.4, with full shapes, which its stages 0 to 3
/// load) into the new folder `folder`, and names it in latest_universal beside it. A Python process
/// writes the files; it holds one tensor at a time. Blocks.
void write_universal(const ImportedCheckpoint& checkpoint, const std::filesystem::path& folder);

/// Writes model.safetensors, or shards with an index, into `folder`. Floats become `type`, or keep
/// their type if it is absent; other tensors stay as they are.
void write_hugging_face(const ImportedCheckpoint& checkpoint, const std::filesystem::path& folder,
                        std::optional<TensorType> type);

}  // namespace tandem
