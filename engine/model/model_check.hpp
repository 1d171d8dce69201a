// engine/model/model_check.hpp — validates a Model before the engine uses it.
#pragma once

#include "engine/types/model.hpp"

namespace tandem {

/// Throws user_error if a segment refers to a missing weight, has no weights or no function, if two
/// parameters have the same name, if one has no elements, or if the model has no source of initial
/// values.
void check_model(const Model& model);

}  // namespace tandem
