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

/// Returns the parameter groups of a run: the caller's (one at least), and with `decay_norms` off
/// beside each of them one without weight decay, which the model's norms and biases are given to.
/// Throws user_error where a parameter names none.
[[nodiscard]] std::vector<ParameterGroup> groups_of(Model& model,
                                                    std::vector<ParameterGroup> groups,
                                                    bool decay_norms);

class StepRates {
 public:
  /// `config` outlives it. `learning_rate`: instead of the config's schedule; empty: that.
  StepRates(const Config& config, std::function<double(std::int64_t)> learning_rate,
            std::vector<ParameterGroup> groups);

  /// Step `n` of the schedule, from 1.
  [[nodiscard]] double rate(std::int64_t n) const {
    return learning_rate_ ? learning_rate_(n) : schedule_.lr_at(n);
  }
  /// Where the schedule moves them.
  [[nodiscard]] std::optional<std::array<double, 2>> betas(std::int64_t n) const {
    return schedule_.betas_at(n);
  }
  /// The constants of all groups, as TrainStep::Update takes them.
  [[nodiscard]] std::vector<UpdateConfig> groups(std::int64_t n) const;

 private:
  const Config& config_;
  LrSchedule schedule_;
  std::function<double(std::int64_t)> learning_rate_;
  std::vector<ParameterGroup> groups_;  // one at least
};

}  // namespace tandem
