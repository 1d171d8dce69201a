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
  for (Rows part :
       {batch_rows(config), optimizer_rows(config), scheduler_rows(config), top_rows(config),
        precision_rows(config), zero_rows(config), monitor_rows(), other_rows()}) {
    std::ranges::move(part, std::back_inserter(rows));
  }
  return rows;
}

std::span<const KeyAlias> key_aliases() {
  static constexpr std::array<KeyAlias, 10> kAliases = {{
      {"bfloat16.enabled", "bf16.enabled"},
      {"bfloat16.immediate_grad_update", "bf16.immediate_grad_update"},
      {"bfloat16.check_grad_overflow", "bf16.check_grad_overflow"},
      {"bfloat16.bf16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads"},
      {"bfloat16.bf16_optimizer_states", "bf16.bf16_optimizer_states"},
      {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
       "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
      {"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device"},
      {"zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device"},
      {"zero_optimization.cpu_offload_params", "zero_optimization.offload_param.device"},
      {"zero_optimization.cpu_offload_use_pin_memory",
       "zero_optimization.offload_optimizer.pin_memory"},
  }};
  return kAliases;
}

void choose_optimizer(Config& config, std::string_view type, std::string_view where) {
  constexpr std::array<std::string_view, 2> kKnown = {"Adam", "AdamW"};
  constexpr std::array<std::string_view, 11> kRefused = {
      "sgd",        "lion",   "adagrad", "lamb",  "onebitadam", "zerooneadam",
      "onebitlamb", "muadam", "muadamw", "musgd", "muon"};
  const std::string name = lower(type);
  if (std::ranges::find(kRefused, name) != kRefused.end()) {
    throw user_error("config",
                     "{}: optimizer.type \"{}\" is not in this version; use Adam or AdamW", where,
                     type);
  }
  if (name != "adam" && name != "adamw") {
    throw user_error("config", "{}: unknown optimizer.type \"{}\"; {}", where, type,
                     name_hint(type, kKnown));
  }
  config.optimizer.given = true;
  config.optimizer.type = type;
}

void choose_schedule(Config& config, std::string_view type, std::string_view where) {
  constexpr std::array kTypes = {ScheduleType::kWarmup, ScheduleType::kWarmupDecay,
                                 ScheduleType::kWarmupCosine, ScheduleType::kOneCycle,
                                 ScheduleType::kRangeTest};
  std::array<std::string_view, kTypes.size()> names;
  std::ranges::transform(kTypes, names.begin(), [](ScheduleType t) { return name_of(t); });
  const auto found = std::ranges::find(names, type);
  if (found == names.end()) {
    throw user_error("config", "{}: unknown scheduler.type \"{}\"; {}", where, type,
                     name_hint(type, names));
  }
  config.schedule.type = kTypes.at(static_cast<std::size_t>(found - names.begin()));
}

}  // namespace tandem
