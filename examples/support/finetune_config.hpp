// examples/support/finetune_config.hpp — from flags and a DeepSpeed JSON to what the engine is
// given.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "examples/support/finetune_flags.hpp"
#include "models/data/alpaca_dataset.hpp"
#include "models/pretrained.hpp"

namespace tandem {

/// The config file (or the built-in one) with the flags that stand for its keys; a flag and a key
/// that contradict each other are a user_error.
Config finetune_config(const FinetuneFlags& flags, DeviceKind device, std::int64_t world_size);

/// Optimizer steps of the run: --steps, else the epochs' steps cut at --bench_steps.
std::int64_t total_steps_of(const FinetuneFlags& flags, const Config& config, std::int64_t records);

/// The rate of step n: rises linearly over the first --warmup share of the steps, then stays at
/// --lr. Empty when the config has a scheduler, which then decides.
std::function<double(std::int64_t)> learning_rate_of(const FinetuneFlags& flags,
                                                     const Config& config,
                                                     std::int64_t total_steps);

/// Lines printed before the first step: model, data, batch, overlap, threads.
std::vector<std::string> describe_run(const FinetuneFlags& flags, const Config& config,
                                      const Pretrained& pretrained, const Engine& engine,
                                      const AlpacaDataset& dataset);

}  // namespace tandem
