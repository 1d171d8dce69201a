// engine/config/key_rules.hpp — what keys mean for each other: values that are fine alone and
// contradict together, and keys that another key's value leaves without effect.
#pragma once

#include <span>

#include "engine/config/key_table.hpp"

namespace tandem {

/// Throws user_error for the first contradiction. `rows` are those of `config`, their values
/// assigned.
void check_contradictions(const Config& config, std::span<const KeyRow> rows);

/// Says of keys that were given, in config.keys, that their values change nothing, and why.
void mark_without_effect(Config& config, std::span<const KeyRow> rows);

}  // namespace tandem
