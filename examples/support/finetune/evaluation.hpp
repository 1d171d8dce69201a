// examples/support/finetune/evaluation.hpp — the fine-tuner's evaluations, as its flags say.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "examples/support/finetune/config.hpp"
#include "examples/support/finetune/flags.hpp"
#include "examples/support/run_evaluation.hpp"
#include "models/pretrained.hpp"

namespace tandem {

/// `save` writes the model into a folder. The arguments outlive the result.
EvaluationOptions evaluation_options(const FinetuneFlags& flags, const Config& config,
                                     const RunLength& length,
                                     std::shared_ptr<const Dataset> dataset,
                                     const Pretrained& pretrained, Engine& engine,
                                     MetricsWriter& metrics,
                                     const std::function<void(const std::string& folder)>& save);

}  // namespace tandem
