// examples/support/finetune_flags.hpp — the flags of finetune_zero3: the DeepSpeed example's names and defaults, and ours.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem {

struct FinetuneFlags {
  // What to train on what. An empty model_name is the demo.
  std::string model_name;
  std::string dataset_name = "tatsu-lab/alpaca";
  double dataset_percentage = 100;
  std::int64_t max_length = 2048;
  std::string output_dir;

  // How to train.
  double lr = 0;  // required beside --model_name
  std::int64_t batch_size = 0;
  std::int64_t num_train_epochs = 1;
  double weight_decay = 0.01;
  double warmup = 0.01;  // share of the steps over which the learning rate rises linearly
  std::uint64_t seed = 42;
  bool deterministic = false;
  bool activation_checkpointing = false;
  std::string attn_implementation = "sdpa";
  std::string leaf_module;

  // How long, and what to report.
  std::int64_t steps = 0;
  std::int64_t bench_steps = 100;
  std::int64_t warmup_steps = 15;
  std::int64_t log_interval = 1;
  std::string log_level = "INFO";
  bool save_checkpoint = false;
  std::string progress = "auto";
  bool tensorboard = true;
  bool trace = false;

  // What the engine may do.
  std::string deepspeed_config;
  std::string dtype;  // empty: from the config
  std::optional<std::int64_t> stage;
  std::optional<double> gradient_clipping;
  std::optional<std::int64_t> gradient_accumulation_steps;
  std::string device = "auto";
  std::string overlap = "offload";
  int gather_slots = 0;
  int optimizer_threads = 0;
  int compute_threads = 0;
  bool pin_cores = false;

  /// Flags that the user typed, for summary.json and for telling a typed value from a default.
  std::vector<std::pair<std::string, std::string>> typed;
  [[nodiscard]] bool given(const std::string& flag) const;
};

/// Parses and checks the command line; nothing when the program is done (--help, --version). Throws user_error.
std::optional<FinetuneFlags> parse_finetune_flags(int argc, const char* const* argv);

}  // namespace tandem
