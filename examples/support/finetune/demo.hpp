// examples/support/finetune/demo.hpp — the run that happens without flags: a small model, random
// weights, the project's sentences.
#pragma once

#include <span>
#include <string_view>

#include "engine/engine.hpp"
#include "examples/support/finetune/flags.hpp"
#include "examples/support/metrics_writer.hpp"
#include "models/data/alpaca.hpp"
#include "models/pretrained.hpp"

namespace tandem {

/// Fills in what the user did not type: model, data, output folder runs/demo-<time>, sizes for
/// about a minute on two cores.
void apply_demo_defaults(FinetuneFlags& flags);

/// Prints what the model answers to a few of its questions, greedily, beside what the data says.
void show_samples(MetricsWriter& metrics, std::string_view when, const Pretrained& pretrained,
                  Engine& engine, std::span<const AlpacaRecord> records);

}  // namespace tandem
