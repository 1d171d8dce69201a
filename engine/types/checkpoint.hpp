// engine/types/checkpoint.hpp — what a caller says of a checkpoint, and what it is told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tandem {

/// What is saved with a checkpoint, beside the run's state.
struct CheckpointArgs {
  std::string folder;    // of checkpoints; made where it is missing
  std::string tag = {};  // its folder's name in there; empty: step-00000020
  /// JSON of the caller's own, given back by load_checkpoint(): client_state.json.
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
  std::string error;  // one line; empty: it was saved. Of the rank that failed, else of another one
  std::uint64_t bytes = 0;       // of tensors, all ranks
  double seconds = 0;            // from its begin to its commit
  std::size_t staged_bytes = 0;  // that this rank copied because an update came before their turn

  [[nodiscard]] bool saved() const noexcept { return error.empty(); }
};

struct LoadArgs {
  /// Weights alone: the run begins at step 1, with moments of zero.
  bool module_only = false;
  /// Parts of the run that may be others than those of the checkpoint: data, seed, batch,
  /// optimizer.
  std::vector<std::string> ignored = {};
};

struct LoadedCheckpoint {
  std::string path;
  std::int64_t step = 0;
  std::string client_state;        // as it was given
  std::vector<std::string> notes;  // a line for each legal or ignored difference
};

}  // namespace tandem
