// engine/config/key_rules.hpp — rules between keys: values that contradict each other, and keys
// that have no effect because of another key's value.
#pragma once

#include <span>

#include "engine/config/key_table.hpp"

namespace tandem {

/// Throws user_error for the first contradiction. `rows` are those of `config`, their values
/// assigned.
void check_contradictions(const Config& config, std::span<const KeyRow> rows);

/// Marks given keys whose values have no effect, in config.keys, with the reason.
void mark_without_effect(Config& config, std::span<const KeyRow> rows);

}  // namespace tandem
