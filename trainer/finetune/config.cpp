#include "trainer/finetune/config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "engine/data/loader.hpp"
#include "engine/tensors/device_choice.hpp"
#include "runtime/util/error.hpp"
#include "trainer/finetune/rate_schedule.hpp"

namespace tandem {

namespace {

/// The config without --deepspeed_config: ZeRO-3 with the optimizer on the CPU; bf16 on a GPU, fp32
/// elsewhere.
std::string builtin_config(const FinetuneFlags& flags, DeviceKind device) {
  const std::int64_t stage = flags.stage.value_or(3);
  const bool bf16 = flags.given("--dtype") ? flags.dtype == "bf16" : device == DeviceKind::kCuda;
  return fmt::format(
      R"({{
  "train_micro_batch_size_per_gpu": {},
  "gradient_clipping": {},
  "bf16": {{"enabled": {}}},
  "zero_optimization": {{
    "stage": {},
    "offload_optimizer": {{"device": "cpu", "super_offload": {}}}
  }}
}})",
      std::max<std::int64_t>(1, flags.batch_size), flags.gradient_clipping.value_or(1.0), bf16,
      stage, stage == 3);
}

bool in_file(const Config& config, std::string_view path) {
  return std::ranges::any_of(config.keys, [path](const KeyReport& key) {
    return key.path == path && key.origin == KeyOrigin::kFile;
  });
}

bool is_filled(const Config& config, std::string_view path) {
  const auto key = std::ranges::find(config.keys, path, &KeyReport::path);
  return key != config.keys.end() && !key->from.empty();
}

/// Whether --warmup_steps decides the warm-up. It goes before --warmup, as in Transformers; 0
/// leaves the choice to a --warmup that was typed.
bool counts_warmup(const FinetuneFlags& flags) {
  return flags.warmup_steps && (*flags.warmup_steps > 0 || !flags.given("--warmup"));
}

/// The warm-up steps of a run of `steps`.
std::int64_t warmup_steps_of(const FinetuneFlags& flags, std::int64_t steps) {
  const double warmup = counts_warmup(flags) ? *flags.warmup_steps : flags.warmup;
  const bool is_count = counts_warmup(flags) && warmup >= 1;
  return static_cast<std::int64_t>(is_count ? warmup
                                            : std::ceil(warmup * static_cast<double>(steps)));
}

/// The optimizer of the flags: what the config's block gives wins, unless a typed flag says
/// otherwise.
void apply_optimizer_flags(const FinetuneFlags& flags, Config& config) {
  const auto apply = [&](const char* flag, double value, const char* key, double& field) {
    const std::string path = fmt::format("optimizer.params.{}", key);
    if (in_file(config, path) && flags.given(flag) && value != field) {
      throw user_error("flags", "{} is {} and {} in {} is {}; make them agree", flag, value, path,
                       config.origin, field);
    }
    if (!config.optimizer.given || (flags.given(flag) && !in_file(config, path))) {
      field = value;
    }
  };
  apply("--lr", flags.lr, "lr", config.optimizer.lr);
  apply("--weight_decay", flags.weight_decay, "weight_decay", config.optimizer.weight_decay);
  if (config.schedule.type == ScheduleType::kConstant) {
    return;
  }
  for (const char* flag : {"--warmup", "--warmup_steps"}) {
    if (flags.given(flag) && !is_filled(config, "scheduler.params.warmup_num_steps")) {
      throw user_error("flags", "{} and the scheduler {} in {} contradict; keep one of them", flag,
                       name_of(config.schedule.type), config.origin);
    }
  }
  if (flags.given("--lr_scheduler")) {
    throw user_error("flags",
                     "--lr_scheduler and the scheduler {} in {} contradict; keep one of them",
                     name_of(config.schedule.type), config.origin);
  }
}

/// The values of "auto", as in Transformers' Trainer. `known` is the config without the schedule's
/// length; null while that is not known.
std::vector<KeyFill> auto_fills(const FinetuneFlags& flags, const AutoSources& sources,
                                const Config* known) {
  std::vector<KeyFill> fills;
  const auto fill = [&fills](std::string path, const auto& value, std::string from) {
    fills.push_back({std::move(path), fmt::format("{}", value), std::move(from)});
  };
  constexpr const char* kTrainer = "the default of Hugging Face's Trainer";
  if (flags.lr > 0) {
    fill("optimizer.params.lr", flags.lr, "--lr");
  } else if (sources.trainer_defaults) {
    fill("optimizer.params.lr", "5e-5", kTrainer);
  }
  if (sources.trainer_defaults) {
    fill("train_micro_batch_size_per_gpu", "8", kTrainer);
  }
  fill("optimizer.params.weight_decay", flags.weight_decay, "--weight_decay");
  fill("optimizer.params.betas", "[0.9, 0.999]", kTrainer);
  fill("optimizer.params.eps", "1e-8", kTrainer);
  fill("gradient_clipping", "1.0", kTrainer);
  if (const std::int64_t h = sources.hidden_size; h > 0) {
    const std::string of = fmt::format("hidden_size {}", h);
    fill("zero_optimization.reduce_bucket_size", h * h, of);
    fill("zero_optimization.stage3_prefetch_bucket_size", h * h * 9 / 10, of);
    fill("zero_optimization.stage3_param_persistence_threshold", 10 * h, of);
  }
  const double rate = known != nullptr ? known->optimizer.rate() : flags.lr;
  if (rate > 0) {
    fill("scheduler.params.warmup_max_lr", rate,
         known != nullptr && in_file(*known, "optimizer.params.lr") ? "optimizer.params.lr"
                                                                    : "--lr");
  }
  fill("scheduler.params.warmup_min_lr", "0", kTrainer);
  const bool counted = known != nullptr && sources.records > 0;
  const std::int64_t steps = counted ? run_length(flags, *known, sources.records).steps
                                     : std::max<std::int64_t>(1, flags.steps);
  const std::string length = flags.steps > 0 ? "--steps"
                             : counted       ? "the length of the run"
                                             : "a run of one step; give --steps";
  fill("scheduler.params.warmup_num_steps", warmup_steps_of(flags, steps),
       fmt::format("{} and {}", counts_warmup(flags) ? "--warmup_steps" : "--warmup", length));
  fill("scheduler.params.total_num_steps", steps, length);
  return fills;
}

}  // namespace

Config finetune_config(const FinetuneFlags& flags, DeviceKind device, std::int64_t world_size,
                       const AutoSources& sources) {
  ParseOptions options = {.world_size = world_size,
                          .batch_required = false,
                          .overrides = config_overrides(flags),
                          .fills = auto_fills(flags, sources, nullptr)};
  if (flags.given("--decay_norms")) {
    options.overrides.push_back(
        {"decay_norms", flags.decay_norms == "on" ? "true" : "false", "--decay_norms"});
  }
  const auto parsed = [&] {
    return flags.deepspeed_config.empty()
               ? parse_config(builtin_config(flags, device), "the built-in config", options)
               : load_config(flags.deepspeed_config, options);
  };
  const auto read = [&] {
    Config config = parsed();
    apply_optimizer_flags(flags, config);
    return config;
  };
  // The demo's own batch is for a file that has none.
  const bool typed = flags.given("--batch_size");
  if (flags.batch_size > 0 &&
      (typed || flags.deepspeed_config.empty() || parsed().batch.train_batch_size == 0)) {
    options.overrides.push_back({"train_micro_batch_size_per_gpu",
                                 fmt::format("{}", flags.batch_size),
                                 typed ? "--batch_size" : "the demo"});
  }
  options.batch_required = flags.batch_size > 0;
  Config config = read();
  if (config.schedule.type != ScheduleType::kConstant && config.batch.train_batch_size > 0) {
    options.fills = auto_fills(flags, sources, &config);  // the batch decides the number of steps
    config = read();
  }
  return config;
}

void require_rate_and_batch(const FinetuneFlags& flags, const Config& config) {
  const std::string file = flags.deepspeed_config.empty() ? "a DeepSpeed JSON (--deepspeed_config)"
                                                          : flags.deepspeed_config;
  constexpr std::array kRates = {"optimizer.params.lr", "optimizer.params.muon_lr",
                                 "scheduler.params.warmup_max_lr", "scheduler.params.cycle_max_lr",
                                 "scheduler.params.lr_range_test_min_lr"};
  if (flags.lr <= 0 &&
      std::ranges::none_of(kRates, [&](const char* path) { return in_file(config, path); })) {
    throw user_error("flags", "no learning rate: give --lr, or optimizer.params.lr in {}", file);
  }
  if (config.batch.train_batch_size == 0 ||
      (flags.deepspeed_config.empty() && flags.batch_size == 0)) {
    throw user_error(
        "flags", "no batch size: give --batch_size, or train_micro_batch_size_per_gpu in {}", file);
  }
}

RunLength run_length(const FinetuneFlags& flags, const Config& config, std::int64_t records) {
  RunLength length = run_length(config, records, flags.steps, flags.num_train_epochs);
  if (flags.steps == 0 && flags.bench_steps > 0) {
    length.steps = std::min(length.steps, flags.bench_steps);
  }
  return length;
}

std::function<double(std::int64_t)> learning_rate_of(const FinetuneFlags& flags,
                                                     const Config& config,
                                                     std::int64_t total_steps) {
  if (config.schedule.type != ScheduleType::kConstant) {
    return {};
  }
  const RateSchedule schedule = {.shape = *parse_enum<RateShape>(flags.lr_scheduler),
                                 .peak = config.optimizer.rate(),
                                 .warmup_steps = warmup_steps_of(flags, total_steps),
                                 .total_steps = total_steps};
  return [schedule](std::int64_t step) { return schedule.at(step); };
}

std::vector<std::pair<std::string, std::string>> run_settings(const FinetuneFlags& flags,
                                                              const Config& config,
                                                              const LoraOptions& lora,
                                                              std::int64_t total_steps) {
  std::vector<std::pair<std::string, std::string>> settings = {
      {"--steps", fmt::format("{}", total_steps)}};
  if (config.schedule.type == ScheduleType::kConstant) {
    settings.emplace_back("--lr_scheduler", flags.lr_scheduler);
    settings.emplace_back("--warmup", fmt::format("{}", flags.warmup));
  }
  if (lora.any()) {
    settings.emplace_back("the adapters' scale", fmt::format("{}", lora.scale()));
    settings.emplace_back("--lora_dropout", fmt::format("{}", lora.dropout));
  }
  return settings;
}

namespace {

/// Tells of a step that takes more records than the data set has; empty where it does not.
std::string too_large_batch(const BatchConfig& batch, std::int64_t records, bool packed) {
  if (batch.train_batch_size <= records) {
    return "";
  }
  return fmt::format("; more than the {} {}: a step takes all of them{}", records,
                     packed ? "packs" : "records",
                     batch.train_batch_size == batch.micro_batch_size ? "" : ", some repeatedly");
}

/// "2 ranks", "1 group of 2 ranks that share rows".
std::string ranks_text(const Config& config) {
  const auto of = [](std::int64_t count, std::string_view what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  return config.sequence_parallel_size == 1
             ? of(config.world_size, "rank")
             : fmt::format("{} of {} ranks that share rows", of(config.data_ranks(), "group"),
                           config.sequence_parallel_size);
}

/// Tells what learns; empty: all.
std::string trained_line(const Pretrained& pretrained, const Engine& engine) {
  std::int64_t learnt = 0;
  for (const UnitSpec& unit : engine.model().units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      learnt += parameter.frozen ? 0 : parameter.numel();
    }
  }
  if (learnt == engine.parameter_count()) {
    return "";
  }
  const LoraOptions& lora = pretrained.lora();
  const std::string what = lora.any()
                               ? fmt::format("; adapters of rank {}, scale {:.4g}, dropout {:.4g}",
                                             lora.rank, lora.scale(), lora.dropout)
                               : "";
  return fmt::format(
      "learns   {:.3f} M of {:.2f} M parameters ({:.3g} %){}", static_cast<double>(learnt) / 1e6,
      static_cast<double>(engine.parameter_count()) / 1e6,
      100.0 * static_cast<double>(learnt) / static_cast<double>(engine.parameter_count()), what);
}

}  // namespace

std::vector<std::string> describe_run(const FinetuneFlags& flags, const Config& config,
                                      const Pretrained& pretrained, const Engine& engine,
                                      std::int64_t records) {
  const HfConfig& shape = pretrained.config();
  std::vector<std::string> lines = {
      fmt::format("model    {} ({}): {:.2f} M parameters, {} layers, hidden {}, vocabulary {}",
                  flags.model_name, shape.model_type,
                  static_cast<double>(engine.parameter_count()) / 1e6, shape.num_hidden_layers,
                  shape.hidden_size, shape.vocab_size),
      fmt::format("batch    {} = {} per micro-batch x {} accumulation x {}{}",
                  config.batch.train_batch_size, config.batch.micro_batch_size,
                  config.batch.accumulation_steps, ranks_text(config),
                  too_large_batch(config.batch, records, flags.packing != "off")),
      fmt::format("length   {}", run_length(flags, config, records).text()),
      fmt::format(
          "engine   {}, ZeRO stage {}, clipping {}, overlap {}, {} gather slots, {} compute "
          "threads, {} optimizer threads",
          name_of(config.precision()), config.zero.stage, config.gradient_clipping,
          name_of(flags.engine.overlap), engine.gather_slots(), engine.compute_threads(),
          engine.optimizer_threads()),
      cores_line(engine.cores(), flags.engine.pin_cores),
  };
  if (updates_jointly(config.optimizer.kind)) {
    lines.push_back(fmt::format(
        "updates  {} needs whole tensors: directions are found in the step, on the host, and no "
        "update begins ahead of the verdict",
        config.optimizer.type));
  }
  for (const KeyReport& key : config.keys) {
    if (!key.from.empty()) {
      lines.push_back(fmt::format("auto     {}: {}, from {}", key.path, key.value, key.from));
    }
  }
  if (const std::string line = trained_line(pretrained, engine); !line.empty()) {
    lines.insert(lines.begin() + 1, line);
  }
  return lines;
}

}  // namespace tandem
