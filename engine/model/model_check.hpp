// engine/model/model_check.hpp — the engine's other door: whether a model is one.
#pragma once

#include "engine/types/model.hpp"

namespace tandem {

/// Throws user_error where a segment refers to a weight that is not there, has no weights or
/// nothing to run, where parameters share a name or have no elements, and where nothing gives
/// their initial values.
void check_model(const Model& model);

}  // namespace tandem
