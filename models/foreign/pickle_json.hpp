// models/foreign/pickle_json.hpp — plain data of a pickle as JSON, and back.
#pragma once

#include <optional>
#include <string>

#include "models/io/pickle.hpp"

namespace tandem {

/// The value as JSON: None, booleans, numbers, texts, lists, tuples, and dicts with texts as keys.
/// Nothing if it is or holds something else, or is too large for a note beside weights.
std::optional<std::string> json_of(const PickleValue& value);

/// A text that JSON and file names can hold: UTF-8.
bool is_plain_text(const PickleValue& value);

}  // namespace tandem
