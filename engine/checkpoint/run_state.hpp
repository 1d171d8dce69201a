// engine/checkpoint/run_state.hpp — the numbers that a resumed run needs beside master weights and
// moments: state.json of a checkpoint.
//
// Everything that a step draws or decides follows from these: batches, dropout masks and stochastic
// rounding from counts and the seed, the learning rate from the applied steps, the loss scale and
// speculation from their histories. None depends on the number of ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/step/loss_scaler.hpp"
#include "engine/types/checkpoint.hpp"

namespace tandem {

inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kClientFile = "client_state.json";  // the caller's own JSON

struct RunState {
  static constexpr std::int64_t kFormat = 1;

  std::int64_t global_steps = 0;    // skipped ones included
  std::int64_t applied_steps = 0;   // of the optimizer
  std::int64_t schedule_steps = 0;  // of the learning rate's schedule
  std::int64_t skipped_steps = 0;
  int skipped_in_a_row = 0;
  std::optional<LossScaler::State> scaler;  // fp16 alone
  std::uint16_t lost_verdicts = 0;          // speculation's history, a bit a verdict
  std::int64_t micro_batches = 0;           // of all ranks, trained on so far
  std::int64_t batches_taken = 0;           // of the loader, by all ranks; 0 without one
  std::int64_t epoch = 0;                   // of the next micro-batch
  std::int64_t epoch_micro_batches = 0;     // of all ranks; 0 without a loader

  // A resumed run must have the same values of these. Empty or 0: not known, as after a conversion.
  std::string parameters;             // names and shapes, hashed
  std::string optimizer;              // name of its kind
  std::string data;                   // the dataset's fingerprint
  std::optional<std::uint64_t> seed;  // of the shuffle
  std::int64_t micro_batch_size = 0;
  std::int64_t step_micro_batches = 0;  // of all ranks
  std::string loss_mean;                // what a step's loss is the mean of

  /// The parameters that the checkpoint leaves out because the model's source has them: each one's
  /// name and FrozenBase's checksum of its values.
  std::vector<std::pair<std::string, std::uint64_t>> base;

  // A resumed run may change these.
  int world_size = 1;
  int zero_stage = 0;
  std::string precision;
  std::string state_layout;
  std::string version;                                        // of Tandem
  std::string config;                                         // JSON, resolved
  std::vector<std::pair<std::string, std::string>> settings;  // InitializeArgs::settings

  [[nodiscard]] std::string json() const;
  /// `file` is for messages. Throws user_error naming what is missing or out of range.
  static RunState parse(const std::string& text, const std::string& file);
};

/// Throws user_error, naming the parameter, if the run has other values of a parameter that the
/// checkpoint leaves out.
void check_base(const RunState& saved, const RunState& now, const std::string& folder);

/// Parts of a run's identity that --resume_ignore names.
inline constexpr const char* kResumeParts = "data, seed, batch, optimizer";

/// Throws user_error, naming both values, if a run with the identity `now` may not resume `saved`.
/// Parts in `args.ignored` may differ; parameters may not. Returns a line for each difference that
/// is legal or ignored, and for each part that `saved` does not know.
std::vector<std::string> check_resume(const RunState& saved, const RunState& now,
                                      const LoadArgs& args, const std::string& folder);

}  // namespace tandem
