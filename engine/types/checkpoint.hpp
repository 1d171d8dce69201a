// engine/types/checkpoint.hpp — arguments and results of saving and loading a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/types/loss_scale_state.hpp"

namespace tandem {

struct ParameterSpec;

/// Fills out[0, end - begin) with the elements [begin, end) of one array of a parameter's state: 0,
/// the master weights, or a moment from 1 on. Called from pool threads, several at once.
using StateSource = std::function<void(const ParameterSpec& parameter, std::uint32_t array,
                                       std::int64_t begin, std::int64_t end, float* out)>;

/// Arguments of a checkpoint, beside the run's state.
struct CheckpointArgs {
  std::string folder;    // of checkpoints; made where it is missing
  std::string tag = {};  // its folder's name in there; empty: step-00000020
  /// The caller's JSON, which load_checkpoint() returns: client_state.json.
  std::string client_state = "{}";
  /// Small files that lie beside the tensors, as (name, text): a config.json lets Transformers read
  /// the folder.
  std::vector<std::pair<std::string, std::string>> files = {};
  /// How many checkpoints named by their step stay in the folder, this one among them; 0: all.
  int keep = 0;
};

struct CheckpointOutcome {
  std::int64_t step = 0;
  std::string path;
  std::string error;    // one line, of the rank that failed, else of another; empty: it was saved
  std::string warning;  // one line: it was saved, and older ones could not be removed
  std::uint64_t bytes = 0;       // of tensors, all ranks
  double seconds = 0;            // from its begin to its commit
  std::size_t staged_bytes = 0;  // that this rank copied because an update came before their turn

  [[nodiscard]] bool saved() const noexcept { return error.empty(); }
};

struct LoadArgs {
  /// Weights alone: the run begins at step 1, with moments of zero.
  bool module_only = false;
  /// Parts of the run that may differ from the checkpoint's: data, seed, batch, optimizer.
  std::vector<std::string> ignored = {};
  /// The name of the present data set in an error; may be empty.
  std::string data_name = {};
};

/// The state of a run that another program saved, as far as a run here can resume from it.
struct ForeignState {
  std::string path;
  StateSource source;    // lives as long as this
  bool moments = false;  // it has them
  std::int64_t global_steps = 0;
  std::int64_t skipped_steps = 0;
  std::int64_t optimizer_steps = 0;  // the optimizer's count, which may differ from steps taken
  std::int64_t schedule_steps = 0;   // that the learning rate's schedule has made
  std::optional<LossScaleState> scaler;
  std::string client_state = "{}";
  std::vector<std::string> notes;  // a line for each thing that was left out
};

struct LoadedCheckpoint {
  std::string path;
  std::int64_t step = 0;
  std::string client_state;        // as it was given
  std::vector<std::string> notes;  // a line for each legal or ignored difference
};

}  // namespace tandem
