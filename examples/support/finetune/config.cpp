#include "examples/support/finetune/config.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "engine/data/loader.hpp"
#include "engine/device/device_choice.hpp"
#include "examples/support/finetune/rate_schedule.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

/// What runs without --deepspeed_config: ZeRO-3 with the optimizer on the CPU; bf16 on a GPU, fp32
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

/// The optimizer of the flags: the config's block wins where it has one, unless a typed flag says
/// otherwise.
void apply_optimizer_flags(const FinetuneFlags& flags, Config& config) {
  const auto contradicts = [&](const char* flag, double typed, double file) {
    return config.optimizer.given && flags.given(flag) && typed != file;
  };
  if (contradicts("--lr", flags.lr, config.optimizer.lr)) {
    throw user_error("flags", "--lr is {} and optimizer.params.lr in {} is {}; make them agree",
                     flags.lr, config.origin, config.optimizer.lr);
  }
  if (contradicts("--weight_decay", flags.weight_decay, config.optimizer.weight_decay)) {
    throw user_error(
        "flags",
        "--weight_decay is {} and optimizer.params.weight_decay in {} is {}; make them agree",
        flags.weight_decay, config.origin, config.optimizer.weight_decay);
  }
  if (flags.given("--warmup") && config.schedule.type != ScheduleType::kConstant) {
    throw user_error("flags", "--warmup and the scheduler {} in {} contradict; keep one of them",
                     name_of(config.schedule.type), config.origin);
  }
  if (flags.given("--lr_scheduler") && config.schedule.type != ScheduleType::kConstant) {
    throw user_error("flags",
                     "--lr_scheduler and the scheduler {} in {} contradict; keep one of them",
                     name_of(config.schedule.type), config.origin);
  }
  if (!config.optimizer.given) {
    config.optimizer.lr = flags.lr;
    config.optimizer.weight_decay = flags.weight_decay;
  }
}

}  // namespace

Config finetune_config(const FinetuneFlags& flags, DeviceKind device, std::int64_t world_size) {
  ParseOptions options = {.world_size = world_size,
                          .batch_required = flags.batch_size > 0,
                          .overrides = config_overrides(flags)};
  if (flags.batch_size > 0) {
    options.overrides.push_back(
        {"train_micro_batch_size_per_gpu", fmt::format("{}", flags.batch_size), "--batch_size"});
  }
  Config config = flags.deepspeed_config.empty()
                      ? parse_config(builtin_config(flags, device), "the built-in config", options)
                      : load_config(flags.deepspeed_config, options);
  apply_optimizer_flags(flags, config);
  return config;
}

std::string RunLength::text() const {
  const double epochs = static_cast<double>(steps) / static_cast<double>(per_epoch);
  return fmt::format("{} steps = {:.4g} epoch{} of {}", steps, epochs, epochs == 1 ? "" : "s",
                     per_epoch);
}

RunLength run_length(const FinetuneFlags& flags, const Config& config, std::int64_t records) {
  const std::int64_t batches =
      batches_per_epoch(records, {.sampler = {.world_size = static_cast<int>(config.world_size)},
                                  .micro_batch = config.batch.micro_batch_size,
                                  .accumulation = config.batch.accumulation_steps,
                                  .drop_last = config.dataloader_drop_last});
  // An epoch without a step is refused where the loader is made.
  const std::int64_t per_epoch =
      std::max<std::int64_t>(1, batches / config.batch.accumulation_steps);
  if (flags.steps > 0) {
    return {flags.steps, per_epoch};
  }
  const std::int64_t steps = flags.num_train_epochs * per_epoch;
  return {flags.bench_steps > 0 ? std::min(steps, flags.bench_steps) : steps, per_epoch};
}

std::function<double(std::int64_t)> learning_rate_of(const FinetuneFlags& flags,
                                                     const Config& config,
                                                     std::int64_t total_steps) {
  if (config.schedule.type != ScheduleType::kConstant) {
    return {};
  }
  const RateSchedule schedule = {.shape = *parse_enum<RateShape>(flags.lr_scheduler),
                                 .peak = config.optimizer.rate(),
                                 .warmup = flags.warmup,
                                 .total_steps = total_steps};
  return [schedule](std::int64_t step) { return schedule.at(step); };
}

namespace {

/// What a step takes that is more than the data set has; empty where it is not.
std::string too_large_batch(const BatchConfig& batch, std::int64_t records, bool packed) {
  if (batch.train_batch_size <= records) {
    return "";
  }
  return fmt::format("; more than the {} {}: a step takes all of them{}", records,
                     packed ? "packs" : "records",
                     batch.train_batch_size == batch.micro_batch_size ? "" : ", some repeatedly");
}

/// What learns; empty: all.
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
      fmt::format("batch    {} = {} per micro-batch x {} accumulation x {} rank{}{}",
                  config.batch.train_batch_size, config.batch.micro_batch_size,
                  config.batch.accumulation_steps, config.world_size,
                  config.world_size == 1 ? "" : "s",
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
  if (const std::string line = trained_line(pretrained, engine); !line.empty()) {
    lines.insert(lines.begin() + 1, line);
  }
  return lines;
}

}  // namespace tandem
