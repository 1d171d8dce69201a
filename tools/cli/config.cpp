// `tandem config FILE.json`: the resolved configuration, and what becomes of every key in the file.
#include "engine/config/config.hpp"

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/tensors/device_choice.hpp"
#include "models/causal_lm.hpp"
#include "models/hub/hub_paths.hpp"
#include "models/io/hf_config.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/finetune/config.hpp"
#include "trainer/finetune/flags.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

/// Those of the trainer that stand for keys, or for "auto".
void add_auto_flags(CLI::App& app, FinetuneFlags& f) {
  app.option_defaults()->group("What \"auto\" takes, as in tandem train");
  app.add_option("--batch_size,--per_device_train_batch_size", f.batch_size,
                 "Records per micro-batch of one rank; \"auto\" without it: 8");
  app.add_option("--lr,--learning_rate", f.lr, "Learning rate; \"auto\" without it: 5e-5");
  app.add_option("--weight_decay", f.weight_decay, "Decoupled weight decay")->capture_default_str();
  app.add_option("--warmup,--warmup_ratio", f.warmup, "Share of the steps of the warm-up")
      ->capture_default_str();
  app.add_option("--steps,--max_steps", f.steps, "Optimizer steps of the run");
  app.add_option("--model_name,--model_name_or_path", f.model_name,
                 "Folder or hub id whose config.json says hidden_size");
}

}  // namespace

int run_config(int argc, char** argv) {
  CLI::App app("Checks a DeepSpeed JSON; prints the resolved values, then one line per key given",
               "tandem config");
  FinetuneFlags flags;
  std::string file;
  std::int64_t world_size = 1;
  app.add_option("FILE", file, "the DeepSpeed JSON")->required();
  app.add_option("--world_size", world_size, "number of ranks to solve the batch sizes for")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  add_config_flags(app, flags);
  add_auto_flags(app, flags);
  if (!parse_run_flags(app, flags, argc, argv)) {
    return 0;
  }
  if (!flags.dtype.empty()) {
    require_one_of("--dtype", flags.dtype, {"fp32", "bf16", "fp16"});
  }
  AutoSources sources{.trainer_defaults = true};
  if (!flags.model_name.empty()) {
    sources.hidden_size = read_hf_config(resolve_model_folder(flags.model_name)).hidden_size;
  }
  flags.deepspeed_config = file;
  const Config config = finetune_config(flags, DeviceKind::kCpu, world_size, sources);
  fmt::print("{}\n", resolved_json(config));
  for (const std::string& line : report_lines(config)) {
    fmt::print("{}\n", one_line(line));
  }
  if (config.batch.train_batch_size == 0) {
    fmt::print(
        "note     no batch size is given, so it is 0 above; ./tandem train needs --batch_size, or "
        "train_micro_batch_size_per_gpu in this file\n");
  }
  if (config.optimizer.rate() == 0) {
    fmt::print(
        "note     no learning rate is given, so it is 0 above; ./tandem train needs --lr, or "
        "optimizer.params.lr in this file\n");
  }
  return 0;
}

}  // namespace tandem
