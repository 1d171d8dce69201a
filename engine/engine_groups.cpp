// The parameter groups of a run: the caller's, and beside each of them one without weight decay
// where norms and biases take none.
#include <vector>

#include "engine/engine_impl.hpp"
#include "engine/layout/decay_groups.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

std::vector<ParameterGroup> groups_of(InitializeArgs& arguments, bool decay_norms) {
  std::vector<ParameterGroup> groups = arguments.parameter_groups;
  if (groups.empty()) {
    groups.emplace_back();
  }
  for (const UnitSpec& unit : arguments.model.units) {
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
  for (UnitSpec& unit : arguments.model.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      parameter.group += is_norm_or_bias(parameter.name) ? given : 0;
    }
  }
  return groups;
}

}  // namespace tandem
