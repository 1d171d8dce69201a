// trainer/finetune/flags.hpp — the flags of finetune_zero3: the DeepSpeed example's names
// and ours, and Transformers' where they mean the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/trained_parts.hpp"
#include "trainer/flags/run_flags.hpp"

namespace tandem {

/// The data and the times of a run's evaluations.
struct EvaluationFlags {
  std::string dataset;
  double split = 0;          // share of the records that are held out; 0: none
  double every = 0;          // steps, or below 1 their share of the run; 0: an epoch
  std::int64_t batches = 0;  // micro-batches of an evaluation; 0: all
  bool at_start = false;
  std::int64_t patience = 0;
  double min_delta = 0;
  bool keep_best = false;
  std::string sample_prompt;

  [[nodiscard]] bool any() const { return !dataset.empty() || split > 0; }
};

struct FinetuneFlags : RunFlags {
  // The model and the data. An empty model_name is the demo.
  std::string model_name;
  std::string dataset_name = "tatsu-lab/alpaca";
  double dataset_percentage = 100;
  std::int64_t max_length = 2048;
  std::string append_eos = "on";
  std::string loss_on;  // empty: what suits the data
  std::string packing = "off";

  // How to train.
  std::string recipe = "off";  // other defaults of some flags (apply_recipe())
  double lr = 0;               // required beside --model_name
  std::int64_t batch_size = 0;
  double num_train_epochs = 1;
  double weight_decay = 0.01;
  std::string decay_norms = "on";  // off: not of norms and biases
  double warmup = 0.01;            // share of the steps over which the learning rate rises linearly
  std::optional<double> warmup_steps;   // instead: their count, or below 1 their share
  std::string lr_scheduler = "linear";  // if no config has a scheduler
  bool deterministic = false;
  std::string attn_implementation = "sdpa";
  std::string leaf_module;
  // The parts that learn; the lists are separated by commas.
  std::string freeze;
  std::int64_t lora_r = 0;
  double lora_alpha = 8;
  double lora_dropout = 0;
  bool lora_rslora = false;
  std::string lora_targets = "q_proj,v_proj";
  std::string lora_from;
  std::string modules_to_save;
  std::string add_tokens;

  EvaluationFlags eval;

  // How long, and what to report.
  std::int64_t bench_steps = 0;  // 0: no such limit
  std::string log_level = "INFO";
  bool samples = true;       // of the demo
  bool check_flags = false;  // checks the flags, and ends
  bool save_checkpoint = false;
  std::string save_dtype;  // of model/; empty: the compute type
};

/// Returns the rows of the flags that, beside the engine's, decide how much memory a run needs. The
/// trainer and `tandem plan` have them.
[[nodiscard]] std::vector<FlagGroup> memory_flags(FinetuneFlags& flags);
/// Throws user_error if flags of the trained parts contradict each other.
void check_trained_flags(const FinetuneFlags& flags);
/// Returns the parts that learn by the flags, except for --lora_from.
TrainedParts trained_parts(const FinetuneFlags& flags);

/// Parses and checks the command line; returns nullopt if the program is done (--help, --version,
/// --check_flags). Throws user_error.
std::optional<FinetuneFlags> parse_finetune_flags(int argc, const char* const* argv);

}  // namespace tandem
