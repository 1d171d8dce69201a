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
#include "trainer/flags/flag_table.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

/// Those of the trainer that stand for keys, or for "auto".
FlagGroup auto_flags(FinetuneFlags& f) {
  return {
      "What \"auto\" takes, as in tandem train",
      {
          {"--batch_size,--per_device_train_batch_size",
           flags::number(f.batch_size).without_default(),
           "Records per micro-batch of one rank; \"auto\" without it: 8"},
          {"--lr,--learning_rate", flags::number(f.lr).without_default(),
           "Learning rate; \"auto\" without it: 5e-5"},
          {"--weight_decay", flags::number(f.weight_decay), "Decoupled weight decay"},
          {"--warmup,--warmup_ratio", flags::number(f.warmup), "Share of the steps of the warm-up"},
          {"--steps,--max_steps", flags::number(f.steps).without_default(),
           "Optimizer steps of the run"},
          {"--model_name,--model_name_or_path", flags::text(f.model_name),
           "Folder or hub id whose config.json says hidden_size"},
      }};
}

}  // namespace

int run_config(int argc, char** argv) {
  CLI::App app("Checks a DeepSpeed JSON; prints the resolved values, then one line per key given",
               "tandem config");
  FinetuneFlags flags;
  std::string file;
  std::int64_t world_size = 1;
  app.add_option("FILE", file, "the DeepSpeed JSON")->required();
  FlagTable table(app);
  table.add({"",
             {{"--world_size", flags::number(world_size).above_zero(1 << 20),
               "number of ranks to solve the batch sizes for"}}});
  table.add({config_flags(flags), auto_flags(flags)});
  if (!parse_run_flags(app, flags, argc, argv)) {
    return 0;
  }
  table.check();
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
