// trainer/finetune/demo.hpp — the run without flags: a small model, random weights, the project's
// sentences.
#pragma once

#include <span>
#include <string_view>

#include "engine/engine.hpp"
#include "models/data/alpaca.hpp"
#include "models/pretrained.hpp"
#include "trainer/finetune/flags.hpp"
#include "trainer/metrics/metrics_writer.hpp"

namespace tandem {

/// Fills in the flags that the user did not type: model, data, output folder runs/demo-<time>,
/// sizes for about a minute on two cores. `folder_of_tree`: the demo's folder, if no installed one
/// lies beside the program.
void apply_demo_defaults(FinetuneFlags& flags, const std::string& folder_of_tree);

/// Prints the model's greedy answers to a few of the records' questions, beside the records'
/// answers.
void show_samples(MetricsWriter& metrics, std::string_view when, const Pretrained& pretrained,
                  Engine& engine, std::span<const AlpacaRecord> records);

}  // namespace tandem
