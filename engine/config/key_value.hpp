// engine/config/key_value.hpp — converts a JSON value into a row's field, with checks of type,
// range and choice, and back.
#pragma once

#include <string>
#include <string_view>

#include <simdjson.h>

#include "engine/config/key_table.hpp"

namespace tandem {

/// Stores `value` in the row's field. `where` starts the message, e.g. "ds.json:7". Inside
/// DeepSpeed's typed blocks numbers and flags may be strings ("true", "5e8"), as its parser takes
/// them. Throws user_error.
void assign(KeyRow& row, const simdjson::dom::element& value, std::string_view where);

/// The field's present value as JSON.
[[nodiscard]] std::string json_of(const KeyRow& row);

/// "a string", "a list", ... for messages.
[[nodiscard]] std::string_view kind_of(const simdjson::dom::element& value);

}  // namespace tandem
