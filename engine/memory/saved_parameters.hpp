// engine/memory/saved_parameters.hpp — the size of the model that a run saves at its end.
#pragma once

#include <cstdint>

#include "engine/types/model.hpp"

namespace tandem {

/// Returns the number of saved elements: all, or for a model with adapters
/// (UnitSpec::stays_gathered) the trained ones.
[[nodiscard]] std::int64_t saved_parameters(const Model& model);

}  // namespace tandem
