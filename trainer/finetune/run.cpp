#include "trainer/finetune/run.hpp"

#include <utility>

#include <fmt/format.h>

#include "engine/metrics/flops.hpp"
#include "models/causal_lm.hpp"
#include "models/save_weights.hpp"
#include "runtime/util/one_line.hpp"
#include "trainer/finetune/config.hpp"

namespace tandem {
namespace {

std::string model_name(const Pretrained& pretrained) {
  return pretrained.lora().any() ? "adapter" : "model";
}

SavedModels saved_models(const FinetuneFlags& flags, const Config& config,
                         const Pretrained& pretrained) {
  SavedModels saved = {.folders = {model_name(pretrained)},
                       .weight_bytes = bytes_of(saved_type(flags, config)),
                       .beside_bytes = tokenizer_bytes(pretrained.tokenizer_folder())};
  if (flags.eval.keep_best) {
    saved.folders.push_back(saved.folders.front() + "-best");
  }
  return saved;
}

/// The example's figure of a step.
double tflops_of(const StepResult& result, const HfConfig& shape, const Engine& engine,
                 const FinetuneFlags& flags) {
  const FlopShape flops = {.parameters = engine.parameter_count(),
                           .layers = shape.num_hidden_layers,
                           .hidden = shape.hidden_size,
                           .activation_checkpointing = flags.engine.activation_checkpointing};
  return example_tflops(flops, result.sequences, result.sequence_length, result.step_time_s);
}

/// Empty where the model was trained at all positions of the longest row, as far as it says.
std::string positions_note(const HfConfig& config, std::int64_t longest) {
  if (longest <= config.max_position_embeddings || config.max_position_embeddings == 0) {
    return "";
  }
  return fmt::format(
      "rows of up to {} tokens go beyond max_position_embeddings of config.json ({}); --max_length "
      "{} cuts them there",
      longest, config.max_position_embeddings, config.max_position_embeddings);
}

RunReports reports_of(const FinetuneFlags& flags, const Config& config,
                      const Pretrained& pretrained, const FinetuneData& data, std::string name) {
  RunReports reports = {.name = std::move(name),
                        .every_step = flags.log_level == "DEBUG",
                        .quiet = flags.log_level == "WARNING" || flags.log_level == "ERROR",
                        .lines = data.lines};
  reports.describe = [&flags, &config, &pretrained, &data](const Engine& engine) {
    std::vector<std::string> lines =
        describe_run(flags, config, pretrained, engine, data.dataset->size());
    for (const std::string& note : pretrained.notes()) {
      lines.push_back(fmt::format("note     {}", one_line(note)));
    }
    if (const std::string note = positions_note(pretrained.config(), data.longest());
        !note.empty()) {
      lines.push_back(fmt::format("note     {}", note));
    }
    return lines;
  };
  reports.tflops = [&flags, &pretrained](const StepResult& result, const Engine& engine) {
    return tflops_of(result, pretrained.config(), engine, flags);
  };
  reports.model_tflops = [&flags, &pretrained](const RunSummary& summary) {
    const Model model = make_causal_lm(pretrained.config());
    return 1e-12 * model_flops_per_token(model, flags.max_length) * summary.tokens_per_s;
  };
  return reports;
}

}  // namespace

Pretrained open_pretrained(const FinetuneFlags& flags, bool is_demo) {
  return Pretrained::open(flags.model_name, {.may_lack_weights = is_demo,
                                             .seed = flags.seed,
                                             .parts = trained_parts(flags),
                                             .adapters_from = flags.lora_from,
                                             .add_tokens = flags.add_tokens});
}

TensorType saved_type(const FinetuneFlags& flags, const Config& config) {
  return type_by_name(flags.save_dtype).value_or(*type_by_name(name_of(config.precision())));
}

std::string saved_folder(const FinetuneFlags& flags, const Pretrained& pretrained) {
  const std::string folder = flags.output_dir + "/" + model_name(pretrained);
  pretrained.check_saves_elsewhere(folder);
  return folder;
}

TrainerArgs finetune_args(const FinetuneFlags& flags, const Config& config,
                          const Pretrained& pretrained, const FinetuneData& data,
                          std::string name) {
  const RunLength length = run_length(flags, config, data.dataset->size());
  return {.model = pretrained.model(flags.leaf_module),
          .config = config,
          .dataset = data.dataset,
          .largest = {.records = data.dataset->size(),
                      .length = data.longest(),
                      .packed = data.dataset->packed()},
          .length = length,
          .learning_rate = learning_rate_of(flags, config, length.steps),
          .settings = run_settings(flags, config, pretrained.lora(), length.steps),
          .checkpoint_files = {{"config.json", hf_config_json(pretrained.config(), "float32")}},
          .weight_files = pretrained.weight_files(),
          .saved = saved_models(flags, config, pretrained),
          .reports = reports_of(flags, config, pretrained, data, std::move(name))};
}

}  // namespace tandem
