// engine/memory/saved_parameters.hpp — how much of a model is saved when it is trained.
#pragma once

#include <cstdint>

#include "engine/types/model.hpp"

namespace tandem {

/// Elements: all, but of a model with adapters (UnitSpec::stays_gathered) those that learn.
[[nodiscard]] std::int64_t saved_parameters(const Model& model);

}  // namespace tandem
