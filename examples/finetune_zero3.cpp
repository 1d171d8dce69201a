// examples/finetune_zero3.cpp — fine-tunes a causal language model with ZeRO-3 and the optimizer on
// the CPU.
//
//   finetune_zero3 --model_name DIR --dataset_name data.json --lr 1e-5 --output_dir out
//   finetune_zero3      the demo: a small model with random weights, the project's own sentences
//
// Read finetune() downward: model and data -> config -> plan, folder and engine (Trainer) ->
// training -> model/ and summary.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/config/config.hpp"
#include "engine/tensors/device_choice.hpp"
#include "models/pretrained.hpp"
#include "trainer/finetune/config.hpp"
#include "trainer/finetune/data.hpp"
#include "trainer/finetune/demo.hpp"
#include "trainer/finetune/evaluation.hpp"
#include "trainer/finetune/flags.hpp"
#include "trainer/finetune/run.hpp"
#include "trainer/program/program.hpp"
#include "trainer/program/reexec.hpp"
#include "trainer/trainer.hpp"

namespace tandem {
namespace {

int finetune(FinetuneFlags flags) {
  StartClock start;
  start.mark("program");
  const bool is_demo = flags.model_name.empty();
  if (is_demo) {
    apply_demo_defaults(flags, TANDEM_DEMO_DIR);
  }
  StartedRun started = start_run(flags);

  const Pretrained pretrained = open_pretrained(flags, is_demo);
  const std::string model_folder = saved_folder(flags, pretrained);
  start.mark("model");
  const FinetuneData data = open_data(flags, pretrained.tokenizer_folder(), pretrained.tokenizer());
  start.mark("data");

  // The DeepSpeed config, with the flags that stand for its keys.
  const Config config = finetune_config(
      flags, choose_device(flags.device), started.ranks->world_size(),
      {.hidden_size = pretrained.config().hidden_size, .records = data.dataset->size()});
  require_rate_and_batch(flags, config);

  TrainerArgs args =
      finetune_args(flags, config, pretrained, data, is_demo ? "demo" : flags.model_name);
  args.start = std::move(start);
  Trainer trainer(flags, std::move(started), std::move(args));
  Engine& engine = trainer.engine();
  const auto save = [&](const std::string& folder) {
    pretrained.save(engine, folder, saved_type(flags, config), data.end_token);
  };
  const auto show = [&](const char* when) {
    if (is_demo && flags.samples) {
      show_samples(trainer.metrics(), when, pretrained, engine, data.records);
    }
  };
  show("before training");
  trainer.evaluate_on(evaluation_options(
      flags, config, trainer.length(), data.evaluated, pretrained, engine, trainer.metrics(),
      [&](const std::string& folder) { trainer.save_beside([&] { save(folder); }); }));
  trainer.train();
  show("after training");
  trainer.save_model([&] { save(model_folder); });
  return trainer.finish();
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::reexec_with_tuned_env();
  return tandem::guarded_main([&] {
    const auto flags = tandem::parse_finetune_flags(argc, argv);
    return flags ? tandem::finetune(*flags) : 0;
  });
}
