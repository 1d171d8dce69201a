#include "trainer/finetune/evaluation.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/generate.hpp"
#include "runtime/util/one_line.hpp"
#include "trainer/flags/flag_values.hpp"

namespace tandem {

namespace {

constexpr std::int64_t kSampleTokens = 48;

void show_sample(const std::string& prompt, const Pretrained& pretrained, Engine& engine,
                 MetricsWriter& metrics) {
  const Tokenizer& tokenizer = pretrained.tokenizer();
  GenerateOptions options = generate_options(pretrained);
  options.max_new_tokens = kSampleTokens;
  const std::vector<std::int32_t> ids = tokenizer.encode(prompt);
  const std::vector<std::int64_t> text =
      generate(engine, std::vector<std::int64_t>(ids.begin(), ids.end()), options);
  metrics.note(fmt::format(
      "sample   {}",
      one_line(tokenizer.decode(std::vector<std::int32_t>(text.begin(), text.end()), true))));
}

std::int64_t steps_between_evaluations(const EvaluationFlags& flags, const RunLength& length) {
  return flags.every == 0 ? length.per_epoch : steps_of(flags.every, length.steps);
}

}  // namespace

EvaluationOptions evaluation_options(const FinetuneFlags& flags, const Config& config,
                                     const RunLength& length,
                                     std::shared_ptr<const Dataset> dataset,
                                     const Pretrained& pretrained, Engine& engine,
                                     MetricsWriter& metrics,
                                     const std::function<void(const std::string& folder)>& save) {
  EvaluationOptions options = {
      .dataset = std::move(dataset),
      .args = {.micro_batch = config.batch.micro_batch_size, .batches = flags.eval.batches},
      .every = steps_between_evaluations(flags.eval, length),
      .at_start = flags.eval.at_start,
      .patience = flags.eval.patience,
      .min_delta = flags.eval.min_delta};
  if (flags.eval.keep_best) {
    const std::string folder =
        flags.output_dir + (pretrained.lora().any() ? "/adapter-best" : "/model-best");
    options.save_best = [save, folder] { save(folder); };
    options.best_folder = folder;
  }
  if (!flags.eval.sample_prompt.empty()) {
    options.after_each = [prompt = flags.eval.sample_prompt, &pretrained, &engine, &metrics] {
      show_sample(prompt, pretrained, engine, metrics);
    };
  }
  return options;
}

}  // namespace tandem
