// trainer/finetune/run.hpp — converts the flags, model and data of a fine-tuning run into a
// Trainer's arguments.
#pragma once

#include <string>

#include "actors/storage/safetensors.hpp"
#include "engine/config/config.hpp"
#include "models/pretrained.hpp"
#include "trainer/finetune/data.hpp"
#include "trainer/finetune/flags.hpp"
#include "trainer/trainer.hpp"

namespace tandem {

/// Opens the model of --model_name, or the demo's, whose weights are made from the seed.
[[nodiscard]] Pretrained open_pretrained(const FinetuneFlags& flags, bool is_demo);

/// Returns the type of model/: --save_dtype, else the type in which the run computes.
[[nodiscard]] TensorType saved_type(const FinetuneFlags& flags, const Config& config);

/// Returns the arguments of a run that its trace calls `name`. Model and data must outlive the
/// trainer.
[[nodiscard]] TrainerArgs finetune_args(const FinetuneFlags& flags, const Config& config,
                                        const Pretrained& pretrained, const FinetuneData& data,
                                        std::string name);

/// Returns the folder of a run's trained weights. Throws user_error if that is the model with which
/// it begins.
[[nodiscard]] std::string saved_folder(const FinetuneFlags& flags, const Pretrained& pretrained);

}  // namespace tandem
