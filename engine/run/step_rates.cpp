#include "engine/run/step_rates.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/layout/decay_groups.hpp"
#include "engine/layout/update_config.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

std::vector<ParameterGroup> groups_of(Model& model, std::vector<ParameterGroup> groups,
                                      bool decay_norms) {
  if (groups.empty()) {
    groups.emplace_back();
  }
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.group >= groups.size()) {
        throw user_error("engine", "parameter {} is in group {}, and there are {} parameter groups",
                         parameter.name, parameter.group, groups.size());
      }
    }
  }
  if (decay_norms) {
    return groups;
  }
  const std::size_t given = groups.size();
  for (std::size_t group = 0; group < given; ++group) {
    groups.push_back(groups[group]);
    groups.back().weight_decay = 0;
  }
  for (UnitSpec& unit : model.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      parameter.group += is_norm_or_bias(parameter.name) ? given : 0;
    }
  }
  return groups;
}

StepRates::StepRates(const Config& config, std::function<double(std::int64_t)> learning_rate,
                     std::vector<ParameterGroup> groups)
    : config_(config),
      schedule_(config.schedule, config.optimizer.rate()),
      learning_rate_(std::move(learning_rate)),
      groups_(std::move(groups)) {}

std::vector<UpdateConfig> StepRates::groups(std::int64_t n) const {
  UpdateConfig base = update_config(config_.optimizer);
  base.lr = rate(n);
  if (const auto moved = betas(n); moved && base.kind != OptimizerKind::kMuon) {
    base.beta1 = (*moved)[0];
    base.beta2 = (*moved)[1];
  }
  // DeepSpeed's schedules of absolute rates give every group the same one.
  const bool scales = learning_rate_ || config_.schedule.type == ScheduleType::kConstant ||
                      config_.schedule.type == ScheduleType::kWarmupCosine;
  std::vector<UpdateConfig> all;
  for (const ParameterGroup& group : groups_) {
    UpdateConfig own = base;
    own.lr *= group.learning_rate_factor;
    own.weight_decay = group.weight_decay.value_or(base.weight_decay);
    std::ranges::copy(update_groups(own, scales ? config_.optimizer.adam_lr_factor() : 1),
                      std::back_inserter(all));
  }
  return all;
}

}  // namespace tandem
