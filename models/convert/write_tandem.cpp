#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/checkpoint/save_whole.hpp"
#include "engine/checkpoint/checkpoint_layout.hpp"
#include "engine/checkpoint/run_state.hpp"
#include "engine/types/version.hpp"
#include "models/convert/tandem_checkpoint.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/system/nonce.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

/// The name of an array of Adam, whose moments an imported checkpoint has.
std::string_view adams_array(std::uint32_t array) { return array_name(UpdateConfig{}, array); }

const ImportedTensor::ReadF32& reader_of(const ImportedTensor& tensor, std::uint32_t array) {
  return array == kMasterArray ? tensor.master : tensor.moments[array - 1];
}

/// The files of a checkpoint, and what fills them.
struct Writing {
  CheckpointPlan plan;
  std::vector<std::vector<const ImportedTensor::ReadF32*>> sources;  // [file][tensor]
  std::vector<PlannedText> texts;
};

/// As CheckpointLayout cuts them, each tensor a unit.
void add_array(const std::vector<const ImportedTensor*>& tensors, std::uint32_t array,
               Writing& writing) {
  std::vector<PlannedFile>& files = writing.plan.files;
  const std::size_t first = files.size();
  std::uint64_t in_file = 0;
  for (const ImportedTensor* tensor : tensors) {
    const TensorPlan plan{.name = tensor->name, .type = TensorType::kF32, .shape = tensor->shape};
    if (files.size() == first || in_file + plan.size_bytes() > CheckpointLayout::kMostFileBytes) {
      files.emplace_back();
      writing.sources.emplace_back();
      in_file = 0;
    }
    in_file += plan.size_bytes();
    files.back().tensors.push_back(plan);
    writing.sources.back().push_back(&reader_of(*tensor, array));
  }
  name_array_files(std::span(files).subspan(first), adams_array(array));
}

/// Notes what is left out.
void plan_arrays(const ImportedCheckpoint& checkpoint, Writing& writing,
                 std::vector<std::string>& notes) {
  std::vector<const ImportedTensor*> kept;
  std::vector<const ImportedTensor*> trained;
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    if (tensor.buffer || !is_float(tensor.type)) {
      notes.push_back(fmt::format("{}: it is no parameter of floats", tensor.name));
      continue;
    }
    kept.push_back(&tensor);
    if (!tensor.frozen) {
      trained.push_back(&tensor);
    }
  }
  if (kept.empty()) {
    throw user_error("convert", "{} holds no weights; give another checkpoint", checkpoint.path);
  }
  for (const auto& [alias, name] : checkpoint.tied) {
    notes.push_back(fmt::format("{}: it is {}, and a model that ties them says so", alias, name));
  }
  add_array(kept, kMasterArray, writing);
  for (std::uint32_t array = kMasterArray + 1; array < kCheckpointArrays; ++array) {
    const bool whole = std::ranges::all_of(
        trained, [&](const ImportedTensor* tensor) { return !!reader_of(*tensor, array); });
    if (whole && !trained.empty()) {
      add_array(trained, array, writing);
    } else {
      notes.push_back(
          fmt::format("{}: not every parameter has it; a run begins it at 0", adams_array(array)));
    }
  }
}

RunState state_of(const ImportedCheckpoint& checkpoint, bool moments) {
  return {.global_steps = checkpoint.global_steps,
          .applied_steps = moments ? checkpoint.optimizer_steps : 0,
          .schedule_steps = checkpoint.schedule_step.value_or(checkpoint.global_steps - 1) + 1,
          .skipped_steps = checkpoint.skipped_steps,
          .scaler = checkpoint.scaler,
          .world_size = std::max(checkpoint.world_size, 1),
          .zero_stage = std::clamp(checkpoint.zero_stage, 0, 3),
          .version = version(),
          .config = checkpoint.ds_config_json};
}

}  // namespace

std::vector<std::string> write_tandem(const ImportedCheckpoint& checkpoint, const fs::path& folder,
                                      std::vector<PlannedText> texts) {
  std::vector<std::string> notes;
  Writing writing{.plan = {.step = checkpoint.global_steps,
                           .folder = folder.string(),
                           .temporary = temporary_checkpoint(folder.string(), fresh_nonce()),
                           .files = {}},
                  .sources = {},
                  .texts = std::move(texts)};
  plan_arrays(checkpoint, writing, notes);
  const bool moments = writing.plan.files.back().name.starts_with("exp_avg");
  const std::string state = state_of(checkpoint, moments).json();
  static_cast<void>(RunState::parse(state, checkpoint.path));  // else no run could resume it
  CheckpointLayout layout;
  layout.files = writing.plan.files;
  const std::string& client = checkpoint.client_state_json;
  writing.texts.push_back({kStateFile, state});
  writing.texts.push_back({kClientFile, client.empty() ? "{}" : client});
  writing.texts.push_back({kIndexFile, layout.index_json()});

  EventLoop loop({.name = "convert", .stall_limit = {}});
  FileIo io(loop);
  CpuPool pool(loop, {.threads = 1, .name = "hash"});
  const auto fill = [&](std::size_t file, std::size_t tensor, std::int64_t begin, std::int64_t end,
                        float* out) { (*writing.sources[file][tensor])(begin, end, out); };
  loop.run(&save_whole, &io, &pool, &std::as_const(writing.plan), FillTensor(fill), writing.texts);
  return notes;
}

}  // namespace tandem
