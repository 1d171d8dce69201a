// models/foreign/pickle_json.hpp — plain data of a pickle as JSON, and back.
#pragma once

#include <optional>
#include <string>

#include "models/io/pickle.hpp"

namespace tandem {

/// Returns the value as JSON: None, booleans, numbers, texts, lists, tuples, and dicts with texts
/// as keys. Returns nullopt if it is or holds anything else, or is too large for a note beside
/// weights.
std::optional<std::string> json_of(const PickleValue& value);

/// Returns whether the value is a text in UTF-8, which JSON and file names can hold.
bool is_plain_text(const PickleValue& value);

}  // namespace tandem
