// engine/run/step_rates.hpp — the constants of each optimizer step: learning rate, betas and weight
// decay of every parameter group.
//
// Pure functions of the step's number.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/schedule/schedule.hpp"
#include "engine/types/model.hpp"
#include "engine/types/parameter_group.hpp"

namespace tandem {

/// Returns the parameter groups of a run: the caller's, or a default one if `groups` is empty. With
/// `decay_norms` off each of them gets a second group without weight decay, into which the model's
/// norms and biases are moved. Throws user_error if a parameter names a missing group.
[[nodiscard]] std::vector<ParameterGroup> groups_of(Model& model,
                                                    std::vector<ParameterGroup> groups,
                                                    bool decay_norms);

class StepRates {
 public:
  /// `config` outlives this object. `learning_rate` replaces the config's schedule; empty: the
  /// schedule is used.
  StepRates(const Config& config, std::function<double(std::int64_t)> learning_rate,
            std::vector<ParameterGroup> groups);

  /// Returns the learning rate of step `n` of the schedule, from 1.
  [[nodiscard]] double rate(std::int64_t n) const {
    return learning_rate_ ? learning_rate_(n) : schedule_.lr_at(n);
  }
  /// Returns the betas of step `n` if the schedule changes them, else nullopt.
  [[nodiscard]] std::optional<std::array<double, 2>> betas(std::int64_t n) const {
    return schedule_.betas_at(n);
  }
  /// Returns the constants of all groups at step `n`, as TrainStep::Update takes them.
  [[nodiscard]] std::vector<UpdateConfig> groups(std::int64_t n) const;

 private:
  const Config& config_;
  LrSchedule schedule_;
  std::function<double(std::int64_t)> learning_rate_;
  std::vector<ParameterGroup> groups_;  // at least one
};

}  // namespace tandem
