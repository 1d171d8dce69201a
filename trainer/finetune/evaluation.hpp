// trainer/finetune/evaluation.hpp — converts the fine-tuner's flags into the options of its
// evaluations.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "models/pretrained.hpp"
#include "trainer/finetune/config.hpp"
#include "trainer/finetune/flags.hpp"
#include "trainer/run_evaluation.hpp"

namespace tandem {

/// `save` writes the model into a folder. The arguments must outlive the result.
EvaluationOptions evaluation_options(const FinetuneFlags& flags, const Config& config,
                                     const RunLength& length,
                                     std::shared_ptr<const Dataset> dataset,
                                     const Pretrained& pretrained, Engine& engine,
                                     MetricsWriter& metrics,
                                     const std::function<void(const std::string& folder)>& save);

}  // namespace tandem
