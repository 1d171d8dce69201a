#include "engine/config/key_table.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "engine/config/key_rows.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/nearest.hpp"

namespace tandem {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

/// Why an optimizer that DeepSpeed or PyTorch has is not here; "" for any other name. In lower
/// case.
std::string_view refused_optimizer(std::string_view name) {
  struct Refused {
    std::string_view name;
    std::string_view reason;
  };
  constexpr std::string_view kCompressed = "its compressed gradients are not exact";
  constexpr std::string_view kMup = "it needs the shapes of a base model";
  constexpr std::string_view kTorch = "PyTorch's other optimizers are not in this version";
  static constexpr std::array<Refused, 16> kRefused = {{
      {"onebitadam", kCompressed},
      {"zerooneadam", kCompressed},
      {"onebitlamb", kCompressed},
      {"muadam", kMup},
      {"muadamw", kMup},
      {"musgd", kMup},
      {"adadelta", kTorch},
      {"adafactor", kTorch},
      {"adamax", kTorch},
      {"asgd", kTorch},
      {"lbfgs", kTorch},
      {"nadam", kTorch},
      {"radam", kTorch},
      {"rmsprop", kTorch},
      {"rprop", kTorch},
      {"sparseadam", kTorch},
  }};
  const auto found = std::ranges::find(kRefused, name, &Refused::name);
  return found == kRefused.end() ? std::string_view() : found->reason;
}

/// Some of PyTorch's schedulers, which DeepSpeed takes by name.
bool is_torch_scheduler(std::string_view name) {
  constexpr std::array<std::string_view, 15> kNames = {"ChainedScheduler",
                                                       "ConstantLR",
                                                       "CosineAnnealingLR",
                                                       "CosineAnnealingWarmRestarts",
                                                       "CyclicLR",
                                                       "ExponentialLR",
                                                       "LambdaLR",
                                                       "LinearLR",
                                                       "MultiStepLR",
                                                       "MultiplicativeLR",
                                                       "OneCycleLR",
                                                       "PolynomialLR",
                                                       "ReduceLROnPlateau",
                                                       "SequentialLR",
                                                       "StepLR"};
  return std::ranges::find(kNames, name) != kNames.end();
}

}  // namespace

KeyRow&& KeyRow::range(double low, double high) && {
  min = low;
  max = high;
  return std::move(*this);
}
KeyRow&& KeyRow::at_least(double low) && {
  min = low;
  return std::move(*this);
}
KeyRow&& KeyRow::above(double low) && {
  min = low;
  above_min = true;
  return std::move(*this);
}
KeyRow&& KeyRow::one_of(std::vector<std::string_view> names) && {
  choices = std::move(names);
  return std::move(*this);
}
KeyRow&& KeyRow::unused(std::string_view why) && {
  status = KeyStatus::kNotApplicable;
  reason = why;
  return std::move(*this);
}
KeyRow&& KeyRow::refused(std::string_view why) && {
  status = KeyStatus::kRefused;
  reason = why;
  return std::move(*this);
}
KeyRow&& KeyRow::needed() && {
  required = true;
  return std::move(*this);
}

std::vector<KeyRow> key_table(Config& config) {
  using namespace key_rows;
  Rows rows;
  for (Rows part : {batch_rows(config), optimizer_rows(config), scheduler_rows(config),
                    top_rows(config), precision_rows(config), zero_rows(config),
                    monitor_rows(config), checkpoint_rows(), other_rows(config)}) {
    std::ranges::move(part, std::back_inserter(rows));
  }
  return rows;
}

std::span<const KeyAlias> key_aliases() {
  static constexpr std::array<KeyAlias, 20> kAliases = {{
      {"bfloat16.enabled", "bf16.enabled"},
      {"bfloat16.immediate_grad_update", "bf16.immediate_grad_update"},
      {"bfloat16.check_grad_overflow", "bf16.check_grad_overflow"},
      {"bfloat16.bf16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads"},
      {"bfloat16.bf16_optimizer_states", "bf16.bf16_optimizer_states"},
      {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
       "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
      {"zero_optimization.gather_fp16_weights_on_model_save",
       "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
      {"zero_optimization.gather_16bit_weights_on_model_save",
       "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
      {"zero_optimization.max_live_parameters", "zero_optimization.stage3_max_live_parameters"},
      {"zero_optimization.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance"},
      {"zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"},
      {"zero_optimization.param_persistence_threshold",
       "zero_optimization.stage3_param_persistence_threshold"},
      {"zero_optimization.model_persistence_threshold",
       "zero_optimization.stage3_model_persistence_threshold"},
      {"zero_optimization.module_granularity_threshold",
       "zero_optimization.stage3_module_granularity_threshold"},
      {"zero_optimization.use_all_reduce_for_fetch_params",
       "zero_optimization.stage3_use_all_reduce_for_fetch_params"},
      {"zero_optimization.allgather_sequential", "zero_optimization.stage3_allgather_sequential"},
      {"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device"},
      {"zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device"},
      {"zero_optimization.cpu_offload_params", "zero_optimization.offload_param.device"},
      {"zero_optimization.cpu_offload_use_pin_memory",
       "zero_optimization.offload_optimizer.pin_memory"},
  }};
  return kAliases;
}

void choose_optimizer(Config& config, std::string_view type, std::string_view where) {
  const std::string name = lower(type);
  const bool is_adamw = name == "adamw";  // which adam_w_mode tells from Adam
  std::vector<std::string_view> names = {"AdamW"};
  const OptimizerTraits* found = is_adamw ? &traits_of(OptimizerKind::kAdam) : nullptr;
  for (const OptimizerTraits& optimizer : kOptimizers) {
    names.push_back(optimizer.name);
    if (lower(optimizer.name) == name) {
      found = &optimizer;
    }
  }
  if (const std::string_view reason = refused_optimizer(name); !reason.empty()) {
    throw user_error("config", "{}: optimizer.type \"{}\" is refused: {}; use one of {}", where,
                     type, reason, fmt::join(names, ", "));
  }
  if (found == nullptr) {
    throw user_error("config", "{}: unknown optimizer.type \"{}\"; {}", where, type,
                     name_hint(type, names));
  }
  const UpdateConfig& defaults = found->defaults;
  OptimizerConfig& optimizer = config.optimizer;
  optimizer.given = true;
  optimizer.type = type;
  optimizer.kind = defaults.kind;
  optimizer.lr = defaults.lr;
  optimizer.betas = {defaults.beta1, defaults.beta2};
  optimizer.eps = defaults.eps;
  optimizer.momentum = defaults.momentum;
}

void choose_schedule(Config& config, std::string_view type, std::string_view where) {
  constexpr std::array kTypes = {ScheduleType::kWarmup, ScheduleType::kWarmupDecay,
                                 ScheduleType::kWarmupCosine, ScheduleType::kOneCycle,
                                 ScheduleType::kRangeTest};
  std::array<std::string_view, kTypes.size()> names;
  std::ranges::transform(kTypes, names.begin(), [](ScheduleType t) { return name_of(t); });
  if (is_torch_scheduler(type)) {
    throw user_error("config",
                     "{}: scheduler.type \"{}\" is refused: PyTorch's schedulers are not in this "
                     "version; use one of {}",
                     where, type, fmt::join(names, ", "));
  }
  const auto found = std::ranges::find(names, type);
  if (found == names.end()) {
    throw user_error("config", "{}: unknown scheduler.type \"{}\"; {}", where, type,
                     name_hint(type, names));
  }
  config.schedule.type = kTypes.at(static_cast<std::size_t>(found - names.begin()));
  if (config.schedule.type == ScheduleType::kWarmupDecay) {
    config.schedule.warmup_max_lr = 1e-3;  // DeepSpeed's default of this one alone
  }
}

}  // namespace tandem
