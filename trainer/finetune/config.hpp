// trainer/finetune/config.hpp — converts flags and a DeepSpeed JSON into the engine's config and
// settings.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "models/pretrained.hpp"
#include "trainer/finetune/flags.hpp"
#include "trainer/run_length.hpp"

namespace tandem {

/// The sizes of the model and the data that "auto" in a config file takes; 0: not known.
struct AutoSources {
  std::int64_t hidden_size = 0;
  std::int64_t records = 0;
  bool trainer_defaults = false;  // without a flag, "auto" rate or batch size is the Trainer's
};

/// Returns the config file (or the built-in one) with the flags that stand for its keys. Throws
/// user_error if a flag and a key contradict each other. "auto" is filled as Hugging Face's Trainer
/// does.
Config finetune_config(const FinetuneFlags& flags, DeviceKind device, std::int64_t world_size,
                       const AutoSources& sources = {});
/// Throws user_error if neither a flag nor the file gives the learning rate or the batch size.
void require_rate_and_batch(const FinetuneFlags& flags, const Config& config);

/// Returns --steps, or else the epochs' steps, but at most --bench_steps.
RunLength run_length(const FinetuneFlags& flags, const Config& config, std::int64_t records);

/// Returns the rate of step n by --lr, --warmup, --warmup_steps and --lr_scheduler
/// (trainer/finetune/rate_schedule.hpp). It is empty if the config has a scheduler, which then
/// decides.
std::function<double(std::int64_t)> learning_rate_of(const FinetuneFlags& flags,
                                                     const Config& config,
                                                     std::int64_t total_steps);

/// Returns the settings beside the config that decide a run's numbers (InitializeArgs::settings).
std::vector<std::pair<std::string, std::string>> run_settings(const FinetuneFlags& flags,
                                                              const Config& config,
                                                              const LoraOptions& lora,
                                                              std::int64_t total_steps);

/// Returns the lines that are printed before the first step: model, batch, length, overlap,
/// threads.
std::vector<std::string> describe_run(const FinetuneFlags& flags, const Config& config,
                                      const Pretrained& pretrained, const Engine& engine,
                                      std::int64_t records);

}  // namespace tandem
