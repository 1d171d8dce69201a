// models/foreign/foreign_state.hpp — the state that a run resumes from a foreign checkpoint.
#pragma once

#include "engine/types/checkpoint.hpp"
#include "engine/types/model.hpp"
#include "models/foreign/imported_checkpoint.hpp"

namespace tandem {

/// Matches the checkpoint's tensors with the model's parameters by name. Throws user_error if a
/// parameter is missing or has another shape. The state keeps the files open.
ForeignState foreign_state(ImportedCheckpoint checkpoint, const Model& model);

}  // namespace tandem
